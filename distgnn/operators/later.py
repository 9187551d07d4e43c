"""Sums over ranks of the many small arrays of a backward pass, made at its end and all at once.

A sum of a kilobyte costs a message as one of a megabyte does, and on a GPU a wait for the stream. The words
are those of the sums one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

from distgnn.arrays import backend
from distgnn.comm.group import Comm

Array = Any


class LaterSum:
    """A sum that is made later.

    Attributes:
        block: what is made of the sum, from :meth:`Later.finish` on.
    """

    block: Array = None

    def __init__(self, array: Array, then: Callable[[Array], Array]) -> None:
        self.array, self.then = array, then


class Later:
    """Sums over groups of ranks. All ranks of a group add arrays of the same shapes in the same order."""

    def __init__(self) -> None:
        self.sums: dict[tuple[int, str], tuple[Comm, list[LaterSum]]] = {}

    def add(
        self, group: Comm, array: Array, then: Callable[[Array], Array] = lambda total: total
    ) -> LaterSum:
        """Sum an array over a group, at the latest in :meth:`finish`, and make ``then(total)`` of it.

        The array is left as scratch. ``then`` may be collective over the group.
        """
        made = LaterSum(array, then)
        self.sums.setdefault((id(group), array.dtype.str), (group, []))[1].append(made)
        return made

    def finish(self) -> None:
        """Make all sums, in one all-reduce for each group and dtype. Collective."""
        for group, sums in self.sums.values():
            flat = [made.array.reshape(-1) for made in sums]
            if len(flat) > 1 and group.size > 1:
                ends = [0, *accumulate(array.size for array in flat)]
                whole = group.allreduce(backend.module(flat[0]).concatenate(flat), matrix="gradients")
                flat = [whole[first:last] for first, last in pairwise(ends)]
            else:
                flat = [group.allreduce(array, matrix="gradients") for array in flat]
            for made, total in zip(sums, flat, strict=True):
                made.block = made.then(total.reshape(made.array.shape))
        self.sums.clear()


class MadeLater:
    """Array that is made of sums when it is asked for, which is after :meth:`Later.finish`."""

    def __init__(self, make: Callable[[], Array]) -> None:
        self.make = make

    @property
    def block(self) -> Array:
        """The array."""
        return self.make()


def block_of(made: Any) -> Array:
    """Return the array of a sum, of what is made of it, or of a matrix; an array as it is."""
    return getattr(made, "block", made)


def summed_over(
    later: Later | None, group: Comm, array: Array, then: Callable[[Array], Array] = lambda total: total
) -> Any:
    """Return ``then`` of the sum, made now, or the :class:`LaterSum` where it is made later. Collective."""
    if later is not None:
        return later.add(group, array, then)
    return then(group.allreduce(array, matrix="gradients"))

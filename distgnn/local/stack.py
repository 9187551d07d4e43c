"""Lists of ids, one per minibatch, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.backend import Backend
from distgnn.local.csr_rows import owners, row_pointers

Array = Any


class Stack(NamedTuple):
    """Lists of ids, one per minibatch: list b is ``ids[bounds[b]:bounds[b + 1]]``; both int64.

    Attributes:
        ends: the bounds once more, on the host; None where they are there anyway, or not known there yet.
    """

    ids: Array
    bounds: Array
    ends: Array = None

    @classmethod
    def of(cls, lists: Sequence[Array], on: Backend | None = None) -> Stack:
        """Stack lists on this backend, whose arrays or the host's are given; default: the host."""
        on = on or backend.get("numpy")
        ids = on.xp.concatenate([on.xp.zeros(0, np.int64), *(on.asarray(part, np.int64) for part in lists)])
        return cls.cut(ids, row_pointers(np.array([len(part) for part in lists], np.int64)))

    @classmethod
    def cut(cls, ids: Array, bounds: Array) -> Stack:
        """Stack ids where they are, with bounds that are on the host."""
        return cls(ids, backend.of(ids).asarray(bounds), bounds)

    @property
    def slices(self) -> list[slice]:
        """The places of the lists among the ids."""
        ends = (self.bounds if self.ends is None else self.ends).tolist()
        return [slice(first, last) for first, last in pairwise(ends)]

    @property
    def arrays(self) -> tuple[Array, Array]:
        """Bounds and ids."""
        return self.bounds, self.ids

    @property
    def sizes(self) -> Array:
        """The number of ids of each minibatch."""
        return self.bounds[1:] - self.bounds[:-1]

    @property
    def owners(self) -> Array:
        """The minibatch of each id."""
        return owners(self.sizes, len(self.ids))

    def extended(self, added: Stack) -> Stack:
        """Append to every list the one of `added`."""
        ids = np.empty(len(self.ids) + len(added.ids), np.int64)
        ids[np.arange(len(self.ids)) + np.repeat(added.bounds[:-1], self.sizes)] = self.ids
        ids[np.arange(len(added.ids)) + np.repeat(self.bounds[1:], added.sizes)] = added.ids
        return Stack(ids, self.bounds + added.bounds)

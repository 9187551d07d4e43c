"""The processes that share a store. `Team` is the case of one process."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from distgnn.comm.group import Comm

T = TypeVar("T")


class Team:
    """A team of one process, without MPI, with the methods of `write.ranks.Ranks`."""

    rank, size = 0, 1

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run local work; an error of any rank is raised on all. Collective."""
        yield

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise DisagreementError on every rank unless all give equal facts. Collective."""

    def gather_objects(self, value: T) -> list[T]:
        """Gather the small values of all ranks. Collective."""
        return [value]

    def swap(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send `arrays[r]`, all of one dtype, to rank r; return what came, by rank. Collective."""
        return list(arrays)

    def bcast(self, array: Any, root: int, *, matrix: str = "") -> Any:
        """Broadcast the array of rank `root`, in place. Collective."""
        return array

    def total(self, array: np.ndarray) -> np.ndarray:
        """Sum the array over all ranks, in place. Collective."""
        return array

    def deal(self, sizes: Sequence[int] | np.ndarray) -> list[int]:
        """Return the indices of this rank's items, given the sizes of all items."""
        return deal(sizes, self.rank, self.size)


class Alone(Team):
    """A team of one process that reads, with the methods of `Comm`."""

    nodes: Sequence[int] = (0,)  # by rank, the lowest rank on its node

    @contextmanager
    def alike(self, wanted: Any) -> Iterator[Alone]:
        """Make a group of the ranks that give the same object. Collective."""
        yield self

    def share(self, thing: T, root: int = 0) -> T:
        """Give a small Python object of rank ``root`` to every rank. Collective."""
        return thing


def deal(sizes: Sequence[int] | np.ndarray, rank: int, ranks: int) -> list[int]:
    """Return the indices of a rank's items: the largest is dealt first, each to the least loaded rank."""
    loads = [(0, owner) for owner in range(ranks)]
    mine = []
    for index in np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist():
        load, owner = loads[0]
        heapq.heapreplace(loads, (load + int(sizes[index]) + 1, owner))  # 1, as an empty file is work too
        if owner == rank:
            mine.append(index)
    return sorted(mine)


def shared_out(
    team: Comm | Team, sizes: Mapping[str, int], work: Callable[[list[str]], list[T]]
) -> list[T]:  # fmt: skip
    """Share the files out by size, call `work` with this rank's names, and gather all results. Collective."""
    names, done = list(sizes), []
    with team.together():
        done = work([names[index] for index in deal([*sizes.values()], team.rank, team.size)])
    return list(itertools.chain.from_iterable(team.gather_objects(done)))

"""Those who read or write a store together: here, a process alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Team:
    """A process alone, without MPI: the methods of a Comm for reading, and of `write.ranks.Ranks`."""

    rank, size = 0, 1

    @contextmanager
    def together(self) -> Iterator[None]:
        """Local work: an error of any rank is raised on all. Collective."""
        yield

    def gather_objects(self, value: T) -> list[T]:
        """The small values of all ranks. Collective."""
        return [value]

    def bcast(self, array: Any, root: int, *, matrix: str = "") -> Any:
        """The array of rank `root`, in place. Collective."""
        return array

    def total(self, array: np.ndarray) -> np.ndarray:
        """The sum over all ranks, in place. Collective."""
        return array

    def deal(self, sizes: Sequence[int] | np.ndarray) -> list[int]:
        """This rank's indices of things of these sizes: the largest first, each to who has least so far."""
        loads = [(0, rank) for rank in range(self.size)]
        mine = []
        for index in np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist():
            load, rank = loads[0]
            heapq.heapreplace(loads, (load + int(sizes[index]) + 1, rank))  # 1, as an empty file is work too
            if rank == self.rank:
                mine.append(index)
        return sorted(mine)

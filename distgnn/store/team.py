"""Those who read or write a store together: here, a process alone."""

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
    """A process alone, without MPI: the methods of a Comm for reading, and of `write.ranks.Ranks`."""

    rank, size = 0, 1

    @contextmanager
    def together(self) -> Iterator[None]:
        """Local work: an error of any rank is raised on all. Collective."""
        yield

    def agree(self, facts: Mapping[str, Any]) -> None:
        """DisagreementError on every rank unless all give equal facts. Collective."""

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
        """This rank's indices of things of these sizes."""
        return deal(sizes, self.rank, self.size)


def deal(sizes: Sequence[int] | np.ndarray, rank: int, ranks: int) -> list[int]:
    """A rank's indices of things of these sizes: the largest first, each to who has least so far."""
    loads = [(0, one) for one in range(ranks)]
    mine = []
    for index in np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist():
        load, one = loads[0]
        heapq.heapreplace(loads, (load + int(sizes[index]) + 1, one))  # 1, as an empty file is work too
        if one == rank:
            mine.append(index)
    return sorted(mine)


def shared_out(
    team: Comm | Team, sizes: Mapping[str, int], work: Callable[[list[str]], list[T]]
) -> list[T]:  # fmt: skip
    """What `work` makes of the names of all files of these sizes, each rank doing a share. Collective."""
    names, done = list(sizes), []
    with team.together():
        done = work([names[index] for index in deal([*sizes.values()], team.rank, team.size)])
    return list(itertools.chain.from_iterable(team.gather_objects(done)))

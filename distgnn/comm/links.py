"""The MPI communicators of a grid, which are replaced after an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from distgnn.comm.notices import Notices
from distgnn.comm.waiting import Wait
from distgnn.comm.watched import Watched, watched

Derive = Callable[[Any], Any]


class Links:
    """The communicators of a grid's groups, each derived from one of the whole grid.

    Ranks that fail at different places of a product differ in the messages under way, the tags reserved and
    the collectives begun. Nothing of these may meet what follows, so after an error the next operation makes
    new communicators for all groups, collectively over the grid. The old communicators stay, as MPI may still
    move their messages. A rank that fails notifies all others: a rank that did not fail raises an error where
    it waits, in that product or in the next.

    Args:
        mpi: the grid's communicator. Collective.

    Attributes:
        current: the grid's communicator at present.
        broken: whether an operation has failed since the communicators were made, as far as this rank knows.
        notices: of ranks that failed or left; None on one rank, and without MPI.
    """

    def __init__(self, mpi: Any) -> None:
        several = isinstance(mpi, MPI.Intracomm) and mpi.Get_size() > 1
        # No operation uses this communicator, so an error leaves nothing in it but notices.
        self.notices = Notices(mpi.Dup()) if several else None
        self.broken = False
        self._groups: list[tuple[str, Sequence[int], Derive, Callable[[Any], None]]] = []
        self.everybody = range(mpi.Get_size())
        self.current = self._noted(mpi, "world", self.everybody, 0)

    def join(self, name: str, ranks: Sequence[int], derive: Derive, connect: Callable[[Any], None]) -> None:
        """Tell a group its communicator, by ``connect``, now and after each error.

        Args:
            name: of the group; ranks: its ranks in the grid.
            derive: makes it of the grid's communicator. Collective over the grid.
        """
        if self.broken:
            self.renew()
        self._groups.append((name, ranks, derive, connect))
        self._connect(len(self._groups))

    def _connect(self, index: int) -> None:
        name, ranks, derive, connect = self._groups[index - 1]
        connect(self._noted(derive(self.current), name, ranks, index))

    def _noted(self, mpi: Any, name: str, ranks: Sequence[int], index: int) -> Any:
        """Return the communicator of a group as one whose collectives the notices count."""
        noted = watched(mpi, name)
        if isinstance(noted, Watched) and self.notices is not None and noted.notices is None:
            noted.notices, noted.ranks, noted.index = self.notices, ranks, index
        return noted

    def fail(self) -> None:
        """Note that an operation has failed on this rank, and notify the others."""
        if self.notices is not None and not self.broken:
            self.broken = True
            self.notices.send_failure()

    def renew(self) -> None:
        """Make new communicators for all groups. Collective over the grid."""
        assert self.notices is not None
        with Wait("renewal of communicators", "world", check=self.notices.check_renewal):
            renewed = self.notices.mpi.Dup()
        self.broken = False
        self.notices.renewed()
        self.current = self._noted(renewed, "world", self.everybody, 0)
        for index in range(1, len(self._groups) + 1):
            self._connect(index)

    def free(self) -> None:
        """Give the communicator of notices back to MPI, unless notices may be left in it. Collective."""
        if self.notices is not None:
            self.notices.free()

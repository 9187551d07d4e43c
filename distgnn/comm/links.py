"""The MPI communicators of a grid, which are replaced after an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from distgnn.errors import PeerError

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
    """

    def __init__(self, mpi: Any) -> None:
        self.current = mpi
        # No operation uses this communicator, so an error leaves nothing in it but notices.
        self.spare = mpi.Dup() if isinstance(mpi, MPI.Comm) and mpi.Get_size() > 1 else None
        self.broken = False
        self.generation = 0  # how often the communicators were made anew
        self._culprit: int | None = None  # the rank that failed first, as another one said
        self._notices: list[MPI.Request] = []
        self._groups: list[tuple[Derive, Callable[[Any], None]]] = []

    def join(self, derive: Derive, connect: Callable[[Any], None]) -> None:
        """Tell a group its communicator, by ``connect``, now and after each error.

        Args:
            derive: makes it of the grid's communicator. Collective over the grid.
        """
        if self.broken:
            self.renew()
        self._groups.append((derive, connect))
        connect(derive(self.current))

    def fail(self) -> None:
        """Note that an operation has failed on this rank, and notify the others."""
        if self.spare is not None and not self.broken:
            self.broken, own = True, self.spare.Get_rank()
            notice = self.generation, own if self._culprit is None else self._culprit
            others = [rank for rank in range(self.spare.Get_size()) if rank != own]
            self._notices += [self.spare.isend(notice, rank) for rank in others]

    def check(self) -> None:
        """Receive notices of ranks that have failed.

        Raises:
            PeerError: a rank has failed since the communicators were made.
        """
        status = MPI.Status()
        while self.spare is not None and self.spare.Iprobe(status=status):
            generation, culprit = self.spare.recv(source=status.Get_source())
            if generation == self.generation:
                self._culprit = culprit
                raise PeerError(f"rank {culprit} failed in an operation that this rank takes part in")

    def renew(self) -> None:
        """Make new communicators for all groups. Collective over the grid."""
        assert self.spare is not None
        self.current = self.spare.Dup()
        self.broken, self.generation, self._culprit = False, self.generation + 1, None
        for derive, connect in self._groups:
            connect(derive(self.current))

    def free(self) -> None:
        """Give the spare communicator back to MPI, unless notices may be left in it. Collective."""
        if self.spare is not None and not self.generation:
            self.spare.Free()

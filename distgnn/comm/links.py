"""The MPI communicators of a grid, which are replaced after an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from distgnn.comm.session import Session
from distgnn.comm.watched import Watched, watched

Derive = Callable[[Any], Any]


class Group(Protocol):
    """A user of a communicator of a grid."""

    def connect(self, mpi: Any) -> None:
        """Use this communicator from now on."""

    def end(self) -> None:
        """End what stands on the communicator. Collective."""


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
        session: of the program's communicator; None on one rank, and without MPI.
        gone: whether this rank has dropped the grid.
    """

    def __init__(self, mpi: Any) -> None:
        self.session: Session | None = mpi.session if isinstance(mpi, Watched) else None
        self.current, self.gone = mpi, False
        self._groups: list[tuple[str, Derive, Group]] = []
        self._made: list[Any] = []  # for the groups
        if self.session is not None:
            self.session.enter(self)

    @property
    def broken(self) -> bool:
        """True if an operation has failed since the communicators were made, as far as this rank knows."""
        session = self.session
        return session is not None and (session.broken or self.current.generation != session.generation)

    def join(self, name: str, derive: Derive, group: Group) -> None:
        """Tell a group of this name its communicator, now and after each error.

        ``derive`` makes it of the grid's communicator. Collective over the grid.
        """
        if self.broken:
            self.renew()
        self._groups.append((name, derive, group))
        self._connect(name, derive, group)

    def _connect(self, name: str, derive: Derive, group: Group) -> None:
        self._made.append(watched(derive(self.current), name))
        group.connect(self._made[-1])

    def fail(self) -> None:
        """Note that an operation has failed on this rank, and notify the others."""
        if self.session is not None:
            self.session.fail()

    def renew(self) -> None:
        """Make new communicators for all groups. Collective over the grid."""
        assert self.session is not None
        if self.session.broken:
            self.session.renew()
        self._made.clear()
        self.current = self.session.current.Dup()
        self.session.enter(self)
        for group in self._groups:
            self._connect(*group)

    def drop(self) -> None:
        """Let the communicators be freed when all ranks have dropped the grid, see :meth:`Session.enter`."""
        self.gone = True

    def free(self) -> None:
        """Give the communicators back to MPI. Collective."""
        for _, _, group in self._groups:
            group.end()
        for mpi in self._made:
            mpi.Free()
        self._groups.clear()
        self._made.clear()
        if self.session is not None and self.session.grids.get(self.current.index) is self:
            self.session.grids.pop(self.current.index)

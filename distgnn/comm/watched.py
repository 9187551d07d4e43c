"""Communicators of MPI whose calls end if a rank they wait for has failed or left.

A collective begins without blocking, and its rank looks for notices (see ``notices.py``) while it waits.
Calls without a non-blocking form, such as those on objects, come after a barrier of this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from distgnn import progress
from distgnn.comm import leaving, waiting
from distgnn.comm.interrupts import later
from distgnn.comm.waiting import Wait
from distgnn.errors import PeerError, UserError

if TYPE_CHECKING:
    from distgnn.comm.notices import Index

NON_BLOCKING = ("Barrier", "Bcast", "Allgatherv", "Allreduce", "Reduce", "Reduce_scatter")
OBJECTS = ("bcast", "allgather", "alltoall", "gather", "allreduce")
COMMUNICATORS = ("Dup", "Split", "Split_type")
MESSAGES = ("Send", "Recv", "send")


class Watched(MPI.Intracomm):
    """A communicator whose blocking calls are waits for the watch, see ``waiting.py``.

    Attributes:
        label: the name of the group in the ledger.
        session: in which it was made (see ``session.py``), if any; generation: of its communicators, then;
            index: of the group there; ranks: in the session.
        compare: called with each collective before it begins.
        source: the object that stood for the communicator before.
    """

    label = "all ranks"
    session: Any = None
    generation = 0
    index: Index = ()
    ranks: Sequence[int] = ()
    compare: Callable[[str], object] | None = None
    source: MPI.Intracomm | None = None

    def join(self, session: Any, index: Index, ranks: Sequence[int]) -> None:
        """Enter a session."""
        self.session, self.generation, self.index, self.ranks = session, session.generation, index, ranks
        self._made = 0

    def begin(self, flight: bool = False) -> Callable[[], object] | None:
        """Count a collective, or a flight of messages, and return the check of a wait for it, if any."""
        if self.session is None:
            return None
        self._check_current()
        notices = self.session.notices
        check = notices.check_flight if flight else notices.check
        return partial(check, self.ranks, self.index, notices.begin(self.index))

    def _check_current(self) -> None:
        if self.session is not None and self.generation != self.session.generation:
            raise PeerError("this operation began before an error, after which communicators are others")

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Make a blocking collective call."""
        if self.compare is not None:
            self.compare(name.lower())
        with Wait(name.lower(), self.label) as wait:
            self._check_current()
            parent: Any = super()
            if self.session is None:
                return getattr(parent, name)(*args, **options)
            if name in NON_BLOCKING:
                return self._wait(wait, getattr(parent, f"I{name.lower()}")(*args, **options), self.begin())
            with later():  # what all have come to, all do
                self._wait(wait, parent.Ibarrier(), self.begin())
                return getattr(parent, name)(*args, **options)

    def derive(self, name: str, *args: Any) -> Any:
        """Make another communicator, which belongs to the session, too. Collective."""
        with room():
            made = watched(self.call(name, *args), self.label)
        if self.session is not None and made.Get_size() > 1:
            self._made += 1
            places = leaving.translated(made, range(made.Get_size()), self)
            made.join(self.session, (*self.index, self._made), [self.ranks[place] for place in places])
        return made

    def message(self, name: str, thing: Any, rank: int, *args: Any) -> None:
        """Make a blocking call for one message."""
        with Wait(name.lower(), self.label) as wait:
            start = f"i{name}" if name.islower() else f"I{name.lower()}"
            self._wait(wait, getattr(super(), start)(thing, rank, *args), self._check_of(rank))

    def recv(
        self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None
    ) -> Any:
        """Receive a Python object."""
        messages: list[MPI.Message] = []

        def come() -> bool:
            message = self.improbe(source, tag)
            messages.extend([] if message is None else [message])
            return bool(messages)

        with Wait("recv", self.label):
            progress.wait(come, lambda: False, self._check_of(source) or (lambda: None))
        return messages[0].recv(status)

    def _check_of(self, rank: int) -> Callable[[], object] | None:
        """Return the check of a wait for one rank, or for any."""
        if self.session is None:
            return None
        self._check_current()
        ranks = self.ranks if rank == MPI.ANY_SOURCE else [self.ranks[rank]]
        return partial(self.session.notices.check_flight, ranks, self.index, 1 << 62)

    def _wait(self, wait: Wait, request: Any, check: Callable[[], object] | None) -> None:
        from distgnn.comm.flight import Flight  # which imports NumPy

        if request.Test():
            return
        failed = (lambda: None) if self.session is None else self.session.fail
        with Flight(self, wait.operation, self.label, "", failed=failed) as flight:
            flight.follow(request)
            done = lambda: not flight.requests  # noqa: E731
            try:
                has_core = self.session is None or self.session.has_core
                if not (has_core and progress.soon(done, flight.look)):
                    progress.wait(done, flight.look, check or (lambda: None))
            except PeerError as error:
                raise PeerError(f"waits in vain in {wait}: {error}") from None

    def Free(self) -> None:
        """Give the communicator back to MPI, unless messages may be left in it after an error. Collective."""
        session = self.session
        if session is None or (self.generation == session.generation and not session.broken):
            if session is not None:
                session.notices.calls.pop(self.index, None)
            super().Free() if self.source is None else self.source.Free()


for _name in (*NON_BLOCKING, *OBJECTS):
    setattr(Watched, _name, partialmethod(Watched.call, _name))
for _name in COMMUNICATORS:
    setattr(Watched, _name, partialmethod(Watched.derive, _name))
for _name in MESSAGES:
    setattr(Watched, _name, partialmethod(Watched.message, _name))


@contextmanager
def room() -> Iterator[None]:
    """Raise UserError where MPI has no room for a communicator that is made inside."""
    try:
        yield
    except MPI.Exception as error:
        if not any(words in str(error) for words in ("communicators", "context ID")):
            raise
        problem = "communicators: MPI has no room for more; call free() of grids that are done with, "
        raise UserError(f"{problem}as run.grid.free()") from None


_kinds: dict[type[MPI.Intracomm], type[Watched]] = {MPI.Intracomm: Watched}


def watched(mpi: Any, label: str = "all ranks") -> Any:
    """Return the communicator as a :class:`Watched` one, if it is of MPI and has several ranks."""
    if not isinstance(mpi, MPI.Intracomm) or mpi.Get_size() == 1:
        return mpi
    waiting.start()
    if not isinstance(mpi, Watched):
        source, mpi = mpi, _kind(type(mpi))(mpi)
        mpi.source = source
    mpi.label = label
    return mpi


def _kind(base: type[MPI.Intracomm]) -> type[Watched]:
    """Return the class of communicators of this kind that are watched."""
    if base not in _kinds:
        _kinds[base] = type("Watched", (Watched, base), {})
    return _kinds[base]

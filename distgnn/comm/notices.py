"""Notices by which the ranks of a session learn that another one has failed or left the program.

A notice says how many collectives its rank has begun on each group of the session. A rank that waits in a
later collective waits in vain. A rank that has waited for long *asks*: ranks that wait, too, answer by such a
notice, and it can name those that have not come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from mpi4py import MPI

from distgnn import progress
from distgnn.comm import launch, leaving, waiting
from distgnn.comm.waiting import Wait
from distgnn.errors import PeerError

#: The index of the meetings of a session among its groups.
MEETINGS = ("meetings",)
Index = tuple[object, ...]


class Notice(NamedTuple):
    """The message of a rank that takes no further part in the communicators of a generation.

    Attributes:
        generation: of the communicators.
        calls: collectives begun on each group.
        failure: the first failure of the generation, in words; empty if the sender has left.
        sender: rank and host, in words.
        meeting: where the sender waits for those that are not there, by number; 0: nowhere.
        waits: the sender takes part, and "asks" who has come to where it waits, or "answers".
    """

    generation: int
    calls: Mapping[Index, int]
    failure: str
    sender: str
    meeting: int = 0
    waits: str = ""


class Notices:
    """The notices of one session, in a communicator that nothing else uses.

    Args:
        mpi: the communicator, of this object from now on.

    Attributes:
        generation: how often the communicators of the session were made anew.
        calls: collectives that this rank has begun on each group, in this generation.
        failure: the first failure of this generation that this rank knows, in words; empty without one.
        met: whether all ranks have come to :meth:`part`, so that nobody has to be told that this one left.
    """

    def __init__(self, mpi: Any) -> None:
        self.mpi, self.rank = mpi, mpi.Get_rank()
        self.generation = 0
        self.calls: dict[Index, int] = {}
        self.failure, self.met = "", False
        self._received: dict[int, Notice] = {}
        self._sends: list[Any] = []
        self._waiting: dict[int, Notice] = {}
        self._askers: set[int] = set()
        self._asked: Wait | None = None
        leaving.enter(self)

    def begin(self, index: Index) -> int:
        """Count a collective on the group of this index, and return its number."""
        self.calls[index] = number = self.calls.get(index, 0) + 1
        return number

    def renewed(self) -> None:
        """Begin another generation."""
        self.generation, self.failure = self.generation + 1, ""
        self.calls = {}

    def send_failure(self) -> None:
        """Notify all others that this rank takes no further part in this generation."""
        self._send(self.failure or f"{launch.where()} failed in an operation that this rank takes part in")

    def remind(self, said: str, meeting: int) -> None:
        """Notify the others that this rank has come to a meeting, because of an error or early."""
        self._send(said, meeting)

    def send_departure(self) -> None:
        """Notify all others that this rank has left."""
        self._send("")

    def _send(self, failure: str, meeting: int = 0, waits: str = "", to: Iterable[int] | None = None) -> None:
        notice = Notice(self.generation, dict(self.calls), failure, launch.where(), meeting, waits)
        others = [rank for rank in range(self.mpi.Get_size()) if rank != self.rank]
        self._sends += [self.mpi.isend(notice, rank) for rank in (others if to is None else to)]

    def _say_where(self, ranks: Sequence[int], index: Index, number: int) -> None:
        """Ask the others where they wait, once in a long wait; answer those that have asked."""
        if (wait := waiting.current()) is None:
            return
        wait.absent = partial(self._absent, ranks, index, number)
        if wait.overdue() and wait is not self._asked:
            self._asked = wait
            self._send("", waits="asks")
        elif self._askers:
            self._send("", waits="answers", to=self._askers)
        self._askers = set()

    def _absent(self, ranks: Sequence[int], index: Index, number: int) -> list[int]:
        """List the ranks of the job that have not said that they have begun a collective."""
        said = [(rank, notice) for rank, notice in [*self._waiting.items()] if self._binds(notice)]
        there = {rank for rank, notice in said if notice.calls.get(index, 0) >= number}
        return leaving.ranks_of_job(self.mpi, [rank for rank in ranks if rank not in there | {self.rank}])

    def check_flight(self, ranks: Sequence[int], index: Index, number: int) -> None:
        """Receive notices, while this rank waits for messages.

        Raises:
            PeerError: a rank of the session has failed in this generation, or one of the group has left, see
                :meth:`check`.
        """
        self._receive()
        binding = filter(self._binds, [*self._received.values()])
        failures = [self.failure, *(notice.failure for notice in binding)]
        self.failure = next(filter(None, failures), "")
        if self.failure:
            raise PeerError(self.failure)
        self.check(ranks, index, number)

    def _binds(self, notice: Notice) -> bool:
        """Tell whether a notice is of what this rank is in, not of a meeting that is over."""
        late = not notice.meeting or self.calls.get(MEETINGS, 0) < notice.meeting
        return notice.generation == self.generation and late

    def check(self, ranks: Sequence[int], index: Index, number: int) -> None:
        """Receive notices, while this rank waits in a collective.

        Args:
            ranks: the ranks in the session of the group; index: of the group; number: of the collective.

        Raises:
            PeerError: a rank of the group has failed or left before it began the collective.
        """
        self._receive()
        for rank, notice in list(self._received.items()):
            if rank in ranks and self._binds(notice) and notice.calls.get(index, 0) < number:
                self.failure = notice.failure or f"{notice.sender} has left the program without taking part"
                raise PeerError(self.failure)
        self._say_where(ranks, index, number)

    def check_meeting(self, number: int) -> None:
        """Receive notices, while this rank waits in a meeting, to which ranks that failed come.

        Raises:
            PeerError: a rank has left before.
        """
        self._receive()
        for notice in list(self._received.values()):
            if not notice.failure and notice.calls.get(MEETINGS, 0) < number:
                raise PeerError(f"{notice.sender} has left the program without taking part")
        self._say_where(range(self.mpi.Get_size()), MEETINGS, number)

    def check_joined(self, mpi: Any) -> None:
        """Receive notices, while this rank waits in the first call on another communicator.

        Raises:
            PeerError: a rank of that communicator has left.
        """
        if self.mpi:
            self._receive()
        for rank, notice in list(self._received.items()) if self.mpi else ():  # which a program may free
            there = leaving.translated(self.mpi, [rank], mpi) != [MPI.UNDEFINED]
            if there and not notice.failure:
                raise PeerError(f"{notice.sender} has left the program without taking part")

    def _receive(self) -> None:
        while (message := self.mpi.improbe()) is not None:  # the watch may look at the same time
            status = MPI.Status()
            notice: Notice = message.recv(status)
            if notice.waits:
                self._waiting[status.Get_source()] = notice
                self._askers |= {status.Get_source()} if notice.waits == "asks" else set()
                continue
            self._received[status.Get_source()] = notice
            if notice.failure and not notice.meeting and notice.generation == self.generation:
                self.failure = notice.failure

    def part(self) -> Iterator[bool]:
        """Give False until this rank may leave the communicator for good. Collective.

        The ranks meet twice here. After the first time a rank sends no more notices, and after the second
        time none is on its way to it. A rank in ``MPI_Finalize`` takes no messages in; they would fill the
        queue of their sender, and what others wait for would stay behind them.
        """
        yield from self._meeting()
        self.met = True
        while not MPI.Request.Testall(self._sends):
            self._receive()
            yield False
        yield from self._meeting()

    def _meeting(self) -> Iterator[bool]:
        barrier = self.mpi.Ibarrier()
        while not barrier.Test():
            self._receive()
            yield False

    def free(self) -> None:
        """Give the communicator back to MPI, unless notices may be left in it. Collective.

        A rank that has left parts from this one likewise.
        """
        parting = self.part()
        with Wait("free", "all ranks"):
            progress.wait(lambda: next(parting, True), lambda: False)
        leaving.forget(self)
        if not self.generation:
            self.mpi.Free()

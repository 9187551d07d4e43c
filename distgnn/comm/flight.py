"""Messages under way: the requests of one operation, what happens when each completes, and who drives them.

MPI moves non-blocking messages only while somebody calls it, so a flight is driven by whoever computes (see
``progress.py``) and by whoever waits. ``relay.py``, ``exchange.py`` and ``sums.py`` say what is sent and
received, and in which order. A look costs in proportion to the messages under way, of which there are few;
each completion costs constant work.

Every flight ends in one of two ways. An operation that succeeds completes all its messages. An operation that
fails cancels its receives and *abandons* the messages that remain: MPI may read and write their memory at any
later time, so the flight keeps that memory, and no workspace lends it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from distgnn import ledger, progress
from distgnn.arrays import workspace
from distgnn.arrays.backend import DONE, Mark
from distgnn.comm.communicator import Communicator
from distgnn.comm.waiting import Wait

Array = Any

_TAGS = 32768  # MPI promises as many
_under_way: dict[int, Flight] = {}  # every flight that has had a message and has not ended, by its id


def under_way() -> list[Flight]:
    """List the flights with messages that MPI may still move: not ended, or abandoned after an error."""
    return [flight for flight in list(_under_way.values()) if flight.incomplete()]


class Flight(AbstractContextManager["Flight"]):
    """The messages of one operation that this rank sends and receives, and the device work they wait for.

    A context, which closes the flight.

    Args:
        mpi: the group's communicator.
        operation, group, matrix: what the ledger calls them.
        step: called at each look, to start what can be started.
        computed: gives a mark of what a device has been given to compute; None on a host.
        failed: called when the operation fails; check: called in long waits, to raise if another rank failed.
        naps: leave the core to others in long waits.
    """

    def __init__(
        self, mpi: Communicator, operation: str, group: str, matrix: str,
        step: Callable[[], object] = lambda: None, computed: Callable[[], Mark] | None = None,
        failed: Callable[[], object] = lambda: None, check: Callable[[], object] = lambda: None,
        naps: bool = True,
    ) -> None:  # fmt: skip
        self.mpi, self.step, self.computed, self.failed, self.check = mpi, step, computed, failed, check
        self.naps = naps
        self.operation, self.group, self.matrix = operation, group, matrix
        self._looking = False
        self.requests: list[Any] = []  # of MPI, or of a communicator of another kind
        self._then: list[tuple[bool, Callable[[], object]]] = []  # of each: is it a receive, what follows
        self.marks: list[tuple[Mark, Callable[[], object]]] = []  # work of the device, what follows

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(failed=kind is not None)

    def receive(self, array: Array, source: int, tag: int, then: Callable[[], object]) -> None:
        """Begin to receive into an array of at most ``count_limit`` elements; then ``then()``."""
        self.follow(self.mpi.Irecv(array, source, tag % _TAGS), then, receive=True)

    def send(self, array: Array, destination: int, tag: int, then: Callable[[], object]) -> None:
        """Begin to send such an array."""
        self.follow(self.mpi.Isend(array, destination, tag % _TAGS), then)

    def follow(self, request: Any, then: Callable[[], object] = lambda: None, receive: bool = False) -> None:
        """Drive a request from now on, be it of a message or of a collective; then ``then()``."""
        _under_way[id(self)] = self
        self.requests.append(request)
        self._then.append((receive, then))

    def after(self, mark: Mark, then: Callable[[], object]) -> None:
        """Call ``then()`` when a device has done what a mark stands for; now, if it has."""
        if mark():
            then()
        else:
            self.marks.append((mark, then))

    def swap(self, receives: Mapping[int, Array], sends: Mapping[int, Array], tag: int) -> Iterator[None]:
        """Receive from and send to ranks; yield until all messages are complete."""
        left = len(receives) + len(sends)

        def done() -> None:
            nonlocal left
            left -= 1

        for rank, array in receives.items():
            self.receive(array, rank, tag, done)
        for rank, array in sends.items():
            self.send(array, rank, tag, done)
        while left:
            yield

    def until(self, done: Callable[[], bool]) -> None:
        """Drive this flight, and all others, until something is the case.

        As long as a device has something to compute, this is no wait for messages.
        """
        if not done() and not (self.computed and self._computed_first(done)):
            with (
                ledger.timed("comm", self.operation, self.group, self.matrix),
                Wait(self.operation, self.group, self.matrix),
            ):
                progress.wait(done, self.look, self.check, self.naps)

    @contextmanager
    def driven(self, really: bool = True) -> Iterator[None]:
        """Let the computations inside drive the messages, unless ``really`` is False."""
        if really:
            progress.register(self.drive)
        try:
            yield
        finally:
            progress.unregister(self.drive)

    def waited(self, nbytes: int = -1) -> None:
        """Tell the ledger that so many of the bytes charged, or all, are there."""
        if nbytes:
            ledger.waited(self.operation, self.group, self.matrix, nbytes)

    def sent(self, nbytes: int) -> None:
        """Tell the ledger that a message of so many bytes is to be sent."""
        ledger.sent(self.operation, self.group, self.matrix, nbytes)

    def landed(self, since: float, nbytes: int) -> None:
        """Tell the ledger of a transfer of so many bytes that ends now."""
        ledger.flight(self.operation, self.group, since, time.perf_counter(), nbytes, self.matrix)

    def close(self, failed: bool) -> None:
        """End the flight: nothing drives it any more.

        Args:
            failed: whether the operation ends by an error. Messages under way are then abandoned.

        Raises:
            RuntimeError: messages are under way though nothing failed. They are abandoned, too.
        """
        progress.unregister(self.drive)
        progress.unregister(self.drive, in_waits=True)
        self.step = lambda: None  # whose object has this flight: without it, both go with their last use
        forgotten = 0 if failed else len(self.requests)
        if failed or forgotten:
            self._abandon()
            self.failed()
        if not self.requests:
            _under_way.pop(id(self), None)
        if forgotten:
            operation = f"{self.operation} of {self.matrix} over {self.group}"
            raise RuntimeError(f"{operation} ended while {forgotten} of its messages were under way")

    def incomplete(self) -> bool:
        """Tell whether MPI may still move a message of this flight."""
        if not all(request.Test() for request in self.requests if request):
            return True
        _under_way.pop(id(self), None)
        return False

    def _abandon(self) -> None:
        """Cancel the receives. Keep the memory of the other messages, and have no workspace lend it again."""
        for request, (receive, _) in zip(self.requests, self._then, strict=True):
            if receive and request:  # MPI sets a request to null when a look at it has failed
                request.Cancel()
        self.requests = [request for request in self.requests if request and not request.Test()]
        self._then = [(False, lambda: None)] * len(self.requests)
        if self.requests:
            workspace.retire_all()

    def drive(self) -> None:
        """Look once at the messages."""
        with ledger.timed("comm", self.operation, self.group, self.matrix):
            self.look()

    def look(self) -> bool:
        """See what has completed and start what can be started. Return whether anything has completed.

        A step that compiles a kernel may wait for another rank that does, and look at all messages but these.
        """
        if self._looking:
            return False
        self._looking = True
        try:
            return self._go_on()
        finally:
            self._looking = False

    def _go_on(self) -> bool:
        passed = self.marks and self._passed()
        completed = self.requests[0].Testsome(self.requests) if self.requests else None
        if completed:
            following = [self._then[index][1] for index in completed]
            for index in sorted(completed, reverse=True):  # the last of the list takes the place
                self.requests[index], self._then[index] = self.requests[-1], self._then[-1]
                self.requests.pop(), self._then.pop()
            for then in following:
                then()
        self.step()
        return bool(completed or passed)

    def _computed_first(self, done: Callable[[], bool]) -> bool:
        """Drive messages until a device has computed all it was given, or ``done()``. Return ``done()``."""
        computed = self.computed() if self.computed else DONE
        progress.watch(lambda: computed() or done(), self.look)
        return done()

    def _passed(self) -> bool:
        """Go on with what waited for the device. Return whether anything has."""
        marks, self.marks = self.marks, []
        for mark, then in marks:
            self.after(mark, then)
        return len(self.marks) < len(marks)

"""Messages under way: the requests of one operation, what happens when each completes, and who drives them.

MPI moves non-blocking messages only while somebody calls it, so a flight is driven by whoever computes (see
``progress.py``) and by whoever waits. ``relay.py``, ``exchange.py`` and ``sums.py`` say what is sent and
received, and in which order. A look costs in proportion to the messages under way, of which there are few;
each completion costs constant work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from distgnn import ledger, progress
from distgnn.arrays.backend import DONE, Mark

Array = Any

_TAGS = 32768  # MPI promises as many
_abandoned: list[Flight] = []  # requests keep the memory that MPI may still use


class Flight:
    """The messages of one operation that this rank sends and receives, and the work of a device that they
    wait for.

    Args:
        mpi: the group's communicator.
        operation, group, matrix: what the ledger calls them.
        step: called at each look, to start what can be started.
        computed: gives a mark of what a device has been given to compute; None on a host.
    """

    def __init__(
        self, mpi: MPI.Intracomm, operation: str, group: str, matrix: str,
        step: Callable[[], object] = lambda: None, computed: Callable[[], Mark] | None = None,
    ) -> None:  # fmt: skip
        self.mpi, self.step, self.computed = mpi, step, computed
        self.testsome = getattr(mpi, "Testsome", MPI.Request.Testsome)  # messages of a dry run are others
        self.operation, self.group, self.matrix = operation, group, matrix
        self.requests: list[MPI.Request] = []
        self._then: list[tuple[bool, Callable[[], object]]] = []  # of each: is it a receive, what follows
        self.marks: list[tuple[Mark, Callable[[], object]]] = []  # work of the device, what follows

    def receive(self, array: Array, source: int, tag: int, then: Callable[[], object]) -> None:
        """Begin to receive into an array of at most ``count_limit`` elements; then ``then()``."""
        self.requests.append(self.mpi.Irecv(array, source, tag % _TAGS))
        self._then.append((True, then))

    def send(self, array: Array, destination: int, tag: int, then: Callable[[], object]) -> None:
        """Begin to send such an array."""
        self.requests.append(self.mpi.Isend(array, destination, tag % _TAGS))
        self._then.append((False, then))

    def after(self, mark: Mark, then: Callable[[], object]) -> None:
        """``then()`` when a device has done what a mark stands for; now, if it has."""
        if mark():
            then()
        else:
            self.marks.append((mark, then))

    def swap(self, receives: Mapping[int, Array], sends: Mapping[int, Array], tag: int) -> Iterator[None]:
        """Receive from and send to ranks; yields until all is through."""
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
        """Drive this flight, and all others, until something is the case. As long as a device has something
        to compute, this is no wait for messages.
        """
        if not done() and not (self.computed and self._computed_first(done)):
            with ledger.timed("comm", self.operation, self.group, self.matrix):
                progress.wait(done, self._look)

    @contextmanager
    def driven(self, really: bool = True) -> Iterator[None]:
        """Around computations, which drive the messages, unless told otherwise."""
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

    def close(self) -> None:
        """The end, be it by an error: nothing is driven any more, what is still under way is let go."""
        progress.unregister(self.drive)
        for request, (receive, _) in zip(self.requests, self._then, strict=True):
            if receive:
                request.Cancel()
                request.Test()  # if nothing has come for it, its memory is free
        if self.requests:
            _abandoned.append(self)

    def drive(self) -> None:
        """Look once at the messages."""
        with ledger.timed("comm", self.operation, self.group, self.matrix):
            self._look()

    def _look(self) -> bool:
        """See what has completed and start what can be. Has anything been completed?"""
        passed = self.marks and self._passed()
        completed = self.testsome(self.requests) if self.requests else None
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
        """Drive messages until all that a device was given is computed, or something is the case. Is it?"""
        computed = self.computed() if self.computed else DONE
        progress.watch(lambda: computed() or done(), self._look)
        return done()

    def _passed(self) -> bool:
        """Go on with what waited for the device. Has anything?"""
        marks, self.marks = self.marks, []
        for mark, then in marks:
            self.after(mark, then)
        return len(self.marks) < len(marks)

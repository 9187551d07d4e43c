"""Work queued on streams: what comes after what, which bytes it touches, and what is in no order.

The work itself is done at once, in NumPy. What is kept is what a GPU would promise: work of one stream runs
in turn, events order streams, and the host knows of an end only where it waited. A clock says how much of
every stream is known to be over. Two pieces of work that touch the same bytes, one of them writing, with
neither known to be over before the other begins, are a hazard. So is memory that MPI is given too early.
"""

from __future__ import annotations

import collections
import itertools
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Clock = dict[int, int]
"""By stream, the number of its latest work that is known to be over."""

Span = tuple[Any, int, int]
"""Memory, and the addresses of the first byte in it and behind the last one."""

OWN_FRAMES = ("/distgnn/", "/tests/")
MPI_CALL = -1  # in place of a stream


@dataclass
class Work:
    """A piece of work, or a call of MPI.

    Attributes:
        name: of the kernel, function, copy or call; stream: its ``ptr``; number: its place in the stream.
        after: what was known to be over when it could begin.
        ended: of a call of MPI, how much work had been logged when the program saw its end.
    """

    name: str
    stream: int
    number: int
    after: Clock
    ended: int | None = None


@dataclass
class Access:
    """Bytes that a piece of work touches."""

    start: int
    end: int
    writes: bool
    work: Work

    def meets(self, start: int, end: int, writes: bool) -> bool:
        return self.start < end and start < self.end and (writes or self.writes)


@dataclass
class Flight(Access):
    """Bytes that MPI may touch until its request is complete."""

    request: Any


@dataclass
class Queue:
    """State of one stream."""

    ptr: int
    blocking: bool = True
    clock: Clock = field(default_factory=dict)  # what comes before work queued now, own work included
    count: int = 0


class Device:
    """All streams, and the host's knowledge of them.

    Attributes:
        counts: launches, of which a graph's is one; apart from these what was "captured" and "replayed" in
            graphs; synchronizations, polls, copies and bytes to the host and to the device, and
            allocations of pinned memory.
        launches, synchronizations: the same by name. log: all work and calls of MPI in the order of the host.
        hazards: descriptions of what was in no order.
    """

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {0: Queue(0)}
        self.host: Clock = {}
        self.destroyed: set[int] = set()  # streams
        self.numbers = itertools.count(1)
        self.flights: list[Flight] = []
        self.announced = False  # MPI's use of a buffer was told, and need not be guessed from its address
        self.wait: Callable[[Callable[[], bool]], None] = spin  # what a host does while the device waits
        self.capture: Any = None  # what a stream captures (see _graphs.py)
        self.replaying = False  # a graph
        self.number = 0  # of the current one, of several
        self.reset()

    def reset(self) -> None:
        """Forget what happened; all that was queued is over. So are streams that nobody has any more: clocks
        would grow with them from test to test.
        """
        self.queues = {ptr: queue for ptr, queue in self.queues.items() if ptr not in self.destroyed}
        self.destroyed.clear()
        self.host = {ptr: queue.count for ptr, queue in self.queues.items()}
        for ptr, queue in self.queues.items():
            queue.clock = {ptr: queue.count}
        self.flights.clear()
        self.capture, self.replaying = None, False
        self.late: dict[tuple[int, int], list[list[Access]]] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self.launches: collections.Counter[str] = collections.Counter()
        self.synchronizations: collections.Counter[str] = collections.Counter()
        self.log: list[Work] = []
        self.hazards: list[str] = []

    # -- streams ---------------------------------------------------------------------------------------------

    def stream(self, blocking: bool) -> Queue:
        """Make a new stream; ``blocking``: it takes turns with stream 0."""
        queue = Queue(next(self.numbers), blocking)
        self.queues[queue.ptr] = queue
        return queue

    def queue(self, name: str, stream: int, reads: Iterable[Span] = (), writes: Iterable[Span] = ()) -> Work:
        """Queue work that touches these bytes."""
        queue = self.queues[stream]
        merge(queue.clock, self.known(queue))
        queue.count += 1
        work = Work(name, stream, queue.count, dict(queue.clock))
        self.log.append(work)
        for spans, writing in ((reads, False), (writes, True)):
            for memory, start, end in spans:
                if start < end:
                    self._touch(memory, Access(start, end, writing, work))
        queue.clock[stream] = queue.count
        return work

    def known(self, queue: Queue) -> Clock:
        """Return the work that precedes new work: in the order of its stream, the host and stream 0."""
        clock = dict(queue.clock)
        merge(clock, self.host)
        if queue.ptr == 0:
            for other in self.queues.values():
                merge(clock, other.clock if other.blocking else {})
        elif queue.blocking:
            merge(clock, self.queues[0].clock)
        return clock

    def synchronize(self, clock: Clock, why: str) -> None:
        """Let the host wait until this work is over."""
        if self.capture is not None:
            raise RuntimeError(f"cudaErrorStreamCaptureUnsupported: {why}: operation not permitted")
        self.counts["synchronizations"] += 1
        self.synchronizations[why] += 1
        merge(self.host, clock)

    def over(self, clock: Clock) -> bool:
        """Return True if the host knows that this work is over."""
        return not any(self.goes_on(stream, number) for stream, number in clock.items())

    def goes_on(self, stream: int, number: int) -> bool:
        """Return True if work of a stream may still be queued, as far as the host knows."""
        return stream in self.queues and number > self.host.get(stream, 0)

    # -- bytes -----------------------------------------------------------------------------------------------

    def pending(self, memory: Any) -> list[Access]:
        """Return the work queued on this memory that the host does not know to be over."""
        queues, over = self.queues, self.host  # as goes_on() has it, without a call for each
        memory.pending = [
            one for one in memory.pending
            if one.work.number > over.get(one.work.stream, 0) and one.work.stream in queues
        ]  # fmt: skip
        return memory.pending

    def _touch(self, memory: Any, new: Access) -> None:
        after, kept = new.work.after, []
        for old in self.pending(memory):
            ordered = old.work.number <= after.get(old.work.stream, 0) or old.work is new.work
            if not ordered and old.meets(new.start, new.end, new.writes):
                self.hazard(new, old)
            covered = new.start <= old.start and old.end <= new.end and new.writes >= old.writes
            if not (ordered and covered):  # else who comes after the new one comes after the old one
                kept.append(old)
        memory.pending = [*kept, new]
        for flight in self.flying():
            if flight.meets(new.start, new.end, new.writes):
                self.hazard(new, flight)

    def flying(self) -> list[Flight]:
        """List the calls of MPI whose end the program has not seen."""
        for flight in self.flights:
            if not flight.request:
                flight.work.ended = len(self.log)
        self.flights = [flight for flight in self.flights if flight.request]
        return self.flights

    def mpi(self, name: str, spans: Iterable[Span], writes: bool, request: Any = None) -> None:
        """Give MPI these bytes, to read or to write them, until a request is complete or at once."""
        spans = [span for span in spans if span[1] < span[2]]
        if not spans:
            return
        work = Work(name, MPI_CALL, 0, dict(self.host))
        self.log.append(work)
        for memory, start, end in spans:
            new = Access(start, end, writes, work)
            for old in self.pending(memory):
                if old.meets(start, end, writes):
                    self.hazard(new, old)
            if request is not None:
                self.flights.append(Flight(start, end, writes, work, request))

    def freed(self, memory: Any) -> None:
        """Return memory to the pool of its stream, whose next array may be there.

        Work of other streams on it may still be queued.
        """
        others = [one for one in self.pending(memory) if one.work.stream != memory.stream]
        if others:
            self.late.setdefault((memory.stream, memory.rounded), []).append(others)

    def left(self, stream: int, rounded: int, start: int) -> list[Access]:
        """Return work that may still be queued on memory of this size, lent again, to begin here."""
        late = self.late.get((stream, rounded))
        return [Access(start, start + rounded, one.writes, one.work) for one in late.pop()] if late else []

    def freed_pinned(self, memory: Any) -> None:
        """Free pinned memory: other arrays get it at once."""
        for old in self.pending(memory):
            self.hazards.append(f"pinned memory is freed that {_said(old)}{_site()}")

    def hazard(self, new: Access, old: Access) -> None:
        does = "writes" if new.writes else "reads"
        self.hazards.append(f"{_named(new.work)} {does} bytes that {_said(old)}{_site()}")


def spin(done: Callable[[], bool]) -> None:
    """Wait until something is done."""
    while not done():
        time.sleep(1e-4)


def merge(clock: Clock, other: Clock) -> None:
    """Add the other clock's knowledge to this clock."""
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


def beside(first: Work, second: Work) -> bool:
    """Return True if the two may have run at the same time.

    ``second`` was logged later; one of them may be MPI's.
    """
    if MPI_CALL not in (first.stream, second.stream):
        return second.after.get(first.stream, 0) < first.number
    if second.stream == MPI_CALL:
        return second.after.get(first.stream, 0) < first.number
    log = DEVICE.log
    return first.ended is None or log.index(second) < first.ended


def _named(work: Work) -> str:
    return f"{work.name} (MPI)" if work.stream == MPI_CALL else f"{work.name} on stream {work.stream}"


def _said(old: Access) -> str:
    return f"{_named(old.work)} still {'writes' if old.writes else 'reads'}"


def _site() -> str:
    """Return the places in the package and its tests that called, the innermost first."""
    frames = [f for f in traceback.extract_stack() if any(own in f.filename for own in OWN_FRAMES)]
    outside = [f for f in frames if "/fake_cupy/" not in f.filename and "/mpi_helpers/" not in f.filename]
    places = [f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in reversed(outside[-5:])]
    return f"; at {' < '.join(places)}"


DEVICE = Device()

"""Streams and events as programs see them."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterable
from typing import Any, ClassVar

from cupy._graphs import Capture, Graph, refuse
from cupy._work import DEVICE, Clock, merge

_current: list[Stream] = []  # one
_entered: list[Stream] = []  # the streams whose contexts are open, the null stream first
_looks = itertools.cycle((0, 1, 2))  # how often in turn an event is asked before it is seen done
_handles = itertools.count(1)
EVENTS: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()


class BaseStream:
    """A stream by its number ``ptr``; as a context, the current one."""

    ptr: int

    def __enter__(self) -> BaseStream:
        _entered.append(self)  # type: ignore[arg-type]
        return self.use()

    def __exit__(self, *_: object) -> None:
        """Return to the stream entered before; one in ``use`` is forgotten (CuPy's issue 8377)."""
        _entered.pop()
        _entered[-1].use()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)

    def use(self) -> BaseStream:
        _current[:] = [self]  # type: ignore[list-item]
        return self

    @property
    def done(self) -> bool:
        return DEVICE.over(DEVICE.queues[self.ptr].clock)

    def synchronize(self) -> None:
        synchronize(self, "stream")

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        refuse("begin of a capture")
        DEVICE.capture = Capture(self.ptr)

    def end_capture(self) -> Graph:
        if not self.is_capturing():
            raise RuntimeError(
                "cudaErrorIllegalState: the operation cannot be performed in the present state"
            )
        capture, DEVICE.capture = DEVICE.capture, None
        return Graph(capture.steps)

    def is_capturing(self) -> bool:
        return DEVICE.capture is not None and DEVICE.capture.stream == self.ptr

    def wait_event(self, event: Event) -> None:
        """Let work queued from now on run after the work that the event recorded."""
        refuse("wait for an event")
        if event.clock is not None:
            merge(DEVICE.queues[self.ptr].clock, event.clock)


class Stream(BaseStream):
    """A stream that takes turns with the null stream, unless ``non_blocking``."""

    null: ClassVar[Stream]

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        if ptds:
            raise NotImplementedError("the stand-in has no per-thread default stream")
        self.ptr = 0 if null else DEVICE.stream(blocking=not non_blocking).ptr
        self.priority = priority
        if not null:
            weakref.finalize(self, DEVICE.destroyed.add, self.ptr).atexit = False


class ExternalStream(BaseStream):
    """A stream that somebody else made."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        if ptr not in DEVICE.queues:
            raise ValueError(f"there is no stream {ptr}")
        self.ptr = ptr


class Event:
    """A mark in a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.clock: Clock | None = None
        self.timing, self.time, self.looks = not disable_timing, 0.0, 0
        self.ptr = next(_handles)
        EVENTS[self.ptr] = self

    def record(self, stream: BaseStream | None = None) -> None:
        """Record all work that is queued on the stream up to now."""
        refuse("record of an event")
        queue = DEVICE.queues[(current() if stream is None else stream).ptr]
        self.clock, self.time, self.looks = DEVICE.known(queue), time.perf_counter(), next(_looks)

    @property
    def done(self) -> bool:
        """Tell whether the event is over: at the first, second or third look. Then the host knows."""
        refuse("query of an event")
        DEVICE.counts["polls"] += 1
        if self.clock is None or DEVICE.over(self.clock):
            return True
        self.looks -= 1
        if self.looks >= 0:
            return False
        merge(DEVICE.host, self.clock)
        return True

    def synchronize(self) -> None:
        DEVICE.synchronize(self.clock or {}, "event")


def get_elapsed_time(start: Event, end: Event) -> float:
    """Return milliseconds of the host between two events that take the time."""
    if not (start.timing and end.timing):
        raise RuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
    return (end.time - start.time) * 1e3


def current() -> Stream:
    """Return the current stream."""
    return _current[0]


def leave_all() -> None:
    """Leave all streams' contexts: the null stream is current."""
    _entered[:] = [Stream.null]
    Stream.null.use()


def synchronize(stream: BaseStream, why: str) -> None:
    """Let the host wait for all work queued on a stream."""
    DEVICE.synchronize(DEVICE.known(DEVICE.queues[stream.ptr]), why)


def launch(name: str, reads: Iterable[Any], writes: Iterable[Any], stream: BaseStream | None = None) -> None:
    """Queue a kernel that reads and writes these arrays."""
    if DEVICE.capture is not None:
        DEVICE.counts["captured"] += 1
        return
    if DEVICE.replaying:
        DEVICE.counts["replayed"] += 1
    else:
        DEVICE.counts["launches"] += 1
        DEVICE.launches[name] += 1
    ptr = (current() if stream is None else stream).ptr
    DEVICE.queue(name, ptr, [array.span for array in reads], [array.span for array in writes])


Stream.null = Stream(null=True)
leave_all()

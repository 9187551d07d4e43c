"""Timed regions, by a clock of the host or of a device, and what their intervals add up to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

#: A function that gives a time, and one that gives the seconds between two of these.
Clock = tuple[Callable[[], Any], Callable[[Any, Any], float]]
HOST: Clock = (lambda: time.perf_counter(), lambda start, end: end - start)


class Event(NamedTuple):
    """An interval that took time, by ``time.perf_counter``, and its key's charges since the event before.

    An interval of a device begins when the device comes to it, from the ledger's first such interval on.
    """

    phase: str
    operation: str
    group: str
    start: float
    stop: float
    flight: bool  # a transfer that was under way, whether or not anybody waited
    words: int = 0
    bytes: int = 0
    flops: int = 0
    matrix: str = ""


class Union:
    """The length of a union of intervals, which are added in the order in which they end."""

    def __init__(self) -> None:
        self._settled = 0.0  # what the oldest add up to
        self._apart: list[tuple[float, float]] = []

    def add(self, start: float, stop: float) -> None:
        """Add another interval, which ends no earlier than those before."""
        apart = self._apart
        while apart and apart[-1][1] >= start:
            start = min(start, apart.pop()[0])
        apart.append((start, stop))
        if len(apart) > 2000:  # a bound for long runs; nothing reaches back over a thousand gaps
            self._settled += sum(stop - start for start, stop in apart[:1000])
            del apart[:1000]

    @property
    def length(self) -> float:
        """Seconds that lie in some interval."""
        return self._settled + sum(stop - start for start, stop in self._apart)


class Region:
    """A timed region, by one clock.

    Attributes:
        start: its mark; on_host: when it was entered and left, by ``time.perf_counter``; inside: regions in
            it whose seconds are not its own: of the same clock, in one of a device also the host's.
    """

    __slots__ = ("_seconds", "clock", "inside", "on_host", "start", "stop")

    def __init__(self, clock: Clock) -> None:
        self.clock, self.inside = clock, list[Region]()
        self.start = clock[0]()
        self.on_host = (self.start if clock is HOST else time.perf_counter(),) * 2
        self.stop: Any = None
        self._seconds: float | None = None

    def end(self) -> None:
        """Mark the end of the region."""
        self.stop = self.clock[0]()
        self.on_host = self.on_host[0], self.stop if self.clock is HOST else time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds from mark to mark, for which a device is waited."""
        if self._seconds is None:
            self._seconds = self.clock[1](self.start, self.stop)
        return self._seconds

    def began(self, origin: tuple[Any, float] | None) -> float:
        """Return the host's time of the start, of a device's clock by a mark and the host's time then."""
        if self.clock is HOST or origin is None:
            return self.on_host[0]
        return origin[1] + self.clock[1](origin[0], self.start)

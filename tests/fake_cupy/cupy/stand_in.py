"""Questions to the stand-in that no CuPy could answer: queued work, counts, errors.

>>> with stand_in.observed() as seen:       # doctest: +SKIP
...     one_epoch()
>>> seen.counts["launches"], seen.hazards   # doctest: +SKIP
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cupy._array import ndarray
from cupy._kernels import EMULATION
from cupy._memory import span_of, spans_of_host
from cupy._streams import leave_all
from cupy._work import DEVICE, MPI_CALL, Work, beside, spin

__all__ = [
    "EMULATION", "MPI_CALL", "Seen", "Work", "beside", "forget_messages", "given_to_mpi", "hazards",
    "launches", "observed", "reset",
]  # fmt: skip


@dataclass
class Seen:
    """Events within :func:`observed`; complete when the context is left.

    Attributes:
        counts: launches, synchronizations, polls, "host to device" and "device to host" copies, the same
            with " bytes", pinned (allocations), modules (compiled).
        launches, synchronizations: by name; of the latter, "stream", "event" and "device" are asked for and
            the others come with what they are named after.
        log: all work and calls of MPI, in the order of the host. hazards: what was in no order.
    """

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    launches: collections.Counter[str] = field(default_factory=collections.Counter)
    synchronizations: collections.Counter[str] = field(default_factory=collections.Counter)
    log: list[Work] = field(default_factory=list)
    hazards: list[str] = field(default_factory=list)

    def named(self, name: str) -> list[Work]:
        """List the work and calls of this name."""
        return [work for work in self.log if work.name == name]


@contextmanager
def observed() -> Iterator[Seen]:
    """Record the events within the context."""
    seen = Seen()
    before = [collections.Counter(c) for c in (DEVICE.counts, DEVICE.launches, DEVICE.synchronizations)]
    logged, found = len(DEVICE.log), len(DEVICE.hazards)
    try:
        yield seen
    finally:
        DEVICE.flying()
        now = DEVICE.counts, DEVICE.launches, DEVICE.synchronizations
        seen.counts, seen.launches, seen.synchronizations = (a - b for a, b in zip(now, before, strict=True))
        seen.log, seen.hazards = DEVICE.log[logged:], DEVICE.hazards[found:]


def hazards() -> list[str]:
    """List all hazards since the last :func:`reset`."""
    return list(DEVICE.hazards)


def launches() -> collections.Counter[str]:
    """Count what was launched since the last :func:`reset`, by name."""
    return collections.Counter(DEVICE.launches)


def reset(wait: Callable[[Callable[[], bool]], None] = spin) -> None:
    """Forget all that happened, as between two tests. While the device waits for other ranks, the host is in
    ``wait(done)``.
    """
    leave_all()
    DEVICE.reset()
    EMULATION.reset()
    DEVICE.wait = wait


@contextmanager
def given_to_mpi(name: str, buffer: Any, writes: bool) -> Iterator[Callable[[Any], None]]:
    """Pass ``buffer`` to a call of MPI that reads it, or writes it.

    The yielded function takes the request, if the call returns before it is complete.
    """
    request: list[Any] = []
    before, DEVICE.announced = DEVICE.announced, True
    try:
        yield request.append
    finally:
        DEVICE.announced = before
        spans = []
        if isinstance(buffer, ndarray):
            spans = [span_of(buffer._memory, buffer._numbers)]
        elif isinstance(buffer, np.ndarray):
            spans = spans_of_host(buffer)
        DEVICE.mpi(name, spans, writes, request[0] if request else None)


def forget_messages() -> None:
    """Forget messages whose end no rank will see: they may not touch their buffers any more."""
    DEVICE.flights.clear()

"""Seconds of a call, with what it queues on a device."""

from __future__ import annotations

import time
from collections.abc import Callable

from distgnn.arrays import backend
from distgnn.arrays.backend import Backend

Work = Callable[[], object]
HOST = backend.get("numpy")


def seconds(
    work: Work, on: Backend = HOST, calls: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of a call, of so many one after another; the device is idle before and after."""
    on.synchronize()
    started = clock()
    for _ in range(calls):
        work()
    on.synchronize()
    return (clock() - started) / calls


def best(work: Work, on: Backend, times: int) -> float:
    """Return the least seconds of so many calls, after one to warm up."""
    work()
    return min(seconds(work, on) for _ in range(times))

"""Seconds of kernels on a device: of CUDA graphs of several calls, between which no host stands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import timing
from distgnn.local import tuner
from distgnn.local.cuda.cublas import Cublas

log = logging.getLogger(__name__)

MOST = 20  # calls of a graph: queueing one takes the host longer than the device
TRIALS = 64  # calls within which all kernels have been tried out


def seconds(run: Callable[[], object], on: Any, calls: int, batches: int) -> float:
    """Return the median seconds of a call on a device, in batches of so many calls, or fewer.

    Work that cannot be captured is timed with the host that queues it, and the log says so.
    """
    calls = min(calls, MOST)
    _settled(run, on)
    pool, multiply, (mark, between) = on.pool(), _products(on), on.clock()  # what the graph works in
    try:
        with ledger.apart(), on.memory_of(pool), on.by(multiply), on.captured() as graphs:
            for _ in range(calls):
                run()
    except Exception as error:  # of CuPy, CUDA or cuBLAS
        log.warning("kernels are timed with the host: %s: %s", type(error).__name__, error)
        return float(np.median([timing.seconds(run, on, calls) for _ in range(batches)]))
    graphs[0].launch()
    taken = []
    for _ in range(batches):
        start = mark()
        graphs[0].launch()
        taken.append(between(start, mark()) / calls)
    on.synchronize()
    return float(np.median(taken))


def _products(on: Any) -> Any:
    """Return what multiplies matrices in a capture, or None: CuPy's, which a real device refuses there."""
    try:
        products = Cublas(on.xp, on.rounds_to_tf32())
        products.check()
    except Exception as error:  # of a library that is not there
        log.info("no cuBLAS for CUDA graphs: %s", error)
        return None
    return products.matmul


def _settled(run: Callable[[], object], on: Any) -> None:
    """Call until no kernel is tried out any more."""
    before = -1
    for _ in range(TRIALS):
        if before == tuner.trials:
            return
        before = tuner.trials
        run()
        on.synchronize()

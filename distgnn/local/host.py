"""The compiled kernels for the host (``kernels/host/``), where they were built, and their processor."""

from __future__ import annotations

import functools
import logging
import os
import time
from types import ModuleType
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.arrays.numpy_backend import CACHE_LINE
from distgnn.arrays.tuning import TUNING
from distgnn.errors import UserError
from distgnn.local.tuner import FLEETING, Tuner

log = logging.getLogger(__name__)


@functools.cache
def module() -> ModuleType | None:
    """Return the extension module, or None (said once in the log) where it was not built."""
    try:
        from distgnn import _host
    except ImportError as error:
        log.warning("no compiled host kernels (%s): products on the host use SciPy", error)
        return None
    log.info("host kernels: %s of %s", _host.isas()[isa()], ", ".join(_host.isas()))
    return _host


def usable() -> bool:
    """Tell whether the extension module was built."""
    return module() is not None


def built() -> ModuleType:
    """Return the extension module; raise UserError where it was not built."""
    kernels = module()
    if kernels is None:
        raise UserError("the host kernels are not built here: install distgnn with a C compiler at hand")
    return kernels


@functools.cache
def isa() -> int:
    """Return the instruction set to use, a position in ``isas()``: by ``DISTGNN_HOST_ISA``, or the best."""
    from distgnn import _host

    wanted, there = os.environ.get("DISTGNN_HOST_ISA", "auto"), _host.isas()
    if wanted != "auto" and wanted not in there:
        raise UserError(f"DISTGNN_HOST_ISA={wanted}: this machine runs {', '.join(['auto', *there])}")
    return 0 if wanted == "auto" else there.index(wanted)


@functools.cache
def threads() -> int:
    """Return the OpenMP threads of a product: ``OMP_NUM_THREADS``, or one: ranks are the parallelism here."""
    words = os.environ.get("OMP_NUM_THREADS", "").split(",")
    return max(int(words[0]), 1) if words[0].strip().isdecimal() else 1


def multiply(indptr: Any, indices: Any, values: Any, B: Any, out: Any, **options: Any) -> None:
    """Call ``_host.multiply`` for a CSR matrix whose pattern has been checked, with this module's options."""
    built().multiply(indptr, indices, values, B, out, **{"threads": threads(), "isa": isa(), **options})


#: Non-zeros to prefetch ahead. -1, what the C code takes for the width, is best where rows come from memory.
DISTANCES = (-1, 128, 64, 32, 0)
TRIALS = 20  # products after which one of them is chosen


def spmm(A: CSR, B: np.ndarray, out: np.ndarray, accumulate: bool) -> None:
    """Compute ``out = A B``, or ``out += A B``, for a block of float32 or float64; see ``local.spmm``.

    The first products of a block with one width measure how far to prefetch. Where rows of B fill up to three
    cache lines, time varies by up to a half with the cache that B lies in, the lengths of rows and who else
    uses the last-level cache; for wider rows C's choice is within a few per cent. The clock is this thread's.
    """
    multiplied = functools.partial(multiply, A.indptr, A.indices, A.data, B, out, accumulate=accumulate)
    wide = B.shape[1] * B.itemsize > 3 * CACHE_LINE
    if A.nnz < TUNING.look_ahead_nonzeros or wide or FLEETING in A.pattern:
        multiplied(prefetch=DISTANCES[0])
        return
    key = f"look ahead {B.shape[1]} {B.dtype}"
    if key not in A.pattern:
        label = f"product of {A.shape} with width {B.shape[1]}: non-zeros to prefetch ahead (-1: by width)"
        clock = time.thread_time, lambda start, end: end - start
        A.pattern[key] = Tuner(DISTANCES, label, *clock, gain=0.95)
    A.pattern[key].run(lambda distance: multiplied(prefetch=distance))

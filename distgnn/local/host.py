"""The compiled kernels for the host (``kernels/host/``): are they there, and for which processor."""

from __future__ import annotations

import functools
import logging
import os
import time
from types import ModuleType
from typing import Any

import numpy as np

from distgnn.arrays.backend import CACHE_LINE
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.errors import UserError
from distgnn.local.tuner import Tuner

log = logging.getLogger(__name__)


@functools.cache
def module() -> ModuleType | None:
    """The extension module, or None (said once in the log) where it was not built."""
    try:
        from distgnn import _host
    except ImportError as error:
        log.warning("no compiled host kernels (%s): products on the host use SciPy", error)
        return None
    log.info("host kernels: %s of %s", _host.isas()[isa()], ", ".join(_host.isas()))
    return _host


def built() -> ModuleType:
    """The extension module.

    Raises:
        UserError: it was not built.
    """
    kernels = module()
    if kernels is None:
        raise UserError("the host kernels are not built here: install distgnn with a C compiler at hand")
    return kernels


@functools.cache
def isa() -> int:
    """The instruction set to use, as a position in ``isas()``: what ``DISTGNN_HOST_ISA`` says, or the best.

    Raises:
        UserError: it names none that this machine has.
    """
    from distgnn import _host

    wanted, there = os.environ.get("DISTGNN_HOST_ISA", "auto"), _host.isas()
    if wanted != "auto" and wanted not in there:
        raise UserError(f"DISTGNN_HOST_ISA={wanted}: this machine runs {', '.join(['auto', *there])}")
    return 0 if wanted == "auto" else there.index(wanted)


@functools.cache
def threads() -> int:
    """OpenMP threads of a product: ``OMP_NUM_THREADS``, or one, because ranks are the parallelism here."""
    words = os.environ.get("OMP_NUM_THREADS", "").split(",")
    return max(int(words[0]), 1) if words[0].strip().isdecimal() else 1


def multiply(indptr: Any, indices: Any, values: Any, B: Any, out: Any, **options: Any) -> None:
    """``out = A B`` for a CSR matrix whose pattern has been checked, as that of a ``CSR`` has.

    Args:
        indptr, indices: int32 or int64, both the same. values, B (k, f), out (m, f): float32 or float64, all
            the same. Rows of B and ``out`` are contiguous and may lie apart; ``out`` overlaps no other array.
            options: ``accumulate``: add to ``out``. ``prefetch``: non-zeros to look ahead, 0 for none, -1 to
            choose by width. ``threads``, ``isa``: not this module's.

    Raises:
        TypeError, ValueError: types or shapes that don't fit, or an array that C cannot walk.
    """
    built().multiply(indptr, indices, values, B, out, **{"threads": threads(), "isa": isa(), **options})


#: Non-zeros to prefetch ahead. -1, what the C code takes for the width, is best where rows come from memory.
DISTANCES = (-1, 128, 64, 32, 0)
TRIALS = 20  # products after which one of them is chosen


def spmm(A: CSR, B: np.ndarray, out: np.ndarray, accumulate: bool) -> None:
    """``out = A B``, or ``out += A B``, for a block of float32 or float64; see ``local.spmm``.

    The first products of a matrix with matrices of one width measure how far to prefetch. For rows of B that
    fill up to three cache lines that depends on which cache B lies in, on how the lengths of rows vary and on
    who else uses the last-level cache, by up to a half; for wider rows the choice of the C code is within a
    few per cent. The clock is this thread's, which others cannot stretch.
    """
    multiplied = functools.partial(multiply, A.indptr, A.indices, A.data, B, out, accumulate=accumulate)
    if A.nnz < TUNING.look_ahead_nonzeros or B.shape[1] * B.itemsize > 3 * CACHE_LINE:
        multiplied(prefetch=DISTANCES[0])
        return
    key = f"look ahead {B.shape[1]}"
    if key not in A.cached:
        label = f"product of {A.shape} with width {B.shape[1]}: non-zeros to prefetch ahead (-1: by width)"
        clock = time.thread_time, lambda start, end: end - start
        A.cached[key] = Tuner(DISTANCES, label, *clock, gain=0.95)
    A.cached[key].run(lambda distance: multiplied(prefetch=distance))


def cross_entropy(
    logits: np.ndarray, rows: np.ndarray, labels: np.ndarray, out: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """``out = share * (softmax(logits) - onehot(labels))`` in ``rows``, zero in the others, in one pass.

    Args:
        logits, out: (m, f) float32 or float64, rows contiguous; may be one array.
        rows: int64, rising. labels: int64, the column of each of these rows.

    Returns:
        of each row, the sum of the exponentials of its logits less their largest, and the label's logit less
        the largest: their loss is ``log(first) - second``.

    Raises:
        ValueError: rows that do not rise, a row or a label that the logits don't have.
    """
    sums, own = np.empty(len(rows), logits.dtype), np.empty(len(rows), logits.dtype)
    built().cross_entropy(logits, rows, labels, out, sums, own, share, isa=isa())
    return sums, own

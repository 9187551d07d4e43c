"""The compiled kernels for the host (``kernels/host/``): whether they are there, and which instruction set
they use.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from distgnn import rng
from distgnn.errors import UserError

if TYPE_CHECKING:
    from distgnn.arrays.csr import CSR

log = logging.getLogger(__name__)

CACHE_LINE = 64


@functools.cache
def module() -> ModuleType | None:
    """The extension module, or None (said once in the log) where it was not or could not be built."""
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
    """The instruction set to use, as a position in ``isas()``: the best of this machine, or what
    ``DISTGNN_HOST_ISA`` says.

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
    """``out = A B`` for a CSR matrix whose row pointers and indices have been checked, as those of a ``CSR``
    have.

    Args:
        indptr, indices: int32 or int64. values: like `out`, or None for ones.
        B: (k, f) float32, float64, or uint16 holding bfloat16. Rows are contiguous and may lie apart, those
            of `out` too.
        out: (m, f) float32, or float64 where B is; overlaps no other array.
        options: `row_scale` (m), `column_scale` (k): diagonal matrices to the left and the right of A.
            `accumulate`, `bias` (f), `relu`, `mask` (m, f): in this order, add what `out` holds, add the
                bias, cut off what is negative, zero what is
            not positive in `mask`. `prefetch`: non-zeros to look ahead, 0 for none. `threads`, `isa`: not
                this module's.

    Raises:
        TypeError, ValueError: types or shapes that don't fit, or an array that C cannot walk.
    """
    built().multiply(indptr, indices, values, B, out, **{"threads": threads(), "isa": isa(), **options})


class LookAhead:
    """How far to prefetch for the products of one matrix with matrices of one width: measured in the first
    products themselves.

    Which distance is best for rows of B that fill up to three cache lines depends on which cache B lies in,
    on how the lengths of rows vary and on who else uses the last-level cache, by up to a half; for wider rows
    the choice of the C code is within a few per cent. Every candidate gives the same bits, so trying them
    costs nothing but the difference. The clock is this thread's, which others cannot stretch.
    """

    DEFAULT = -1  # what the C code takes: best where rows come from memory
    CANDIDATES = (0, 32, 64, 128, DEFAULT)
    GAIN = 0.95  # of the default's time, at most: less is noise
    TURNS = 5
    LEAST_NONZEROS = 1 << 18  # below, a product is too short to time

    def __init__(self, nnz: int, row_bytes: int) -> None:
        close = nnz >= self.LEAST_NONZEROS and row_bytes <= 3 * CACHE_LINE
        self.left = [distance for _ in range(self.TURNS) for distance in self.CANDIDATES] if close else []
        self.best = dict.fromkeys(self.CANDIDATES, math.inf)
        self.chosen = self.DEFAULT

    def run(self, product: Callable[[int], None], name: str) -> None:
        """Call `product` with the distance to use."""
        if not self.left:
            product(self.chosen)
            return
        distance = self.left.pop()
        started = time.thread_time()
        product(distance)
        self.best[distance] = min(self.best[distance], time.thread_time() - started)
        if not self.left:
            best = min(self.best, key=self.best.__getitem__)
            self.chosen = best if self.best[best] <= self.GAIN * self.best[self.DEFAULT] else self.DEFAULT
            seconds = ", ".join(f"{self._said(d)}: {t:.2g} s" for d, t in self.best.items())
            log.info("%s: prefetches %s (%s)", name, self._said(self.chosen), seconds)

    def _said(self, distance: int) -> str:
        return {self.DEFAULT: "by width", 0: "nothing"}.get(distance, f"{distance} non-zeros ahead")


def spmm(A: CSR, B: np.ndarray, out: np.ndarray, accumulate: bool) -> None:
    """``out = A B``, or ``out += A B`` with `accumulate`, for a block of float32 or float64; see
    ``local.spmm``.
    """
    key = f"look ahead {B.shape[1]}"
    if key not in A.cached:
        A.cached[key] = LookAhead(A.nnz, B.shape[1] * B.itemsize)

    def product(distance: int) -> None:
        multiply(A.indptr, A.indices, A.data, B, out, accumulate=accumulate, prefetch=distance)

    A.cached[key].run(product, f"product of {A.shape} with width {B.shape[1]}")


def dropout(
    block: np.ndarray,
    out: np.ndarray,
    k: int,
    rows: np.ndarray,
    cols: np.ndarray,
    keep: float,
    relu: bool = False,
) -> None:
    """``out = block * rng.keep_mask(k, rows, cols, keep) / keep``, of the positive part of `block` with
    `relu`.

    `out` may be `block`; float32 or float64, rows contiguous. One pass over memory, where rng makes several
    in cache.
    """
    row_keys, column_keys = rng.hashes(k, rows), rng.hashes(rng.key(k, 1), cols)
    low, odd = row_keys.astype(np.uint32), (row_keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    columns = (column_keys >> np.uint64(32)).astype(np.uint32)
    threshold = min(max(round(keep * 2.0**32), 0), 2**32)
    scale = float(block.dtype.type(1 / keep)) if keep > 0 else 0.0
    built().dropout(block, out, low, odd, columns, threshold, scale, relu=relu, isa=isa())


def pack_positive(block: np.ndarray) -> np.ndarray:
    """``numpy.packbits(block > 0)`` of a C-contiguous matrix: one bit per entry, in rows."""
    bits = np.empty(-(-block.size // 8), np.uint8)
    built().pack_positive(block, bits, isa=isa())
    return bits


def keep_positive(block: np.ndarray, bits: np.ndarray, scale: float = 1.0) -> None:
    """Multiply the entries of a C-contiguous matrix whose bit of `pack_positive` is 1 by `scale`, zero the
    others, in place.
    """
    built().keep_positive(block, bits, float(block.dtype.type(scale)), isa=isa())


def adam(w: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, **options: float) -> None:
    """One step of Adam on flat arrays of one type, in place.

    Args:
        options: `rate`, `correction` (of v), and optionally `first`, `second`, `epsilon`, `shrink` (decoupled
            weight decay: the share of w that is left), `decay` (gradient of an L2 penalty, per w).
    """
    built().adam(w, g, m, v, **options, isa=isa())


def cross_entropy(
    logits: np.ndarray, rows: np.ndarray, labels: np.ndarray, out: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """``out = share * (softmax(logits) - onehot(labels))`` in `rows`, zero in the others, in one pass.

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


def gather(x: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """``out = x[rows]`` for int64 `rows`. Raises ValueError for a row that x does not have."""
    built().gather(x, rows, out)


def scatter_add(x: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """``numpy.add.at(out, rows, x)`` for int64 `rows`, in their order. Raises ValueError for a row that out
    does not have.
    """
    built().scatter_add(x, rows, out, isa=isa())

"""CSR times dense on a GPU: which variant of ``kernels/csr_spmm.cu`` runs, on which rows, with what at the
end.

A variant is described in the kernel's source. The numbers of teams, P and L, decide in which order a row is
summed, so they follow from the matrix, the width and B's alignment; all else changes no bit of the result and
is tuned (unless `DISTGNN_SPMM_TUNE=0`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.local.cuda.launch import (
    C_TYPES,
    Array,
    address,
    blocks_for,
    c_type,
    check,
    launch,
    library,
    power_of_two,
)
from distgnn.local.cuda.tuning import Tuner

FILE = "csr_spmm.cu"
WARP = 32
VECTOR_BYTES = 16  # what one load instruction of a lane fetches at most

UNIT, PER_ENTRY, PER_COLUMN = 0, 1, 2
FLOAT32, FLOAT64, BFLOAT16 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16)


@dataclass(frozen=True)
class Variant:
    """V columns per load, C loads per lane and row of B, G lanes side by side, P teams, U non-zeros in flight
    per team.

    ``L``: teams in place of P where long rows are cut.
    ``padded``: B is first copied to rows of a whole number of 16-byte vectors.
    """

    V: int
    C: int
    G: int
    P: int
    U: int
    L: int
    padded: bool = False

    def __str__(self) -> str:
        return (
            f"V{self.V} C{self.C} G{self.G} P{self.P} U{self.U} L{self.L}{' padded' if self.padded else ''}"
        )

    @property
    def arguments(self) -> str:
        """The last template arguments of the kernels."""
        return f"{self.V},{self.C},{self.G},{self.P},{self.U}"

    def panels(self, f: int) -> int:
        """Column panels that a product of width ``f`` falls into."""
        return -(-f // (self.V * self.C * self.G))


def variant_for(f: int, V: int, itemsize: int, average: float) -> Variant:
    """The variant expected to be best for width ``f``, vectors of V elements and this average number of
    non-zeros per row."""
    vectors = -(-f // V)
    G = min(WARP, power_of_two(2 * vectors - 1))  # the smallest power of two that is enough
    # Registers: at most eight 4-byte sums per lane, beyond which fewer warps hide the latency of the gathers.
    most = max(1, 32 // (V * max(itemsize, 4)))
    C = min(most, power_of_two(2 * -(-vectors // G) - 1), 4)
    P = min(WARP // G, power_of_two(average / 8))
    return Variant(V, C, G, P, U=4 if V * C * itemsize >= VECTOR_BYTES else 8, L=WARP // G)


def candidates(f: int, itemsize: int, alignment: int, average: float) -> list[Variant]:
    """The variants worth trying, the expected best first; all of them give the same bits.

    Args:
        f: width of B, which is also its leading dimension; itemsize: bytes of an element.
        alignment: of B's first element, in bytes.
        average: non-zeros per row.
    """
    widest = VECTOR_BYTES // itemsize
    V = next(v for v in (8, 4, 2, 1) if v <= widest and f % v == 0 and alignment % (v * itemsize) == 0)
    first = variant_for(f, V, itemsize, average)
    found = [first, replace(first, U=first.U * 2 if first.V * first.C <= 4 else first.U // 2)]
    if first.C > 1:
        found.append(replace(first, C=first.C // 2))
    # the copy costs as much as gathering two rows per row of B
    if V < widest and f >= widest and average >= 8:
        # Wider vectors need fewer lanes, so the same numbers of teams fit.
        found.append(replace(variant_for(f, widest, itemsize, average), P=first.P, L=first.L, padded=True))
    return found


class Plan:
    """What is known of a block's rows; made once per block and kept in ``block.cached``.

    Attributes:
        indptr, indices: the block's, or copies where its packing left 64-bit numbers at odd addresses.
        average, longest: non-zeros per row.
        long_rows: int32 rows that are cut into segments, or None.
        short_rows: int32 all other rows; None where there are no long ones.
        filled_rows: int32 the short rows that have non-zeros; None where most have.
    """

    def __init__(self, xp: Any, A: CSR) -> None:
        m = A.shape[0]
        if m > np.iinfo(np.int32).max:
            raise ValueError(f"the kernels number rows with 32 bits; a block of {m} rows must be cut")
        self.average = A.nnz / max(m, 1)
        self.threshold = max(256, int(8 * self.average))
        self.long_rows: Array = None
        self.short_rows: Array = None
        self.filled_rows: Array = None
        self.tuners: dict[Any, Tuner[Variant]] = {}
        self._segments: dict[int, Segments] = {}
        self.indptr, self.indices = _aligned(A.indptr), _aligned(A.indices)
        lengths = xp.diff(self.indptr)
        self.longest, filled = (int(x) for x in (lengths.max(), xp.count_nonzero(lengths))) if m else (0, 0)
        short = lengths <= self.threshold
        if self.longest > self.threshold:
            self.long_rows = xp.flatnonzero(~short).astype(np.int32)
            self.short_rows = xp.flatnonzero(short).astype(np.int32)
        if filled < 0.9 * m:
            self.filled_rows = xp.flatnonzero(short & (lengths > 0)).astype(np.int32)

    @classmethod
    def of(cls, xp: Any, A: CSR) -> Plan:
        """The plan of a block, made when first asked for."""
        if "cuda" not in A.cached:
            A.cached["cuda"] = cls(xp, A)
        return A.cached["cuda"]

    def segments(self, xp: Any, length: int) -> Segments:
        """The long rows cut into segments of at most ``length`` non-zeros."""
        if length not in self._segments:
            self._segments[length] = Segments(xp, self.indptr, self.long_rows, length)
        return self._segments[length]


class Segments:
    """Long rows, cut: segment s is ``length[s]`` entries from ``begin[s]``; row i has segments
    ``first[i]:first[i + 1]``."""

    def __init__(self, xp: Any, indptr: Array, rows: Array, length: int) -> None:
        # A handful of rows, so on the host.
        begin, end = (np.asarray(_host(x), np.int64) for x in (indptr[rows], indptr[rows + 1]))
        pieces = -(-(end - begin) // length)
        first = np.concatenate(([0], np.cumsum(pieces)))
        offset = (np.arange(first[-1]) - np.repeat(first[:-1], pieces)) * length
        self.count = int(first[-1])
        self.begin = xp.asarray(np.repeat(begin, pieces) + offset)
        self.length = xp.asarray(np.minimum(length, np.repeat(end - begin, pieces) - offset).astype(np.int32))
        self.first = xp.asarray(first.astype(np.int32))


def spmm(
    A: CSR,
    B: Array,
    out: Array = None,
    accumulate: bool = False,
    *,
    weights: Any = "entries",
    row_scale: Array = None,
    bias: Array = None,
    relu: bool = False,
    keep: Array = None,
    keep_scale: float = 1.0,
    positive: Array = None,
    variant: Variant | None = None,
) -> Array:
    """``out = A B``, or ``out += A B``, followed in the same pass by what a layer does to the result.

    The steps, each optional, in this order: scale rows, add to ``out``, add the bias, ReLU, mask.

    Args:
        A: (m, k) CSR block; B: (k, f) C-contiguous, of A's dtype or, for float32 sums, uint16 holding
            bfloat16.
        out: (m, f) C-contiguous of A's dtype, sharing no memory with B; made when missing.
        accumulate: add to ``out``.
        weights: ``"entries"`` for A's values, ``"unit"`` for ones, or an array (k) that weighs column j of A
            with its entry j.
        row_scale: (m); bias: (f).
        keep: uint8, one bit per entry in the order of ``numpy.packbits``: entries whose bit is 0 become 0,
            the others are multiplied by ``keep_scale``. The backward pass of ReLU and dropout.
        positive: uint8 (m f / 8), receives the bits of the positive entries of the result; f must be a
            multiple of 8.
        variant: instead of the tuned one.

    Returns:
        ``out``.

    Raises:
        ValueError: shapes, dtypes or layouts that don't fit.
    """
    xp = library(B)
    m, f = A.shape[0], B.shape[1]
    if out is None:
        out, accumulate = xp.empty((m, f), A.dtype), False
    _check(A, B, out, weights, row_scale, bias, keep, positive)
    if m == 0 or f == 0:
        return out
    plan = Plan.of(xp, A)
    scale = A.dtype.type(keep_scale)
    steps = out, np.int32(accumulate), row_scale, bias, np.int32(relu), keep, scale, positive
    product = _Product(xp, A, B, plan, weights, steps)
    if (
        accumulate
        and bias is None
        and not relu
        and keep is None
        and positive is None
        and plan.filled_rows is not None
    ):
        product.rows = plan.filled_rows  # to the others nothing happens
    if variant is not None:
        product.run(variant)
    else:
        _tuner(A, B, plan, f, product.kind).run(xp, product.run)
    return out


class _Product:
    """The launches of one product; ``steps`` are the arguments from ``out`` on."""

    def __init__(self, xp: Any, A: CSR, B: Array, plan: Plan, weights: Any, steps: tuple[Any, ...]) -> None:
        self.xp, self.shape, self.dtype, self.B, self.plan, self.steps = xp, A.shape, A.dtype, B, plan, steps
        self.rows: Array = plan.short_rows
        self.kind, self.weights = PER_COLUMN, weights
        if isinstance(weights, str):
            self.kind, self.weights = (UNIT, None) if weights == "unit" else (PER_ENTRY, A.data)

    def run(self, variant: Variant) -> None:
        plan, f = self.plan, self.B.shape[1]
        B = _padded(self.xp, self.B, variant.V) if variant.padded else self.B
        factors = plan.indices, self.weights, B, np.int32(B.shape[1]), np.int32(f)
        types = f"{c_type(B)},{c_type(plan.indptr)},{c_type(plan.indices)},{self.kind}"
        if plan.long_rows is not None:  # first, because their work takes longest
            self._long_rows(replace(variant, P=variant.L), factors, f)
        count = self.shape[0] if self.rows is None else self.rows.size
        grid = blocks_for(count * variant.G * variant.P), variant.panels(f)
        rows = np.int32(count), self.rows, plan.indptr
        launch(self.xp, FILE, f"spmm<{types},{variant.arguments}>", grid, *rows, *factors, *self.steps)

    def _long_rows(self, variant: Variant, factors: tuple[Any, ...], f: int) -> None:
        plan, V, G = self.plan, variant.V, variant.G
        cut = plan.segments(self.xp, min(512, 128 * variant.P))
        width = -(-f // V) * V
        workspace = self.xp.empty((cut.count, width), self.dtype)
        types = f"{c_type(self.B)},{c_type(plan.indices)},{self.kind}"
        grid = blocks_for(cut.count * G * variant.P), variant.panels(f)
        segments = np.int32(cut.count), cut.begin, cut.length
        name = f"spmm_segments<{types},{variant.arguments}>"
        launch(self.xp, FILE, name, grid, *segments, *factors, workspace, np.int32(width))
        grid = plan.long_rows.size, -(-f // (V * G))
        partial = plan.long_rows, cut.first, workspace, np.int32(width), np.int32(f)
        name = f"spmm_combine<{C_TYPES[self.dtype]},{V},{G}>"
        launch(self.xp, FILE, name, grid, *partial, *self.steps)


def _tuner(A: CSR, B: Array, plan: Plan, f: int, kind: int) -> Tuner[Variant]:
    alignment = address(B) | 256
    alignment = min(alignment & -alignment, VECTOR_BYTES)
    key = f, B.dtype, kind, alignment
    if key not in plan.tuners:
        ways = candidates(f, B.dtype.itemsize, alignment, plan.average)
        if os.environ.get("DISTGNN_SPMM_TUNE", "1") == "0":
            ways = ways[:1]
        label = (
            f"spmm of {A.shape[0]} x {A.shape[1]}, {A.nnz} non-zeros, {f} columns of {np.dtype(B.dtype).name}"
        )
        plan.tuners[key] = Tuner(ways, label)
    return plan.tuners[key]


def _padded(xp: Any, B: Array, V: int) -> Array:
    k, f = B.shape
    padded = xp.empty((k, -(-f // V) * V), B.dtype)
    padded[:, :f] = B
    padded[:, f:] = 0
    return padded


def _check(
    A: CSR, B: Array, out: Array, weights: Any, row_scale: Array, bias: Array, keep: Array, positive: Array
) -> None:
    (m, k), f, dtype = A.shape, B.shape[1], A.dtype
    if dtype not in (FLOAT32, FLOAT64):
        raise ValueError(f"spmm: values must be float32 or float64, not {dtype}")
    check("spmm: B", B, (k, f), BFLOAT16 if B.dtype == BFLOAT16 and dtype == FLOAT32 else dtype)
    check("spmm: out", out, (m, f), dtype)
    check("spmm: row_scale", row_scale, (m,), dtype)
    check("spmm: bias", bias, (f,), dtype)
    check("spmm: keep", keep, (-(-m * f // 8),), np.uint8)
    if positive is not None and f % 8:
        raise ValueError(f"spmm: bits of positive entries need a width that is a multiple of 8, not {f}")
    check("spmm: positive", positive, (m * f // 8,), np.uint8)
    if isinstance(weights, str):
        if weights not in ("entries", "unit"):
            raise ValueError(f"spmm: weights must be 'entries', 'unit' or an array, not {weights!r}")
    else:
        check("spmm: weights", weights, (k,), dtype)


def _aligned(array: Array) -> Array:
    return array if address(array) % array.itemsize == 0 else array.copy()


def _host(array: Array) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()

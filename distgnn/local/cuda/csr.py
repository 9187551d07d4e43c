"""CSR times dense on a GPU: which variant of ``kernels/csr_spmm.cu`` runs, on which rows.

A variant is described in the kernel's source. The numbers of teams, P and L, decide in which order a row is
summed, so they follow from the matrix, the width and B's alignment. All else changes no bit and is tuned,
unless ``DISTGNN_SPMM_TUNE=0``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local.cuda import launch as gpu
from distgnn.local.cuda.launch import WARP, Array, address, blocks_for, c_type, check, lanes_for
from distgnn.local.tuner import Tuner

FILE = "csr_spmm.cu"
VECTOR_BYTES = 16  # what one load instruction of a lane fetches at most


@dataclass(frozen=True)
class Variant:
    """V columns per load, C loads per lane and row of B, G lanes side by side, P teams of U non-zeros each, L
    teams instead where long rows are cut. ``padded``: B is first copied to rows of whole 16-byte vectors.
    """

    V: int
    C: int
    G: int
    P: int
    U: int
    L: int
    padded: bool = False

    def __str__(self) -> str:
        return f"V{self.V} C{self.C} G{self.G} P{self.P} U{self.U} L{self.L}{' padded' * self.padded}"

    @property
    def arguments(self) -> str:
        """The last template arguments of the kernels."""
        return f"{self.V},{self.C},{self.G},{self.P},{self.U}"

    def panels(self, f: int) -> int:
        """Column panels that a product of width ``f`` falls into."""
        return -(-f // (self.V * self.C * self.G))


def variant_for(f: int, V: int, itemsize: int, average: float) -> Variant:
    """The variant expected to be best for width ``f``, vectors of V and an average of non-zeros per row."""
    vectors = -(-f // V)
    G = lanes_for(vectors)
    # Registers: at most 32 bytes of sums per lane, beyond which fewer warps hide the latency of the gathers.
    most = max(1, 32 // (V * itemsize))
    C = min(most, gpu.power_of_two(2 * -(-vectors // G) - 1), 4)
    P = min(WARP // G, gpu.power_of_two(average / 8))
    return Variant(V, C, G, P, U=4 if V * C * itemsize >= VECTOR_BYTES else 8, L=WARP // G)


def candidates(f: int, itemsize: int, alignment: int, average: float) -> list[Variant]:
    """The variants worth trying, the expected best first; all of them give the same bits.

    Args:
        f: width of B, which is also its leading dimension; itemsize: bytes of an element.
        alignment: of B's first element, in bytes.
        average: non-zeros per row.
    """
    widest = VECTOR_BYTES // itemsize
    V = next(v for v in (4, 2, 1) if v <= widest and f % v == 0 and alignment % (v * itemsize) == 0)
    first = variant_for(f, V, itemsize, average)
    found = [first, replace(first, U=first.U * 2 if first.V * first.C <= 4 else first.U // 2)]
    if first.C > 1:
        found.append(replace(first, C=first.C // 2))
    if V < widest and f >= widest and average >= 8:
        # The copy costs as much as gathering two rows per row of B. Fewer lanes, so that the same teams fit.
        found.append(replace(variant_for(f, widest, itemsize, average), P=first.P, L=first.L, padded=True))
    return found


class Plan:
    """What is known of a block's rows; kept in ``block.cached``.

    Attributes:
        indptr, indices: the block's, or copies where its packing left 64-bit numbers at odd addresses.
        average, longest: non-zeros per row; threshold: rows of more are long.
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
        self.tuners: dict[Any, Tuner[Variant]] = {}
        self._segments: dict[int, Segments] = {}
        self.indptr, self.indices = _aligned(A.indptr), _aligned(A.indices)
        lengths = xp.diff(self.indptr)
        self.longest, filled = (int(x) for x in (lengths.max(), xp.count_nonzero(lengths))) if m else (0, 0)
        short, cut = lengths <= self.threshold, self.longest > self.threshold
        numbers = lambda chosen: xp.flatnonzero(chosen).astype(np.int32)  # noqa: E731
        self.long_rows: Array = numbers(~short) if cut else None
        self.short_rows: Array = numbers(short) if cut else None
        self.filled_rows: Array = numbers(short & (lengths > 0)) if filled < 0.9 * m else None

    @classmethod
    def of(cls, xp: Any, A: CSR) -> Plan:
        """The plan of a block, made once."""
        if "cuda" not in A.cached:
            A.cached["cuda"] = cls(xp, A)
        return A.cached["cuda"]

    def segments(self, xp: Any, length: int) -> Segments:
        """The long rows cut into segments of at most ``length`` non-zeros."""
        if length not in self._segments:
            self._segments[length] = Segments(xp, self.indptr, self.long_rows, length)
        return self._segments[length]


class Segments:
    """Long rows, cut: segment s is ``length[s]`` entries from ``begin[s]``; row i has those from first[i]."""

    def __init__(self, xp: Any, indptr: Array, rows: Array, length: int) -> None:
        # A handful of rows, so on the host.
        ends = (indptr[rows], indptr[rows + 1])
        begin, end = (backend.of(x).to_host(x).astype(np.int64) for x in ends)
        counts = -(-(end - begin) // length)
        first = np.concatenate(([0], np.cumsum(counts)))
        offset = (np.arange(first[-1]) - np.repeat(first[:-1], counts)) * length
        self.count = int(first[-1])
        self.begin = xp.asarray(np.repeat(begin, counts) + offset)
        self.length = xp.asarray(np.minimum(length, np.repeat(end - begin, counts) - offset).astype(np.int32))
        self.first = xp.asarray(first.astype(np.int32))


def spmm(A: CSR, B: Array, out: Array, accumulate: bool = False, variant: Variant | None = None) -> Array:
    """See ``local.spmm``; ValueError for other types than float32 and float64. variant: for the tuned one."""
    xp, (m, k), f = gpu.library(B), A.shape, B.shape[1]
    if A.dtype.char not in "fd":
        raise ValueError(f"spmm: values must be float32 or float64, not {A.dtype}")
    check("spmm", (k, f), A.dtype, B=B)
    check("spmm", (m, f), A.dtype, out=out)
    if m and f:
        product = _Product(xp, A, B, out, accumulate)
        if variant is not None:
            product.run(variant)
        else:
            _tuner(xp, A, B, product.plan).run(product.run)
    return out


class _Product:
    """The launches of one product."""

    def __init__(self, xp: Any, A: CSR, B: Array, out: Array, accumulate: bool) -> None:
        self.xp, self.A, self.B, self.plan = xp, A, B, Plan.of(xp, A)
        self.target = out, np.int32(accumulate)
        skips = accumulate and self.plan.filled_rows is not None  # to rows without non-zeros nothing happens
        self.rows = self.plan.filled_rows if skips else self.plan.short_rows

    def run(self, variant: Variant) -> None:
        plan, f = self.plan, self.B.shape[1]
        B = _padded(self.xp, self.B, variant.V) if variant.padded else self.B
        factors = plan.indices, self.A.data, B, np.int32(B.shape[1]), np.int32(f)
        if plan.long_rows is not None:  # first, because their work takes longest
            self._long_rows(replace(variant, P=variant.L), factors, f)
        count = self.A.shape[0] if self.rows is None else self.rows.size
        grid = blocks_for(count * variant.G * variant.P), variant.panels(f)
        rows = np.int32(count), self.rows, plan.indptr
        self._launch("spmm", self._kinds(variant), grid, *rows, *factors, *self.target)

    def _long_rows(self, variant: Variant, factors: tuple[Any, ...], f: int) -> None:
        plan, V, G = self.plan, variant.V, variant.G
        cut = plan.segments(self.xp, min(512, 128 * variant.P))
        width = -(-f // V) * V
        sums = self.xp.empty((cut.count, width), self.A.dtype), np.int32(width)
        grid = blocks_for(cut.count * G * variant.P), variant.panels(f)
        segments = np.int32(cut.count), cut.begin, cut.length
        self._launch("spmm_segments", self._kinds(variant), grid, *segments, *factors, *sums)
        grid = plan.long_rows.size, -(-f // (V * G))
        rows = plan.long_rows, cut.first
        self._launch("spmm_combine", f"{V},{G}", grid, *rows, *sums, np.int32(f), *self.target)

    def _kinds(self, variant: Variant) -> str:
        return f"{c_type(self.plan.indices)},{variant.arguments}"

    def _launch(self, kernel: str, kinds: str, grid: tuple[int, int], *arguments: Any) -> None:
        gpu.launch(self.xp, FILE, f"{kernel}<{c_type(self.B)},{kinds}>", grid, *arguments)


def _tuner(xp: Any, A: CSR, B: Array, plan: Plan) -> Tuner[Variant]:
    f, alignment = B.shape[1], min(address(B) & -address(B), VECTOR_BYTES)
    if (f, alignment) not in plan.tuners:
        ways = candidates(f, B.dtype.itemsize, alignment, plan.average)
        if os.environ.get("DISTGNN_SPMM_TUNE", "1") == "0":
            ways = ways[:1]
        label = f"spmm of {A.shape[0]} x {A.shape[1]}, {A.nnz} non-zeros, {f} columns of {B.dtype.name}"
        plan.tuners[f, alignment] = Tuner(ways, label, *gpu.clock(xp))
    return plan.tuners[f, alignment]


def _padded(xp: Any, B: Array, V: int) -> Array:
    k, f = B.shape
    padded = xp.empty((k, -(-f // V) * V), B.dtype)
    padded[:, :f] = B
    padded[:, f:] = 0
    return padded


def _aligned(array: Array) -> Array:
    return array if address(array) % array.itemsize == 0 else array.copy()

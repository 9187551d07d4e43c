"""Passes over entries with a number per head, as in :mod:`distgnn.local.edges`, by ``kernels/edges.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.local.cuda import csr
from distgnn.local.cuda.launch import WARP, Array, blocks_for, c_type, check, launch, library

FILE = "edges.cu"
ADD, SET, MOST = 0, 1, 2  # of edge_fold
PHASES = 1, 2, 4  # of a softmax, one after the other
LONGEST = 256  # entries of a row, or of the pieces that longer rows are cut into
CUT_FROM = 1 << 18  # entries of a block: in smaller ones a warp goes through any row soon enough


def edge_products(
    A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool, order: Array
) -> None:
    """Compute like ``local.edges.multiply``; ``bounds`` must cover all columns."""
    m, f = out.shape
    check("edge_products", (A.shape[1], f), values.dtype, B=B)
    check("edge_products", (A.shape[0], f), values.dtype, out=out)
    check("edge_products", (A.nnz, len(bounds) - 1), values.dtype, values=values)
    check("edge_products", (A.nnz,), A.indices.dtype, order=order)
    if (bounds[0], bounds[-1]) != (0, f):
        raise ValueError(f"edge_products: bounds must go from 0 to {f}, got {list(bounds)}")
    V, heads = _vector(bounds, B, out), by_head(A, bounds, out)
    G = (8 if f <= 8 else WARP) if V == 1 else 16 if f <= 16 * V else WARP
    name, factors, cut = (
        f"edge_products<{types(A, out)},{G},{V}>",
        (values, order, B, np.int32(f)),
        CutRows(A),
    )
    if m and f:
        cut.rows(name, G, True, *heads, *factors, out, np.int32(add))
    if cut.most:
        parts = library(out).empty((cut.most, f), out.dtype)
        cut.pieces(name, G, True, *heads, *factors, parts, np.int32(0))
        cut.fold(parts, out, ADD if add else SET)


def edge_dots(A: CSR, U: Array, V: Array, bounds: Sequence[int], out: Array) -> None:
    """Compute like ``local.edges.dots``."""
    heads = len(bounds) - 1
    check("edge_dots", (A.shape[0], U.shape[1]), U.dtype, U=U)
    check("edge_dots", (A.shape[1], U.shape[1]), U.dtype, V=V)
    check("edge_dots", (A.nnz, heads), U.dtype, out=out)
    together = _vector(bounds, U, V)
    G = 8 if bounds[-1] > 8 * together * heads else 1
    how = *by_head(A, bounds, out), U, V, np.int32(U.shape[1]), out
    CutRows(A).both(f"edge_dots<{types(A, out)},{G},{together}>", True, *how)


def edge_softmax(
    A: CSR, x: Array, maxima: Array, sums: Array, phases: int, ends: tuple[Array, Array] | None, slope: float,
    signs: Array, first: int,
) -> None:  # fmt: skip
    """Compute like ``local.edges.softmax``."""
    (m, k), heads = A.shape, x.shape[1]
    u, v = ends or (None, None)
    check("edge_softmax", (A.nnz, heads), A.dtype, x=x)
    check("edge_softmax", (m, heads), x.dtype, u=u, maxima=maxima, sums=sums)
    check("edge_softmax", (k, heads), x.dtype, v=v)
    numbers = x.dtype.type(slope), x, _words(signs, first + x.size), np.int64(first)
    how = np.int32(heads), u, v, *numbers, maxima, sums
    name, cut = f"edge_softmax<{types(A, x)}>", CutRows(A)
    cut.rows(name, WARP, True, *how, np.int32(phases), None)
    for phase, gives, fold in zip(PHASES, (maxima, sums, None), (MOST, ADD, ADD), strict=True):
        cut.phase(name, True, how, phases & phase, gives, fold)


def edge_softmax_back(
    A: CSR, P: Array, x: Array, sums: Array, totals: Array, phases: int, slope: float, signs: Array,
    first: int,
) -> None:  # fmt: skip
    """Compute like ``local.edges.softmax_back``."""
    m, heads = A.shape[0], x.shape[1]
    check("edge_softmax_back", (A.nnz, heads), A.dtype, P=P, x=x)
    check("edge_softmax_back", (m, heads), x.dtype, sums=sums, totals=totals)
    numbers = P, x.dtype.type(slope), _words(signs, first + x.size), np.int64(first)
    how, name, cut = (
        (np.int32(heads), *numbers, x, sums, totals),
        f"edge_softmax_back<{types(A, x)}>",
        CutRows(A),
    )
    cut.rows(name, WARP, False, *how, np.int32(phases), None)
    for phase, gives in zip(PHASES, (sums, totals), strict=False):
        cut.phase(name, False, how, phases & phase, gives, ADD)


class CutRows:
    """The rows of a block: short ones, and the pieces of those of more than `LONGEST` entries.

    Args:
        file: the source of the kernels that are launched on them.

    Attributes:
        most: at most so many pieces; 0 where no row is cut.
    """

    def __init__(self, A: CSR, file: str = FILE) -> None:
        self.file = file
        self.A, self.plan = A, csr.RowFacts.of(library(A.indptr), A)
        self.cut = self.plan.pieces(LONGEST) if A.nnz >= CUT_FROM else None
        self.most = self.cut.most if self.cut else 0

    def rows(self, name: str, lanes: int, columns: bool, *arguments: Any) -> None:
        """Launch a kernel, so many lanes for each row, on the rows that are not cut."""
        longest = np.int32(LONGEST if self.most else 0)
        self._launch(name, self.A.shape[0] * lanes, columns, longest, None, None, *arguments)

    def pieces(self, name: str, lanes: int, columns: bool, *arguments: Any) -> None:
        """Launch a kernel on the pieces."""
        assert self.cut
        cut = np.int32(LONGEST), self.cut.table, self.cut.total
        self._launch(name, self.most * lanes, columns, *cut, *arguments)

    def both(self, name: str, columns: bool, *arguments: Any) -> None:
        """Launch a kernel, a warp for each, on rows and pieces."""
        self.rows(name, WARP, columns, *arguments)
        if self.most:
            self.pieces(name, WARP, columns, *arguments)

    def phase(
        self, name: str, columns: bool, arguments: tuple[Any, ...], phase: int, gives: Array, how: int
    ) -> None:
        """Launch a phase, if any, on the pieces; fold what it gives for each row and head."""
        if not (self.most and phase):
            return
        heads = int(arguments[0])
        parts = None if gives is None else library(gives).empty((self.most, heads), gives.dtype)
        self.pieces(name, WARP, columns, *arguments, np.int32(phase), parts)
        if parts is not None:
            self.fold(parts, gives, how)

    def fold(self, parts: Array, out: Array, how: int) -> None:
        """Join the parts of each row's pieces, one after the other, and what is in ``out``."""
        assert self.cut
        arguments = self.cut.table, self.cut.total, np.int32(parts.shape[1]), parts, out, np.int32(how)
        launch(library(out), FILE, f"edge_fold<{c_type(out)}>", blocks_for(parts.size), *arguments)

    def _launch(self, name: str, threads: int, columns: bool, *arguments: Any) -> None:
        rows = self.plan.indptr
        pattern = (rows, self.plan.indices) if columns else (rows,)
        count = np.int64(self.A.shape[0])
        launch(library(rows), self.file, name, blocks_for(threads), count, *pattern, *arguments)


def _vector(bounds: Sequence[int], *arrays: Array) -> int:
    """Return the columns that a lane takes at a time: 16 bytes where all heads have a multiple of that."""
    V = csr.VECTOR_BYTES // arrays[0].itemsize
    aligned = all(csr.address(array) % csr.VECTOR_BYTES == 0 for array in arrays)
    return V if aligned and all(bound % V == 0 for bound in bounds) else 1


def types(A: CSR, numbers: Array) -> str:
    """Return the template arguments of numbers and integers."""
    return f"{c_type(numbers)},{c_type(A.indices)}"


def _words(signs: Array, count: int) -> Array:
    """Return the bits as 32-bit words."""
    if signs is None:
        return None
    if signs.size < 4 * -(-count // 32):
        raise ValueError(f"signs: need {4 * -(-count // 32)} bytes, got {signs.size}")
    return signs.view(np.uint32)


def by_head(A: CSR, bounds: Sequence[int], like: Array) -> tuple[Any, ...]:
    """Return the number of heads, and their columns: bounds on the device, copied once, or an even width."""
    heads = len(bounds) - 1
    even = bounds[-1] // heads if heads else 0
    if even and list(bounds) == [k * even for k in range(heads + 1)]:
        return np.int32(heads), None, np.int32(even)
    key = f"heads {bounds}"
    if key not in A.pattern:
        A.pattern[key] = library(like).asarray(np.array(bounds, np.int64))
    return np.int32(heads), A.pattern[key], np.int32(0)

"""Passes over entries with a number per head, as in :mod:`distgnn.local.edges`.

By ``kernels/edges.cu`` and ``kernels/edge_softmax.cu``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays.csr import CSR
from distgnn.local.cuda import csr
from distgnn.local.cuda.launch import WARP, Array, blocks_for, c_type, check, lanes_for, launch, library

FILE, SOFTMAX = "edges.cu", "edge_softmax.cu"
SCORES, POWERS, SHARES = 1, 2, 4  # phases of a softmax
SUMS, GRADIENT = 1, 2  # and of its adjoint
LONGEST = 256  # entries of a row, or of the pieces that longer rows are cut into
CUT_FROM = 1 << 18  # entries of a block: in smaller ones a warp goes through any row soon enough
ORDERED_FROM = 8  # entries of a row, on average, from which on large blocks are gone through by length


def edge_products(
    A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool, order: Array
) -> None:
    """Compute like ``local.edges.multiply``; ``bounds`` must cover all columns."""
    f = out.shape[1]
    check("edge_products", (A.shape[1], f), values.dtype, B=B)
    check("edge_products", (A.shape[0], f), values.dtype, out=out)
    check("edge_products", (A.nnz, len(bounds) - 1), values.dtype, values=values)
    check("edge_products", (A.nnz,), A.indices.dtype, order=order)
    if (bounds[0], bounds[-1]) != (0, f):
        raise ValueError(f"edge_products: bounds must go from 0 to {f}, got {list(bounds)}")
    V = _vector(bounds, B, out)
    G = (8 if f <= 8 else WARP) if V == 1 else 16 if f <= 16 * V else WARP
    tasks = Tasks.of(A)
    how = tasks.indices, *by_head(A, bounds, out), values, order, B, np.int32(f)
    tasks.sum_rows(FILE, f"edge_products<{types(A, out)},{G},{V}>", G, how, out, add)


def edge_dots(A: CSR, U: Array, V: Array, bounds: Sequence[int], out: Array) -> None:
    """Compute like ``local.edges.dots``."""
    heads, f = len(bounds) - 1, U.shape[1]
    check("edge_dots", (A.shape[0], f), U.dtype, U=U)
    check("edge_dots", (A.shape[1], f), U.dtype, V=V)
    check("edge_dots", (A.nnz, heads), U.dtype, out=out)
    together, tasks = _vector(bounds, U, V), Tasks.of(A)
    G = lanes_for(max(1, -(-bounds[-1] // (together * max(heads, 1)))))
    G = 8 if together == 1 < G else G
    how = tasks.indices, *by_head(A, bounds, out), U, V, np.int32(f), out
    tasks.launch(FILE, f"edge_dots<{types(A, out)},{G},{together}>", WARP, *how)


def edge_softmax(
    A: CSR, x: Array, maxima: Array, sums: Array, phases: int, ends: tuple[Array, Array] | None, slope: float,
    signs: Array, first: int,
) -> None:  # fmt: skip
    """Compute like ``local.edges.softmax``, all phases or one."""
    (m, k), heads = A.shape, x.shape[1]
    u, v = ends or (None, None)
    check("edge_softmax", (A.nnz, heads), A.dtype, x=x)
    check("edge_softmax", (m, heads), x.dtype, u=u, maxima=maxima, sums=sums)
    check("edge_softmax", (k, heads), x.dtype, v=v)
    bits = _words(signs, first + x.size), np.int64(first)
    of_scores = Tasks.of(A).indices, np.int32(heads), u, v, x.dtype.type(slope)
    if phases == SCORES | POWERS | SHARES:
        _whole_softmax(A, of_scores, x, bits)
        return
    read, out = {SCORES: (None, maxima), POWERS: (maxima, sums), SHARES: (sums, None)}[phases]
    tasks = Tasks.of(A)
    how = *of_scores, x, *bits, read, out, tasks.parts(heads, x), np.int32(phases)
    tasks.launch(SOFTMAX, f"edge_softmax_phase<{types(A, x)}>", WARP, tasks.arrived(), *how)


def _whole_softmax(A: CSR, of_scores: tuple[Any, ...], x: Array, bits: tuple[Any, ...]) -> None:
    """Launch all phases on all rows, then the end on those that are cut."""
    xp, tasks, of_rows = library(x), Tasks.of(A), (A.shape[0], x.shape[1])
    shapes = of_rows, of_rows, (2, tasks.most, x.shape[1])
    cut = [xp.empty(shape, x.dtype) if tasks.most else None for shape in shapes]
    ends = "true" if of_scores[2] is not None else "false"
    how = tasks.arrived(), *of_scores, x, x, *bits, *cut, np.int32(tasks.most)
    for ending in (False, True) if tasks.most else (False,):
        name = f"edge_softmax<{types(A, x)},{ends}>"
        tasks.launch(SOFTMAX, name, WARP, *how, np.int32(ending), pieces=ending)


def edge_softmax_back(
    A: CSR, P: Array, x: Array, sums: Array, totals: Array, phases: int, slope: float, signs: Array,
    first: int,
) -> None:  # fmt: skip
    """Compute like ``local.edges.softmax_back``."""
    m, heads = A.shape[0], x.shape[1]
    check("edge_softmax_back", (A.nnz, heads), A.dtype, P=P, x=x)
    check("edge_softmax_back", (m, heads), x.dtype, sums=sums, totals=totals)
    tasks, bits = Tasks.of(A), (_words(signs, first + x.size), np.int64(first))
    both, name = phases == SUMS | GRADIENT, f"edge_softmax_back<{c_type(x)}>"
    if both and tasks.most:
        sums = library(x).zeros((m, heads), x.dtype)
    numbers = np.int32(heads), P, x.dtype.type(slope), *bits, x, sums, totals
    how = tasks.arrived(), *numbers, tasks.parts(heads, x)
    tasks.launch(SOFTMAX, name, WARP, *how, np.int32(phases))
    if both and tasks.most:
        tasks.launch(SOFTMAX, name, WARP, *how, np.int32(GRADIENT), pieces=True)


class Tasks:
    """The rows of a block as kernels take them: pieces of those of more than `LONGEST` entries, then others.

    The table of them is made once, and kept with the pattern: 32 bytes for each row and piece.

    Attributes:
        most: at most so many pieces; 0 where no row is cut. indices: of the block, where a GPU reads them.
    """

    def __init__(self, A: CSR) -> None:
        xp, m = library(A.indptr), A.shape[0]
        facts = csr.RowFacts.of(xp, A)
        self.indices = facts.indices
        self._cut = facts.pieces(LONGEST) if A.nnz >= CUT_FROM else None
        self.most = self._cut.most if self._cut else 0
        self._count, self._xp = self.most + m, xp
        self._table = xp.empty((self._count, 4), np.int64)
        ledger.holds(self, "adjacency", self._table.nbytes)
        pieces = (self._cut.total, self._cut.table) if self._cut and self.most else (None, None)
        sizes, longest = (np.int32(m), np.int32(self.most)), np.int32(LONGEST if self.most else 0)
        ordered = A.nnz >= max(csr.LARGE, ORDERED_FROM * m)
        rows = facts.by_length()[0] if ordered else None
        arguments = *sizes, *pieces, longest, facts.indptr, rows, self._table
        launch(xp, FILE, f"edge_tasks<{c_type(facts.indptr)}>", blocks_for(self._count), *arguments)

    @classmethod
    def of(cls, A: CSR) -> Tasks:
        """Return the tasks of a block, made once."""
        key = f"tasks of {LONGEST}"
        if key not in A.pattern:
            A.pattern[key] = cls(A)
        return A.pattern[key]

    def arrived(self) -> Array:
        """Return counters of pieces for the current stream, 0 between launches; None where there are none."""
        return self._cut.arrived(self._xp, 1) if self._cut and self.most else None

    def parts(self, width: int, like: Array) -> Array:
        """Make room for so many numbers of each piece; None where there are none."""
        return self._xp.empty((self.most, width), like.dtype) if self.most else None

    def launch(self, file: str, name: str, lanes: int, *arguments: Any, pieces: bool = False) -> None:
        """Launch a kernel, so many lanes for each task, or for each of the ``pieces``."""
        count = self.most if pieces else self._count
        launch(self._xp, file, name, blocks_for(count * lanes), np.int64(count), self._table, *arguments)

    def sum_rows(self, file: str, name: str, lanes: int, how: tuple[Any, ...], out: Array, add: bool) -> None:
        """Launch a kernel whose sums of rows go to ``out``, with what is there if they are to ``add``."""
        if out.size:
            ends = out, self.parts(out.shape[1], out), np.int32(add)
            self.launch(file, name, lanes, self.arrived(), *how, *ends)


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

"""``Q A`` of two sparse matrices, the product that sampling is made of: with the graph on every rank, or cut
over a 1.5D grid (matrix-sampling paper, sections 5.1 and 5.2, Algorithm 2).

Both forms have ``multiply(Q)``, which gives the product of the caller's own rows of Q, and ``pieces(Q)``,
which gives it in bounded pieces of rows for those who need not hold all of it. Matrices are SciPy's, on the
host.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import ledger, local
from distgnn.arrays.csr import Shape
from distgnn.comm.exchange import Exchange
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.errors import UserError
from distgnn.layout import Range, as_partition, block
from distgnn.local import csr_rows
from distgnn.local.csr_rows import Packed
from distgnn.operators.block_15d import Block15D
from distgnn.operators.sources import BlockSource, MatrixSource
from distgnn.sampling.graph import Neighbours, selection, timed_each
from distgnn.sampling.rows import draw, draw_selected

#: Non-zeros of Q A that are made at a time: 2 to 4 MiB, which the step after reads from a cache.
PIECE = 1 << 18


class _Operand:
    """What both forms are to a sampler beside their products (see ``graph.py``)."""

    shape: Shape
    dtype: np.dtype
    A: sp.csr_array
    collective = False

    @property
    def n(self) -> int:
        """Rows of A."""
        return self.shape[0]

    def draw(self: Any, vertices: np.ndarray, fanout: int, keys: np.ndarray) -> Iterator[Neighbours]:
        # weights up to a factor, so 1 stands for 1 / degree
        for (first, last), P in timed_each("probability", self.pieces(selection(vertices, self.n))):
            with ledger.timed("sampling", "draw"):
                drawn = draw(P.indptr, None, fanout, keys[first:last])
                found = Neighbours.of(P, drawn, np.diff(P.indptr))
            yield found

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Any:
        """The same with ``function(values)`` in place of its values, floating-point numbers again; the
        structure is shared. Local to a rank; all must give the same function.
        """
        other = copy.copy(self)
        other.A = sp.csr_array((function(self.A.data), self.A.indices, self.A.indptr), shape=self.A.shape)
        other.dtype = other.A.dtype
        if other.dtype.kind != "f":
            raise ValueError(f"the function makes {other.dtype} of values that are {self.dtype}")
        ledger.holds(other, "adjacency", other.A.data.nbytes)
        return other


class Replicated(_Operand):
    """A matrix that this rank has all of; its products need no other rank (section 5.1).

    Args:
        A: SciPy sparse matrix or a block source, (n, m); stored zeros are dropped.
        entries: non-zeros that a piece of a product may be estimated to have (see
            :func:`local.spgemm_pieces`); None: any number.

    Attributes:
        shape, dtype: of A; indptr: its row pointers, int64.
    """

    def __init__(self, A: Any, entries: int | None = PIECE) -> None:
        self.entries = _at_least_one(entries)
        source: BlockSource = A if hasattr(A, "block") else MatrixSource(A)
        self.shape: Shape = (int(source.shape[0]), int(source.shape[1]))
        self.dtype = np.dtype(source.dtype)
        self.A = _without_zeros(sp.csr_array(source.block((0, self.shape[0]), (0, self.shape[1]))))
        self.indptr = self.A.indptr.astype(np.int64)
        ledger.holds(self, "adjacency", _nbytes(self.A))

    def multiply(self, Q: Any) -> sp.csr_array:
        """``Q A``: (k, n) by (n, m) gives (k, m), canonical, without stored zeros, of A's dtype, in which Q's
        values are taken.

        Raises:
            TypeError, ValueError: Q is not a sparse matrix of n columns.
        """
        return local.spgemm(_canonical(Q, self.shape[0], self.dtype), self.A)

    def pieces(self, Q: Any) -> Iterator[tuple[Range, sp.csr_array]]:
        """The same in pieces: ((first, last + 1), those rows)."""
        return local.spgemm_pieces(_canonical(Q, self.shape[0], self.dtype), self.A, self.entries)

    def draw(self, vertices: np.ndarray, fanout: int, keys: np.ndarray) -> Iterator[Neighbours]:
        """From where the rows stand: ``Q A`` would copy them whole to take a few entries of each."""
        with ledger.timed("sampling", "draw"):
            drawn = draw_selected(self.indptr, vertices, fanout, keys)
            found = Neighbours.of(self.A, drawn, self.indptr[vertices + 1] - self.indptr[vertices])
        yield found


class Partitioned(_Operand):
    """A matrix in P/c block rows over the axis ``rows`` of a 1.5D grid, with products of which only the rows
    travel that are read (section 5.2, Algorithm 2).

    Q is cut alike: process row i has its own rows ``Q_i``, the same on all its c ranks. Process column j
    multiplies the columns of ``Q_i`` that belong to its stages with those block rows ``A_q``, s = ⌈(P/c)/c⌉
    of the P/c, and gets the rows of ``A_q`` that this reads from rank (q, j). Then the partial products of a
    process row are summed as sparse matrices. A rank holds its block row only where that is a stage of its
    process column: nobody asks the others for rows, so that A is held once in all.

    A row of the product to which a single row of A contributes, as in GraphSAGE, is the same to the bit on
    every grid. Other sums are made in the order of A's rows, within each process column first, so that they
    may round differently for different c. They never differ between the ranks of a process row.

    Args:
        grid: with the axes ``rows`` and ``reps``, as :func:`algorithms.make_grid` makes it for "1.5d".
        A: SciPy sparse matrix, equal on all ranks, or a block source, (n, m).
        parts: partition vector of A's rows over ``rows``; default even.
        entries: non-zeros that a piece of a product may be estimated to have; None: any number. What is
            fetched for a piece is bounded alike, and what is sent by P/c times as much; but ``multiply``
            holds all of the product in the end.

    Attributes:
        shape, dtype: of A; parts; stages: the block rows that this process column multiplies.
        A: this rank's block row; no rows where nobody asks for any.

    Cost per product and rank (i, j), in words received. D distinct columns of ``Q_i`` lie in the stages other
    than i, those rows of A have N entries, other ranks ask this one for D' rows, ``Q_i`` has k rows, and Ĉ_r
    is the partial product of rank (i, r):

        D' (row numbers) + D (lengths) + 2 N (columns and values) + Σ_{r≠j} (k + 2 nnz(Ĉ_r))

    in at most 4 (P/c - 1) + 3 (c - 1) messages, beside the numbers of what is sent, which are agreed on
    first. ``entries`` costs an all-reduce of k estimates over the c ranks in addition. Where there are
    several pieces, each asks for its rows again: N and nnz are then sums over the pieces, and so is D', to
        which those of the first question are added.

    Raises:
        UserError: a grid with other axes.
        ValueError: not the same matrix on all ranks, or a vector that does not cut its rows.
    """

    collective = True

    def __init__(
        self, grid: Grid, A: Any, parts: np.ndarray | None = None, entries: int | None = None
    ) -> None:
        if tuple(grid.shape) != Block15D.axes:
            raise UserError(
                f"a partitioned graph needs a grid with the axes {', '.join(Block15D.axes)}; got {grid}"
            )
        self.grid, self.entries = grid, _at_least_one(entries)
        self.column, self.row = grid.along_on_host("rows"), grid.along_on_host("reps")
        self.stages = Block15D.share(grid, self.column.size)
        with grid.world.together():
            source: BlockSource = A if hasattr(A, "block") else MatrixSource(A)
            self.shape: Shape = (int(source.shape[0]), int(source.shape[1]))
            self.dtype = np.dtype(source.dtype)
            self.parts = as_partition(parts, self.shape[0], self.column.size)
            held = block(self.parts, self.column.rank) if self.column.rank in self.stages else (0, 0)
            self.A = _without_zeros(sp.csr_array(source.block(held, (0, self.shape[1]))))
        kinds = grid.world.gather_objects((self.shape, str(self.dtype), self.parts.tolist(), entries))
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError(f"the ranks were given different matrices, partitions or bounds: {kinds}")
        ledger.holds(self, "adjacency", _nbytes(self.A))

    def multiply(self, Q: Any) -> sp.csr_array:
        """``Q_i A`` for this process row's (k, n) rows of Q: (k, m), canonical, without stored zeros, of A's
        dtype, in which Q's values are taken; the same on the c ranks of a process row. Collective over the
        grid.

        Raises:
            TypeError, ValueError: Q is not a sparse matrix of n columns, or differs within a process row. On
                all ranks.
        """
        return _stacked([piece for _, piece in self.pieces(Q)], self)

    def pieces(self, Q: Any) -> Iterator[tuple[Range, sp.csr_array]]:
        """The same in pieces, ((first, last + 1), those rows), made when asked for. All ranks must exhaust
        it: one that has no rows left still serves others.
        """
        Q_i = self._agreed(Q)
        fetch = NeededRows(self.column, self.A, self._needed(Q_i))
        cuts = csr_rows.cut(self._estimates(Q_i, fetch), self.entries)
        rounds = max(self.grid.world.gather_objects(len(cuts)))
        for turn in range(rounds):
            first, last = cuts[turn] if turn < len(cuts) else (Q_i.shape[0], Q_i.shape[0])
            product = self._round(Q_i if rounds == 1 else Q_i[first:last], fetch, whole=rounds == 1)
            if turn < len(cuts):
                yield (first, last), product

    def _round(self, Q_i: sp.csr_array, fetch: NeededRows, whole: bool) -> sp.csr_array:
        """Algorithm 2 for all or some rows of ``Q_i``; its stages q = j s ... (j+1) s - 1 in one exchange."""
        needed = fetch.needed if whole else self._needed(Q_i)  # NnzCols(Q_iq)
        A_hat = fetch.rows(needed, again=not whole)  # these rows of A_q, from rank (q, j)
        # Ĉ = Σ_q Q_iq Â_q
        C_hat = local.spgemm(self._only(Q_i, needed), csr_rows.unpack(A_hat, self.shape[1], self.A))
        return self._all_reduce(C_hat)  # over the process row

    def _only(self, Q_i: sp.csr_array, needed: dict[int, np.ndarray]) -> sp.csr_array:
        """``Q_i`` with the columns that belong to these rows of A only."""
        columns = [rows + self.parts[q] for q, rows in needed.items()]
        return csr_rows.select_columns(Q_i, np.concatenate(columns) if columns else np.empty(0, np.int64))

    def _all_reduce(self, C_hat: sp.csr_array) -> sp.csr_array:
        """The sum over the process row of matrices of equal shape, in the order of ranks."""
        comm = self.row
        if comm.size == 1:
            return C_hat
        k = C_hat.shape[0]
        entries = np.cumsum([0, *comm.gather_objects(C_hat.nnz)])
        kind = csr_rows.index_type(*self.shape)
        counts = comm.allgather_rows(csr_rows.lengths(C_hat).astype(kind), np.arange(comm.size + 1) * k)
        columns = comm.allgather_rows(C_hat.indices.astype(kind, copy=False), entries)
        values = comm.allgather_rows(C_hat.data, entries)
        partial = csr_rows.unpack((counts, columns, values), self.shape[1], C_hat)
        # Row r of the sum is that of rows r, k + r, 2 k + r, ... of what stands one above the other: a
        # product again.
        summands = (np.arange(k)[:, None] + k * np.arange(comm.size)).reshape(-1)
        filled = summands[counts[summands] > 0]
        pointers = csr_rows.row_pointers((counts.reshape(comm.size, k) > 0).sum(axis=0))
        ones = np.ones(filled.size, self.dtype)
        return local.spgemm(sp.csr_array((ones, filled, pointers), shape=(k, comm.size * k)), partial)

    def _agreed(self, Q: Any) -> sp.csr_array:
        """Q checked, on all ranks together."""
        with self.grid.world.together():
            Q_i = _canonical(Q, self.shape[0], self.dtype)
        told = self.grid.world.gather_objects((self.grid.coords["rows"], Q_i.shape, _checksum(Q_i)))
        if len(set(told)) > self.column.size:
            rows = [row for row, *_ in set(told)]
            wrong = sorted({row for row in rows if rows.count(row) > 1})
            raise ValueError(
                f"Q must be the same on all ranks of a process row; it is not in process rows {wrong}"
            )
        return Q_i

    def _needed(self, Q_i: sp.csr_array) -> dict[int, np.ndarray]:
        """The distinct columns of ``Q_i`` in each stage, as rising rows of that block row of A."""
        columns = np.unique(Q_i.indices).astype(np.int64)
        bounds = np.searchsorted(columns, self.parts)
        return {q: columns[bounds[q] : bounds[q + 1]] - self.parts[q] for q in self.stages}

    def _estimates(self, Q_i: sp.csr_array, fetch: NeededRows) -> np.ndarray:
        """int64 (k): multiplications in each row of the product, all stages together."""
        if self.entries is None:
            return np.zeros(Q_i.shape[0], np.int64)
        lengths = list(fetch.lengths.values())
        counts = np.concatenate(lengths).astype(np.int64) if lengths else np.empty(0, np.int64)
        Q_needed = self._only(Q_i, fetch.needed)
        return self.row.allreduce(csr_rows.multiplications(Q_needed, counts[Q_needed.indices]))


class NeededRows:
    """Rows of a matrix cut in block rows over ``comm``, for one product: finds out how long the needed ones
    are, then fetches them, all at once or some at a time. Making one, and every call, is collective over
    ``comm``.

    Args:
        comm: the ranks that share the matrix; rank q holds ``A`` of its own block row.
        needed: by rank, rising rows of its block row.

    Attributes:
        lengths: by rank, of the rows in ``needed``.
    """

    def __init__(self, comm: Comm, A: sp.csr_array, needed: dict[int, np.ndarray]) -> None:
        self.comm, self.A, self.needed = comm, A, needed
        self.kind = csr_rows.index_type(*A.shape)
        self.asked = self._ask(needed)
        own = csr_rows.lengths(A)
        answers = {r: own[rows] for r, rows in self.asked.items()}
        self.lengths = self._answer(answers, {q: rows.size for q, rows in needed.items()}, self.kind)

    def rows(self, needed: dict[int, np.ndarray], again: bool) -> Packed:
        """The packed rows, one rank's after another's: those that the ranks know to be needed, or with
        ``again`` some of them.
        """
        asked = self._ask(needed) if again else self.asked
        lengths = {q: self.lengths[q][np.searchsorted(self.needed[q], rows)] for q, rows in needed.items()}
        packed = {r: csr_rows.gather(self.A, rows) for r, rows in asked.items()}
        sizes = {q: int(counts.sum()) for q, counts in lengths.items()}
        columns = self._answer({r: rows[1] for r, rows in packed.items()}, sizes, self.kind)
        values = self._answer({r: rows[2] for r, rows in packed.items()}, sizes, self.A.dtype)
        parts = [(lengths[q], columns[q], values[q]) for q in needed]
        nothing = (np.empty(0, self.kind), np.empty(0, self.kind), np.empty(0, self.A.dtype))
        return csr_rows.join(parts) if parts else nothing

    def _ask(self, needed: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Tell every rank which of its rows are needed here; returns those that each needs of this one."""
        counts = self.comm.swap_objects([needed[q].size if q in needed else 0 for q in range(self.comm.size)])
        return self._answer(needed, {r: count for r, count in enumerate(counts) if count}, self.kind)

    def _answer(
        self, arrays: dict[int, np.ndarray], sizes: dict[int, int], dtype: Any
    ) -> dict[int, np.ndarray]:
        """One all-to-allv: ``arrays[r]`` goes to rank r; returns what comes, ``sizes[r]`` numbers from rank
        r.
        """
        comm, me = self.comm, self.comm.rank
        came = {r: np.empty(size, dtype) for r, size in sizes.items()}
        with Exchange(comm, [(r, came[r]) for r in _after(me, comm.size) if r in came]) as exchange:
            for r in reversed(_after(me, comm.size)):  # who waits for this rank first is sent to first
                if r in arrays:
                    exchange.send(np.ascontiguousarray(arrays[r], dtype), r)
            exchange.wait(came)
        if me in arrays:
            came[me] = np.ascontiguousarray(arrays[me], dtype)
        return came


def _after(rank: int, size: int) -> list[int]:
    """The other ranks, the next one first."""
    return [(rank + step) % size for step in range(1, size)]


def _canonical(Q: Any, n: int, dtype: np.dtype) -> sp.csr_array:
    """Q with sorted rows and without duplicates, of this dtype; the caller's own is left as it is."""
    if not sp.issparse(Q):
        raise TypeError(f"Q must be a SciPy sparse matrix, got {type(Q).__name__}")
    if Q.ndim != 2 or Q.shape[1] != n:
        raise ValueError(f"Q must have a column for each of the {n} rows of A; its shape is {Q.shape}")
    Q = sp.csr_array(Q)
    if not Q.has_canonical_format:
        Q = Q.copy()
        Q.sum_duplicates()
    return Q.astype(dtype, copy=False)


def _without_zeros(A: sp.csr_array) -> sp.csr_array:
    """The matrix itself where it has no stored zeros: they are no edges."""
    if A.data.all():
        return A
    A = A.copy()
    A.eliminate_zeros()
    return A


def _checksum(Q: sp.csr_array) -> int:
    """Of all numbers of a canonical matrix."""
    sums = 0
    for array in (Q.indptr.astype(np.int64), Q.indices.astype(np.int64), Q.data):
        sums = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, sums)
    return sums


def _stacked(pieces: list[sp.csr_array], A: Replicated | Partitioned) -> sp.csr_array:
    if not pieces:
        return sp.csr_array((0, A.shape[1]), dtype=A.dtype)
    return pieces[0] if len(pieces) == 1 else csr_rows.stack(pieces)


def _at_least_one(entries: int | None) -> int | None:
    if entries is not None and entries < 1:
        raise ValueError(f"pieces of at most {entries} entries: expected at least 1, or None for no bound")
    return entries


def _nbytes(A: sp.csr_array) -> int:
    return int(A.data.nbytes + A.indices.nbytes + A.indptr.nbytes)

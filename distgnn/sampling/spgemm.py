"""Products ``Q A`` of two sparse matrices, of which sampling is made (sections 5.1, 5.2).

The graph is on every rank, or cut over a 1.5D grid (matrix-sampling paper). Matrices are SciPy's, on the
host, but for those of a graph that every rank has on its GPU.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import ledger, local
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.blocking import bounded
from distgnn.arrays.canonical import canonical
from distgnn.arrays.csr import CSR, Shape, index_type
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.rows import Rows, by_owner
from distgnn.errors import ArgumentError, UserError
from distgnn.layout import NodeOrder, Range, as_partition, block
from distgnn.local import csr_rows, extract
from distgnn.local.draw import draw_selected
from distgnn.operators.block_15d import Block15D
from distgnn.operators.loading import Holders
from distgnn.operators.sources import BlockSource, MatrixSource
from distgnn.sampling.graph import Drawn, Graph, taken


class Replicated(Graph):
    """A matrix that this rank has all of; its products need no other rank (section 5.1).

    Args:
        A: SciPy sparse matrix or a block source, (n, m); stored zeros are entries.
        entries: non-zeros that a row block of a product may be estimated to have; None: any number. On a GPU
            products are made whole.
        backend: an array backend or its name; on a GPU, the graph lives there and samples are made there:
            give the grid's. Default: the host.
        grid: on hosts its ranks of a node hold A once. Collective then. Default: this rank has its own.

    Attributes:
        indptr: row pointers of A, int64.
    """

    def __init__(
        self, A: Any, entries: int | None = TUNING.product_entries, backend: Backend | str = "numpy",
        grid: Grid | None = None,
    ) -> None:  # fmt: skip
        self.entries = _at_least_one(entries)
        self.backend = backends.get(backend) if isinstance(backend, str) else backend
        source, self.shape, self.dtype, self.order = _source(A)
        whole = partial(_held, source, (0, self.shape[0]), self.shape[1], self.dtype)
        if grid is None or self.backend.on_device:
            self.A: Any = extract.held(self, whole(), self.backend)
        else:
            holders = Holders(grid, ("sampled", self.shape, self.order and self.order.name))
            (self.block,) = holders.make("matrix", lambda on: [CSR.from_scipy(whole(), on, self.dtype)])
            self.A = self.block.to_scipy()
        self.dtype = self.A.dtype
        self.indptr = self.backend.asarray(self.A.indptr).astype(np.int64)

    def multiply(self, Q: Any) -> Any:
        """Compute ``Q A``: (k, n) by (n, m) gives (k, m) of A's dtype, in which Q's values are taken.

        The product is SciPy's, or on a GPU a :class:`distgnn.local.extract.Product`, as Q may be one there.
        TypeError, ValueError: Q is no sparse matrix of n columns.
        """
        return extract.multiply(self._checked(Q), self.A, self.indptr)

    def row_blocks(self, Q: Any) -> Iterator[tuple[Range, Any]]:
        """Yield ``Q A`` in row blocks: ((first, last + 1), those rows)."""
        return extract.row_blocks(self._checked(Q), self.A, self.indptr, self.entries)

    def _checked(self, Q: Any) -> Any:
        return Q if isinstance(Q, extract.Product) else _canonical(Q, self.shape[0], self.dtype)

    def draw(self, vertices: Any, fanout: int, keys: Any) -> Iterator[Drawn]:
        """Draw from the rows where they stand: ``Q A`` would copy them to take a few entries of each."""
        with ledger.timed("sampling", "draw", on=self.backend):
            drawn = draw_selected(self.indptr, vertices, fanout, keys)
            neighbours = taken(self.A, drawn, extract.row_lengths(self.indptr, vertices))
        yield neighbours

    def on_host(self) -> Replicated:
        return Replicated(self.A.to_scipy(), self.entries) if isinstance(self.A, CSR) else self


class Partitioned(Graph):
    """A matrix in P/c block rows over the axis ``rows`` of a 1.5D grid (section 5.2, Algorithm 2).

    Only the rows travel that products read.

    Q is cut alike: process row i has its own rows ``Q_i``, the same on all its c ranks. Process column j
    multiplies the columns of ``Q_i`` that belong to its share of the blocks, P/c² of the P/c (`1.5d`), and
    gets the rows of ``A_q`` that this reads from rank (q, j). Then the partial products of a process row are
    summed as sparse matrices. A rank holds the rows of its block in that share: A is held once in all.

    A row of the product to which a single row of A contributes, as in GraphSAGE, is the same to the bit on
    every grid. Other sums are made in each process column first, in the order of A's rows, so that their
    rounding depends on c, and is alike in a process row.

    Args:
        grid: with the axes ``rows`` and ``reps``, as :func:`operators.make_grid` makes it for "1.5d".
        A: SciPy sparse matrix, equal on all ranks, or a block source, (n, m).
        parts: partition vector of A's rows over ``rows``; default even.
        entries: non-zeros that a row block of a product may be estimated to have; None: any number. What is
            fetched for it is bounded alike, and what is sent by P/c times as much.

    Attributes:
        parts: partition vector of the rows that this process column multiplies. A: this rank's of them.

    Cost per product and rank (i, j), in words received. D distinct columns of ``Q_i`` lie in the stages other
    than i, those rows of A have N entries, other ranks ask this one for D' rows, ``Q_i`` has k rows, and Ĉ_r
    is the partial product of rank (i, r):

        D' (row numbers) + D (lengths) + 2 N (columns and values) + Σ_{r≠j} (k + 2 nnz(Ĉ_r))

    in at most 4 (P/c - 1) + 3 (c - 1) messages. ``entries`` adds an all-reduce of k estimates over the c
    ranks. Each of several row blocks asks for its rows again: N and nnz are then sums over them, and so is
    D', to which those of the first question are added.

    Raises:
        UserError: a grid with other axes.
        ValueError: not the same matrix on all ranks, or a vector that does not cut its rows.
    """

    collective = True

    def __init__(
        self, grid: Grid, A: Any, parts: np.ndarray | None = None, entries: int | None = None
    ) -> None:
        if set(grid.shape) != set(Block15D.axes):
            axes = ", ".join(Block15D.axes)
            raise UserError(f"a partitioned graph needs a grid with the axes {axes}; got {grid}")
        self.grid, self.entries = grid, _at_least_one(entries)
        self.column, self.row = grid.along_on_host("rows"), grid.along_on_host("reps")
        with grid.world.together():
            source, self.shape, self.dtype, self.order = _source(A)
            whole = as_partition(parts, self.shape[0], self.column.size)
            _, self.parts = Block15D.share(grid, whole)
            matrix = _held(source, block(self.parts, self.column.rank), self.shape[1], self.dtype)
            self.A = extract.held(self, matrix, backends.get("numpy"))
        name = self.order and self.order.name
        kinds = grid.world.gather_objects((self.shape, str(self.dtype), name, whole.tolist(), entries))
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError(f"the ranks were given different matrices, partitions or bounds: {kinds}")

    def row_blocks(self, Q: Any) -> Iterator[tuple[Range, sp.csr_array]]:
        """Yield ``Q_i A`` for this process row's (k, n) rows of Q, as ((first, last + 1), those rows).

        The rows are the same on the c ranks of a process row. Collective over the grid: all must exhaust it,
        as one without rows left serves others. Raises on all ranks as :meth:`Replicated.multiply`, and
        ValueError where Q differs in a process row.
        """
        Q_i = self._of_stages(self._agreed(Q))
        columns, rows = self._needed(Q_i)
        lengths = rows.lengths(self.A)
        cuts = bounded(self._estimates(Q_i, columns, lengths), self.entries)
        rounds = max(self.grid.world.gather_objects(len(cuts)))
        for turn in range(rounds):
            first, last = cuts[turn] if turn < len(cuts) else (Q_i.shape[0], Q_i.shape[0])
            Q_t, read = Q_i, columns
            if rounds > 1:
                Q_t = Q_i[first:last]
                read, rows = self._needed(Q_t)
            # Algorithm 2, its stages q = j s ... (j+1) s - 1 in one exchange: rows NnzCols(Q_iq) of A_q
            A_hat = rows.fetch_ragged(self.A, lengths[np.searchsorted(columns, read)])
            A_hat = csr_rows.unpack(A_hat, self.shape[1], self.A)
            C_hat = local.spgemm(csr_rows.keep_columns(Q_t, read), A_hat)  # Ĉ = Σ_q Q_iq Â_q
            C = self._all_reduce(C_hat)
            if turn < len(cuts):
                yield (first, last), C

    def _all_reduce(self, C_hat: sp.csr_array) -> sp.csr_array:
        """Sum matrices of equal shape over the process row, in the order of ranks."""
        comm = self.row
        if comm.size == 1:
            return C_hat
        k = C_hat.shape[0]
        entries = np.cumsum([0, *comm.gather_objects(C_hat.nnz)])
        kind = index_type(*self.shape)
        each = np.arange(comm.size + 1) * k
        counts = comm.allgather_rows(csr_rows.lengths(C_hat).astype(kind), each, matrix="sums")
        columns = comm.allgather_rows(C_hat.indices.astype(kind, copy=False), entries, matrix="sums")
        values = comm.allgather_rows(C_hat.data, entries, matrix="sums")
        partial = csr_rows.unpack((counts, columns, values), self.shape[1], C_hat)
        # Row r of the sum is that of rows r, k + r, 2 k + r, ... of the stacked matrices: a product again.
        filled = counts.reshape(comm.size, k).T > 0
        summands = np.arange(comm.size * k).reshape(comm.size, k).T[filled]
        ones, pointers = np.ones(summands.size, self.dtype), csr_rows.row_pointers(filled.sum(axis=1))
        return local.spgemm(sp.csr_array((ones, summands, pointers), shape=(k, comm.size * k)), partial)

    def _agreed(self, Q: Any) -> sp.csr_array:
        """Check Q, on all ranks together."""
        with self.grid.world.together():
            Q_i = _canonical(Q, self.shape[0], self.dtype)
        arrays = Q_i.indptr.astype(np.int64), Q_i.indices.astype(np.int64), Q_i.data
        sums = tuple(zlib.crc32(np.ascontiguousarray(array).data) for array in arrays)
        checksums = set(self.grid.world.gather_objects((self.grid.coords["rows"], Q_i.shape, sums)))
        rows = [row for row, *_ in checksums]
        if wrong := sorted({row for row in rows if rows.count(row) > 1}):
            problem = "Q must be the same on all ranks of a process row; it is not in process rows"
            raise ValueError(f"{problem} {wrong}")
        return Q_i

    def _of_stages(self, Q_i: sp.csr_array) -> sp.csr_array:
        """Return the entries of ``Q_i`` in the columns that belong to this process column's stages."""
        own = (Q_i.indices >= self.parts[0]) & (Q_i.indices < self.parts[-1])
        pointers = csr_rows.row_pointers(own)[Q_i.indptr]
        return sp.csr_array((Q_i.data[own], Q_i.indices[own], pointers), shape=Q_i.shape)

    def _needed(self, Q_i: sp.csr_array) -> tuple[np.ndarray, Rows]:
        """Return the distinct columns of ``Q_i``, rising, and what fetches those rows of A. Collective."""
        columns = np.unique(Q_i.indices).astype(np.int64)
        return columns, Rows(self.grid, self.column, by_owner(columns, self.parts))

    def _estimates(self, Q_i: sp.csr_array, columns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Count the multiplications in each row of the product, all stages together: int64 (k)."""
        if self.entries is None:
            return np.zeros(Q_i.shape[0], np.int64)
        counts = lengths.astype(np.int64)[np.searchsorted(columns, Q_i.indices)]
        return self.row.allreduce(csr_rows.multiplications(Q_i, counts), matrix="rows")


def _canonical(Q: Any, n: int, dtype: np.dtype) -> sp.csr_array:
    """Convert Q as :func:`canonical` does, to this dtype."""
    if not sp.issparse(Q):
        raise TypeError(f"Q must be a SciPy sparse matrix, got {type(Q).__name__}")
    if Q.ndim != 2 or Q.shape[1] != n:
        raise ValueError(f"Q must have a column for each of the {n} rows of A; its shape is {Q.shape}")
    return canonical(Q, dtype)


def _source(A: Any) -> tuple[BlockSource, Shape, np.dtype, NodeOrder | None]:
    """Return the block source of A, its shape, its dtype, and the order of its nodes."""
    source: BlockSource = A if hasattr(A, "block") else MatrixSource(A)
    order: NodeOrder | None = getattr(source, "row_order", None)
    if order != getattr(source, "col_order", None):
        raise ValueError("rows and columns of a graph to sample from must be in the same order")
    return source, (int(source.shape[0]), int(source.shape[1])), np.dtype(source.dtype), order


def _held(source: BlockSource, rows: Range, width: int, dtype: np.dtype) -> sp.csr_array:
    return canonical(source.block(rows, (0, width)), dtype)


def _at_least_one(entries: int | None) -> int | None:
    if entries is not None and entries < 1:
        raise ArgumentError("entries", entries, "expected at least 1, or None for no bound")
    return entries

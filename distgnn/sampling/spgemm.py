"""Products ``Q A`` of two sparse matrices, of which sampling is made (sections 5.1, 5.2).

The graph is on every rank, or cut over a 1.5D grid (matrix-sampling paper). Matrices are SciPy's on the host,
and CSR blocks on a GPU, where a graph may be in either form.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import ledger
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.canonical import canonical
from distgnn.arrays.csr import CSR, Shape
from distgnn.arrays.kernels import Kernel
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.steps import Steps, at_once, swap_numbers, without_steps
from distgnn.errors import ArgumentError, UserError
from distgnn.layout import NodeOrder, Range, as_partition, block, nested
from distgnn.local import csr_rows, extract
from distgnn.local.draw import draw_selected, stack_keys
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from distgnn.operators.block_15d import Block15D
from distgnn.operators.loading import Holders
from distgnn.operators.sources import BlockSource, MatrixSource
from distgnn.sampling import owner_sums
from distgnn.sampling.edges import Edges, edges
from distgnn.sampling.graph import Drawn, Graph, taken
from distgnn.sampling.owner_edges import owner_edges
from distgnn.sampling.owners import Block, Questions, picked_by_owners


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
        ledger.holds(self, "adjacency", self.indptr.nbytes)

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

    @without_steps
    def edges(self, rows: Stack, cols: Stack, scale: Any, labels: Relabelling) -> Edges:
        return edges(self.A, self.indptr, rows, cols, scale, labels, self.entries)

    @without_steps
    def draw(self, vertices: Stack, fanout: int, keys: Any) -> Drawn:
        """Draw from the rows where they stand: ``Q A`` would copy them to take a few entries of each."""
        with ledger.timed("sampling", "draw", on=self.backend):
            drawn = draw_selected(self.indptr, vertices.ids, fanout, stack_keys(vertices, keys))
            return taken(self.A, drawn, extract.row_lengths(self.indptr, vertices.ids))

    def kernel(self, operation: str) -> Kernel | None:
        return extract.KERNELS.find(operation, self.A.data)

    def on_host(self) -> Replicated:
        return Replicated(self.A.to_scipy(), self.entries) if isinstance(self.A, CSR) else self


class Partitioned(Graph):
    """A matrix in P block rows, one on each rank of a 1.5D grid (section 5.2).

    Rank (i, j) holds the j-th of c equal parts of block i of P/c, so that A is held once in all, whatever c;
    it samples minibatches of its own. The ranks that hold rows of A do what would make them travel: they
    draw from them (:meth:`draw`), or add them for a minibatch (:meth:`sums`), and the rows travel where they
    are fewer words. Algorithm 2's all-reduce of partial products over a process row is a reduce-scatter over
    minibatches then: each rank gets the sums of its own. Copies (c) save words of features alone, see
    :class:`distgnn.sampling.fetch.Features`.

    Draws, and products to each row of which a single row of A contributes, are the same to the bit on every
    grid. Other sums are made by each owner first, in the order of A's rows, and then over the owners, so that
    their rounding depends on P and on what the other minibatches of a rank are.

    Args:
        grid: with the axes ``rows`` and ``reps``, as :func:`operators.make_grid` makes it for "1.5d".
        A: SciPy sparse matrix, equal on all ranks, or a block source, (n, m).
        parts: partition vector of A's rows over ``rows``; default even.
        entries: non-zeros that a row block of a product may be estimated to have; None: any number.
        backend: the host, or the grid's backend: where A is, and all that is sent and drawn.

    Attributes:
        parts: partition vector of A's rows over all ranks, ``reps`` fastest. A: this rank's rows;
        indptr: their row pointers, int64.

    Cost for a bulk of k minibatches, in words received by a rank; k' is the number of the other ranks'
    minibatches, which ask for D' rows of this rank's in all, and its own ask for D rows of others:

        every call: 2 k' + D' (counts, keys and row numbers of what is asked)
        draws, of s neighbours: D (degrees) + 2 S (columns and values)
        rows, each once: D (lengths) + 2 N
        sums: Σ_q min(k + 2 nnz(Ĉ_q), D_q + 2 N_q) over the other ranks q
        edges: k' + C' (columns of the other ranks' minibatches) + D (lengths) + 2 E; or as rows

    S is the sum of min(s, degree) over the D questions; a row that several minibatches ask for is sent once
    where that is no more. The D_q distinct rows asked of rank q have N_q entries, N in all; Ĉ_q is their
    (k, m) product, and E entries are kept. Edges come as rows, to be picked here, where these are expected to
    be fewer words (:func:`distgnn.sampling.owners.picked_by_owners`). Products of a general Q ask for its
    distinct columns as one minibatch. Messages: at most 7 (P - 1) in a call. GraphSAGE makes one call per
    layer; LADIES one of sums and one of edges. FastGCN sums all rows once, 2 m (P - 1)/P words.

    Memory: A's n/P rows; what is sent and received in a call, of rows all that a bulk's products read.

    Raises:
        UserError: a grid with other axes.
        ValueError: not the same matrix on all ranks, or a vector that does not cut its rows; a GPU where the
            grid is on hosts.
    """

    collective = True

    def __init__(
        self, grid: Grid, A: Any, parts: np.ndarray | None = None, entries: int | None = None,
        backend: Backend | str = "numpy",
    ) -> None:  # fmt: skip
        if set(grid.shape) != set(Block15D.axes):
            axes = ", ".join(Block15D.axes)
            raise UserError(f"a partitioned graph needs a grid with the axes {axes}; got {grid}")
        self.grid, self.entries = grid, _at_least_one(entries)
        self.backend = backends.get(backend) if isinstance(backend, str) else backend
        if self.backend.on_device and self.backend.name != grid.backend.name:
            raise ValueError(
                f"a graph on {self.backend.name} needs a grid on it; {grid} is on {grid.backend.name}"
            )
        self.comm = (grid.along if self.backend.on_device else grid.along_on_host)(*Block15D.axes)
        with grid.world.together():
            source, self.shape, self.dtype, self.order = _source(A)
            whole = as_partition(parts, self.shape[0], grid.shape["rows"])
            self.parts = nested(whole, grid.shape["reps"])
            rows = block(self.parts, self.comm.rank)
            self.A = extract.held(self, _held(source, rows, self.shape[1], self.dtype), self.backend)
            self.indptr = self.A.indptr.astype(np.int64)
        name = self.order and self.order.name
        kind = self.shape, str(self.dtype), name, whole.tolist(), entries
        kinds, counts = zip(*grid.world.gather_objects((kind, self.A.nnz)), strict=True)
        self.degree = sum(counts) / max(self.n, 1)
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError(f"the ranks were given different matrices, partitions or bounds: {kinds}")

    def row_blocks(self, Q: Any) -> Iterator[tuple[Range, Any]]:
        """Yield ``Q A`` for this rank's (k, n) Q of SciPy's, as ((first, last + 1), those rows).

        Collective over the grid: every rank must begin, as one without rows serves others. Raises on all
        ranks as :meth:`Replicated.multiply`.
        """
        with self.grid.world.together():
            Q = _canonical(Q, self.shape[0], self.dtype)
        columns = np.unique(Q.indices).astype(np.int64)
        # Algorithm 2: the rows NnzCols(Q) of A
        A, indptr, _ = at_once(self.rows(self.backend.asarray(columns)))
        yield from extract.row_blocks(csr_rows.keep_columns(Q, columns), A, indptr, self.entries)

    def edges(self, rows: Stack, cols: Stack, scale: Any, labels: Relabelling) -> Steps[Edges]:
        """Pick entries, by the owners of their rows or on this rank, which is sent the rows. Collective."""
        lengths = np.array([[len(cols.ids), len(rows.ids)]] * self.comm.size)
        sizes, heights = (yield from swap_numbers(self.comm, lengths)).T.tolist()
        if not picked_by_owners(self.comm.size, sum(sizes), sum(heights), self.degree):
            A, indptr, places = yield from self.rows(rows.ids)
            return edges(A, indptr, rows._replace(ids=places), cols, scale, labels, self.entries)
        questions = yield from self._asked(rows)
        given = yield from owner_edges(questions, self._block, cols, sizes, labels, self.entries)
        indptr, places, values = given
        if scale is not None:
            values *= scale[cols.bounds[places.owners] + places.ids].astype(values.dtype)
        return indptr, places, values

    def rows(self, vertices: Any) -> Steps[tuple[Any, Any, Any]]:
        """Fetch the rows of these vertices (int64, with repeats), each once. Collective.

        Returns a matrix, its row pointers (int64), and the row of each vertex.
        """
        distinct, places = self.backend.xp.unique(vertices, return_inverse=True)
        lists = Stack.cut(distinct, np.array([0, len(distinct)]))
        answers = yield from (yield from self._asked(lists)).rows(self._block)
        return answers.A, answers.indptr, places

    def sums(self, lists: Stack) -> Steps[Any]:
        """Sum the rows of A over each list, by their owners. Collective."""
        return (yield from owner_sums.sums((yield from self._asked(lists)), self._block))

    def column_sums(self) -> np.ndarray:
        """Sum all rows: each rank its own, and an all-reduce of the sums. Collective."""
        own = np.bincount(self.A.indices, self.A.data, self.shape[1])
        return self.comm.allreduce(own.astype(self.dtype, copy=False), matrix="sums")

    def row_sums(self) -> Any:
        """Sum every row, by its owner, and gather the sums. Collective."""
        return self.comm.allgather_rows(super().row_sums(), self.parts, matrix="sums")

    def draw(self, vertices: Stack, fanout: int, keys: Any) -> Steps[Drawn]:
        """Draw neighbours, by the owners of the vertices' rows. Collective."""
        with ledger.timed("sampling", "probability", on=self.backend):
            answers = yield from (yield from self._asked(vertices, keys)).rows(self._block, fanout)
        # what was drawn already is drawn whole, and from rows as their owners would
        with ledger.timed("sampling", "draw", on=self.backend):
            drawn = draw_selected(answers.indptr, answers.rows, fanout, stack_keys(vertices, keys))
            return taken(answers.A, drawn, answers.degrees)

    def on_host(self) -> Partitioned:
        """Return the graph, copied to the host if it is not there. Collective the first time."""
        if not self.backend.on_device:
            return self
        other = copy.copy(self)
        other.backend, other.comm = backends.get("numpy"), self.grid.along_on_host(*Block15D.axes)
        other.A, other.indptr = self.A.to_scipy(), self.backend.to_host(self.indptr)
        return other

    @property
    def _block(self) -> Block:
        return Block(self.A, self.indptr, int(self.parts[self.comm.rank]))

    def _asked(self, lists: Stack, keys: Any = None) -> Steps[Questions]:
        keys = self.backend.zeros((len(lists.bounds) - 1,), np.uint64) if keys is None else keys
        return Questions(self.comm, self.parts, lists, keys).told()


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

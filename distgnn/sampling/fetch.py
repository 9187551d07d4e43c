"""Feature fetching: the rows of a matrix that a rank's minibatch reads (matrix-sampling paper, section 6)."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.rows import Rows, by_owner
from distgnn.errors import TrainingError, check_type
from distgnn.local import csr_rows
from distgnn.operators.cut_matrix import CutMatrix
from distgnn.operators.dense import DistDense
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.sampling.ids import Ids, checked


class Features:
    """Rows of features by node id, wherever they are held: arrays, or CSR blocks of sparse features.

    Args:
        H: (n, f) in block rows over the axis ``rows`` of a grid, with copies along its other axes, as 1d and
            1.5d hold it: every process column has all of it. Cut otherwise, it raises ValueError.

    Cost of :meth:`fetch`, in words received: D f + D', where D distinct ids are other ranks' and those of the
    process column ask this rank for D' rows; two all-to-allvs of at most P/c - 1 messages. With D₀ distinct
    ids spread evenly over the nodes, D = D₀ (1 - c/P), and a process column moves D₀ f (P/c - 1) words.

    Of a row of sparse features come its length and two words per entry.
    """

    def __init__(self, H: DistDense | SparseFeatures) -> None:
        check_type("H", H, CutMatrix, "a DistDense in block rows, as load_features or scatter make it")
        grid = H.grid
        if H.layout.row_axes != ("rows",) or grid.count(*H.layout.col_axes) != 1:
            cut = f"({', '.join(H.layout.row_axes)}) x ({', '.join(H.layout.col_axes)})"
            problem = "features are fetched from block rows over the axis rows"
            raise ValueError(f"{problem}; these are cut over {cut}")
        self.grid, self.column, self.backend = grid, grid.along("rows"), grid.backend
        self.block, self.shape, self.dtype = H.block, H.shape, H.dtype
        self.parts = H.layout.rows.vector(grid, H.shape[0])
        self.ids = Ids(H.shape[0], H.layout.rows.order)

    def fetch(self, ids: Any) -> Any:
        """Fetch the rows of these nodes: (len(ids), f), new, on the grid's backend.

        Collective over the process column; ids that are no integers in 0..n-1 raise ValueError on all of it.

        Args:
            ids: in any order, with repeats, each rank its own, possibly none.
        """
        with self.column.together():
            positions = self.ids.positions(ids)
        rows = self._fetch(positions)
        if not isinstance(rows, CSR):
            self.grid.workspace.forget(rows)
        return rows

    def borrow(self, positions: Any) -> Any:
        """Fetch the rows at these positions of the features' order, into memory of the grid's workspace.

        The positions are on the host or the device; the memory is to be given back to the workspace.
        Collective as :meth:`fetch`. A sampler's positions are not checked where they are on a GPU, which
        would have to be waited for.
        """
        with self.coming(positions) as coming:
            return coming.take()

    def coming(self, positions: Any, overlap: bool = False) -> Coming:
        """Begin to :meth:`borrow`; with ``overlap``, messages travel while the caller computes."""
        if not backends.of(positions).on_device:
            with self.column.together():
                positions = checked(positions, self.shape[0])
        return Coming(self, positions, overlap)

    def _fetch(self, positions: Any) -> Any:
        with Coming(self, positions) as coming:
            return coming.take()

    def _block(self, packed: csr_rows.Packed) -> CSR:
        return _unpacked(packed, self.shape[1], self.dtype, self.backend)


class Coming(AbstractContextManager["Coming"]):
    """Rows of features on their way, from the ranks of a process column. A context.

    Where it is left by an error of one rank, messages under way are abandoned. Where rows are not wanted any
    more, on all ranks alike, they are received and given back.

    Args:
        positions: checked.
        overlap: begin at once. Rows of sparse features, and of this rank alone, are fetched when taken.
    """

    def __init__(self, features: Features, positions: Any, overlap: bool = False) -> None:
        self.features, self.positions, self.messages = features, positions, ExitStack()
        self.rows: Any = None
        if overlap and features.column.size > 1 and not isinstance(features.block, CSR):
            self._begin()

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is None or issubclass(kind, (GeneratorExit, TrainingError)):
            self.messages.close()
        else:
            self.messages.__exit__(kind, *error)
        if self.rows is not None:
            self.features.grid.workspace.give_back(self.rows)

    def driven(self) -> AbstractContextManager[None]:
        """Drive the messages during the computations inside."""
        return nullcontext() if self.rows is None else self.exchange.driven()

    def take(self) -> Any:
        """Wait for the rows. Their memory is the caller's, to be given back to the workspace."""
        features = self.features
        if features.column.size == 1:
            return picked(features.block, self.positions, features.grid)
        if isinstance(features.block, CSR):
            needed = self._needed()
            fetched = needed.fetch_ragged(features.block, needed.lengths(features.block), "features")
            return picked(features._block(fetched), self.places, features.grid)
        if self.rows is None:
            self._begin()
        self.exchange.wait(range(features.column.size))
        self.messages.close()
        rows, self.rows = self.rows, None
        if self.places.size == len(rows) and bool((self.places[1:] > self.places[:-1]).all()):
            return rows
        ordered = picked(rows, self.places, features.grid)
        features.grid.workspace.give_back(rows)
        return ordered

    def _needed(self) -> Rows:
        """Ask the ranks for the rows at the distinct positions. Collective."""
        features = self.features
        positions = backends.of(self.positions).to_host(self.positions)  # messages are made of them
        self.distinct, self.places = np.unique(positions, return_inverse=True)
        return Rows(features.grid, features.column, by_owner(self.distinct, features.parts), "features")

    def _begin(self) -> None:
        needed, features = self._needed(), self.features
        shape = self.distinct.size, features.shape[1]
        self.rows = features.grid.workspace.borrow(shape, features.dtype)
        self.exchange = self.messages.enter_context(needed.fetch(features.block, self.rows, "features"))


def picked(X: Any, rows: Any, grid: Grid) -> Any:
    """Return these rows of a block of features: a CSR block, or an array in memory of the workspace."""
    rows = grid.backend.asarray(rows)
    if isinstance(X, CSR):
        return _unpacked(csr_rows.gather(X, rows), X.shape[1], X.dtype, grid.backend)
    return local.gather_rows(X, rows, grid.workspace.borrow((rows.size, X.shape[1]), X.dtype))


def _unpacked(packed: csr_rows.Packed, width: int, dtype: Any, on: Backend) -> CSR:
    """Make a block of packed rows."""
    counts, columns, values = packed
    block = CSR.empty((counts.size, width), values.size, dtype, on, "features")
    block.data[...], block.indices[...] = values, columns
    block.indptr[...] = csr_rows.row_pointers(counts)
    return block

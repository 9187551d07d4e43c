"""Feature fetching: the rows of a matrix that a rank's minibatch reads (matrix-sampling paper, section 6)."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.rows import Rows, by_owner
from distgnn.errors import check_type
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
        if not backends.of(positions).on_device:
            with self.column.together():
                positions = checked(positions, self.shape[0])
        return self._fetch(positions)

    def _fetch(self, positions: Any) -> Any:
        if self.column.size == 1:
            return picked(self.block, positions, self.grid)
        positions = backends.of(positions).to_host(positions)  # messages are made of them
        distinct, places = np.unique(positions, return_inverse=True)
        needed = Rows(self.grid, self.column, by_owner(distinct, self.parts))
        if isinstance(self.block, CSR):
            fetched = needed.fetch_ragged(self.block, needed.lengths(self.block), "features")
            return picked(self._block(fetched), places, self.grid)
        rows = self.grid.workspace.borrow((distinct.size, self.shape[1]), self.dtype)
        with needed.fetch(self.block, rows, "features") as arriving:
            arriving.wait(needed.needed)
        if places.size == distinct.size and bool((places[1:] > places[:-1]).all()):
            return rows
        ordered = picked(rows, places, self.grid)
        self.grid.workspace.give_back(rows)
        return ordered

    def _block(self, packed: csr_rows.Packed) -> CSR:
        return _unpacked(packed, self.shape[1], self.dtype, self.backend)


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

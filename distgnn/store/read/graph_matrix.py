"""The matrix of a graph in memory, by node, whose rows are given in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import ledger
from distgnn.layout import Range
from distgnn.local.entries import scaled
from distgnn.operators.sources import BlockSource
from distgnn.partition.orders import Permutation

#: Of entries without weights: factors by row and, if any, by column, float64.
Factors = tuple[np.ndarray, "np.ndarray | None"]


class GraphMatrix:
    """A square matrix in memory, with sorted rows. Without weights its values are made with the rows.

    Args:
        pointers, columns: of the rows. values: of a dtype, or their factors.

    Attributes:
        shape, dtype, nnz: as of a SciPy matrix.
    """

    def __init__(
        self, pointers: np.ndarray, columns: np.ndarray, values: np.ndarray | Factors, dtype: Any
    ) -> None:
        n, self.dtype, self.nnz = len(pointers) - 1, np.dtype(dtype), len(columns)
        self.shape = n, n
        self._factors = values if isinstance(values, tuple) else None
        # SciPy's rows have some values, and factors by column are those by row.
        data, kept = (columns, values[0]) if isinstance(values, tuple) else (values, values)
        self._held = sp.csr_array((data, columns, pointers), shape=self.shape)
        self._held.has_sorted_indices = self._held.has_canonical_format = True
        ledger.holds(self, "graph", columns.nbytes + pointers.nbytes + kept.nbytes)

    def rows(self, nodes: slice | np.ndarray) -> sp.csr_array:
        """Return the rows of these nodes, in this order. Nobody may write to the arrays."""
        given = self._held[nodes]
        values = given.data
        if self._factors is not None:
            left, right = self._factors
            values = scaled(np.diff(given.indptr), given.indices, left[nodes], right, None, self.dtype)
        rows = sp.csr_array((values, given.indices, given.indptr), shape=given.shape)
        rows.has_sorted_indices = rows.has_canonical_format = True
        return rows

    def whole(self) -> sp.csr_array:
        """Return all rows, by node."""
        return self.rows(slice(0, self.shape[0]))


class Moved(BlockSource):
    """A block source of a matrix by node whose rows and columns are put into another order."""

    def __init__(self, matrix: GraphMatrix, nodes: Permutation, symmetric: bool) -> None:
        self.matrix, self.nodes, self.symmetric = matrix, nodes, symmetric
        self.shape, self.dtype = matrix.shape, matrix.dtype

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Return these rows and columns."""
        (top, bottom), (left, right) = ((int(first), int(last)) for first, last in (rows, cols))
        order = self.nodes.permutation
        block = self.matrix.rows(slice(top, bottom) if order is None else order[top:bottom])
        if order is not None:
            block.indices = self.nodes.positions(block.indices).astype(block.indptr.dtype, copy=False)
            block.has_sorted_indices = False
        if (left, right) != (0, self.shape[1]):
            block = block[:, left:right]
        block.sort_indices()
        return block

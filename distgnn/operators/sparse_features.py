"""Sparse matrices of features cut over a grid: the input of a first layer that stays sparse."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp

from distgnn import ledger
from distgnn.arrays import foreign
from distgnn.arrays.canonical import distinct, value_type
from distgnn.arrays.csr import CSR, Shape
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError, check_type
from distgnn.layout import Layout
from distgnn.local.csr_rows import owners
from distgnn.operators import dense
from distgnn.operators.cut_matrix import CutMatrix
from distgnn.operators.dense import DistDense
from distgnn.operators.sources import RootMatrix


class SparseFeatures(CutMatrix):
    """A sparse matrix of features, n x f, cut over the grid as a :class:`DistDense` is.

    ``A.weights.times(X, W)`` and ``A.weights.backward(X, G)`` multiply by its entries alone. It is no operand
    of ``A @ X``.

    Args:
        block: this rank's rows and columns, on the grid's backend: columns count from the first of the rank.
    """

    __slots__ = ()
    block: CSR

    def __init__(self, block: CSR, layout: Layout[Grid], shape: Shape) -> None:
        check_type("block", block, CSR, "a CSR block")
        super().__init__(block, layout, shape)

    @property
    def share(self) -> float:
        """The share of the whole matrix that is stored. Collective the first time."""
        if "share" not in self.block.cached:
            own = self.block.nnz if self.layout.primary else 0
            stored = sum(self.grid.world.gather_objects(own))
            self.block.cached["share"] = stored / max(self.shape[0] * self.shape[1], 1)
        return self.block.cached["share"]

    @property
    def transposed(self) -> CSR:
        """The transpose of the block, made once."""
        if "transposed" not in self.block.cached:
            self.block.cached["transposed"] = self.block.transposed(self.grid.backend)
        return self.block.cached["transposed"]

    @property
    def row_numbers(self) -> Any:
        """The row of each entry of the block, made once."""
        if "row numbers" not in self.block.cached:
            counts = self.block.indptr[1:] - self.block.indptr[:-1]
            numbers = owners(counts, self.block.nnz).astype(self.block.indices.dtype)
            self.block.cached["row numbers"] = numbers
            ledger.holds(self.block, "features", numbers.nbytes)
        return self.block.cached["row numbers"]

    def like(self, block: CSR) -> SparseFeatures:
        """Make a matrix of another block, cut the same way."""
        alike = SparseFeatures(block, self.layout, self.shape)
        alike.origin = self.origin
        return alike

    def astype(self, dtype: Any) -> SparseFeatures:
        """Make a matrix of the same entries in another dtype, float32 or float64."""
        return self.like(self.block.with_values(self.block.data.astype(value_type(self.dtype, dtype))))

    def scale_rows(self, factors: Any) -> None:
        """Multiply each of this rank's rows by a number, in place."""
        self.block.data *= factors[self.row_numbers]
        self.block.cached.pop("transposed", None)

    def to_dense(self) -> DistDense:
        """Make a dense matrix of the same numbers. Local to each rank."""
        whole = self.grid.backend.zeros(self.block.shape, self.dtype)
        whole[self.row_numbers, self.block.indices] = self.block.data
        return DistDense(whole, self.layout, self.shape)


def scatter(X: Any, layout: Layout[Grid], dtype: Any = None) -> DistDense | SparseFeatures:
    """Cut a global matrix that rank 0 has (others pass anything) over the grid. Collective.

    A vector (n,) becomes a matrix n x 1. Row i belongs to node i, whatever the order of the layout; rank 0
    puts rows into that order. A sparse matrix, of SciPy or on the GPU of rank 0, stays sparse, for the
    features of a network; one on a GPU goes by way of the host. A dense array there does not, see
    :func:`distgnn.operators.dense.scatter`.

    Raises:
        ArgumentError: on every rank, X of rank 0 is no matrix of real numbers with as many rows as the layout
            cuts, or has entries that stand twice or out of range, or the layout is none.
    """
    check_type("layout", layout, Layout, "a Layout, such as A.input_layout")
    if layout.grid.world.share(sp.issparse(X) or foreign.sparse_on_gpu(X)):
        return scatter_sparse(X, layout, dtype)
    return dense.scatter(X, layout, dtype)


def scatter_sparse(X: Any, layout: Layout[Grid], dtype: Any = None) -> SparseFeatures:
    """Cut a sparse matrix of SciPy, as :func:`scatter` does; all ranks know that it is one. Collective."""
    grid, moved = layout.grid, None
    with grid.world.together():
        if grid.rank == 0:
            foreign.check_place("X", X, grid.backend)
            moved = _by_layout(foreign.on_host("X", X), layout, dtype)
    source = RootMatrix(grid, moved)
    (block,) = source.blocks([layout.ranges(source.shape)])
    with grid.world.together():
        held = CSR.from_scipy(block, grid.backend, source.dtype, purpose="features")
    return SparseFeatures(held, layout, source.shape)


def _by_layout(X: Any, layout: Layout[Grid], dtype: Any) -> sp.csr_array:
    """Put the rows of a matrix by node into the order of a layout."""
    if X.ndim != 2:
        raise ArgumentError("X", type(X).__name__, f"expected a matrix, got an array of shape {X.shape}")
    matrix, rows = distinct(X, "X", value_type(X.dtype, dtype)), layout.rows
    if rows.parts is not None and matrix.shape[0] != rows.parts[-1]:
        problem = f"has {matrix.shape[0]} rows, the layout cuts {rows.parts[-1]}"
        raise ArgumentError("X", type(X).__name__, problem)
    ids = dense.node_ids(layout, matrix.shape[0])
    return matrix if ids is None else matrix[ids]

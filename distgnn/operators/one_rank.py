"""A matrix that one rank has all of, as an operator: the sampled block of a minibatch."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.csr import CSR, Shape
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import Axes, Cut, Layout
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse
from distgnn.operators.weights import ReplicatedWeights


class Alone(Axes):
    """This rank as a grid of its own, with the backend and the workspace of a grid that it belongs to. Makes
    no communicator and binds no device.

    Attributes:
        whole: the layout of matrices on it, none of which is cut; weights: the products with weights.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__({}, 0)
        self.backend, self.workspace, self.world, self.overlap = (
            grid.backend,
            grid.workspace,
            grid.along(),
            False,
        )
        self.whole = Layout(self, Cut(), Cut())
        self.weights = ReplicatedWeights(self.whole)

    def along(self, *axes: str) -> Comm:
        """This rank alone."""
        return self.world


class OneRank(DistSparse):
    """A CSR matrix, m x n; its products need no other rank. ``H`` is (n, f) and the product (m, f), both whole.

    Args:
        alone: the grid of this rank.
        shape: (m, n). data, indices, indptr: of the matrix on the host, copied to the device of the grid;
            columns in any order within a row.
        dtype: of the values there.
    """

    name = "one rank"
    axes = ()

    def __init__(
        self,
        alone: Alone,
        shape: Shape,
        data: np.ndarray,
        indices: np.ndarray,
        indptr: np.ndarray,
        dtype: Any,
    ) -> None:
        self.grid: Any = alone
        self.shape, self.dtype, self.symmetric = shape, np.dtype(dtype), False
        self.input_layout = self.output_layout = alone.whole
        self.weights = alone.weights
        self.A = CSR.empty(shape, len(data), self.dtype, alone.backend)
        for source, target in ((data, self.A.data), (indices, self.A.indices), (indptr, self.A.indptr)):
            alone.backend.copy_in(np.ascontiguousarray(source, target.dtype), target)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        return [{}] if ranks == 1 else []

    @cached_property
    def At(self) -> CSR:
        """The transposed matrix, made when it is first asked for."""
        return self.A.transposed(self.grid.backend)

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        Z = self._result(self.output_layout, (self.shape[0], H.shape[1]), out)
        local.spmm(self.A, H.block, Z.block)
        return Z

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        H = self._result(self.input_layout, (self.shape[1], G.shape[1]), out)
        local.spmm(self.At, G.block, H.block)
        return H

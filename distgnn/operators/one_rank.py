"""A matrix that one rank has all of, as an operator: the sampled block of a minibatch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR, Shape
from distgnn.comm.grid import Grid
from distgnn.layout import Axes, Cut, Layout
from distgnn.local import edges as entries
from distgnn.local.epilogue import Epilogue
from distgnn.operators.aggregate_ways import OfOneRank, Way
from distgnn.operators.dense import DistDense
from distgnn.operators.edge_pattern import EdgePattern
from distgnn.operators.edges import DistEdges, Masked
from distgnn.operators.kept import cached_property
from distgnn.operators.operator import Adjoint, DistSparse
from distgnn.operators.weights import ReplicatedWeights


class Alone(Axes):
    """One rank as a grid of its own, with the backend and the workspace of the grid that it belongs to.

    Attributes:
        whole: the layout of matrices on it; weights: the dense products with them.
    """

    checks = narrow = None

    def __init__(self, grid: Grid) -> None:
        super().__init__({}, 0)
        self.backend, self.workspace, self.overlap = grid.backend, grid.workspace, False
        self.along = lambda *axes: grid.along()
        self.whole: Any = Layout(self, Cut(), Cut())
        self.weights = ReplicatedWeights(self.whole)


class OneRankEdges(EdgePattern):
    """The entries of a matrix that one rank has all of."""

    def __init__(self, A: OneRank) -> None:
        super().__init__(A, [A.A], A.grid.along(), A.output_layout)

    @contextmanager
    def rows_of(self, v: DistDense) -> Iterator[Iterator[Any]]:
        yield iter([v.block])

    @contextmanager
    def whole_rows(self, U: DistDense, V: DistDense) -> Iterator[tuple[Any, Any]]:
        yield U.block, V.block

    def multiply(self, E: DistEdges | Masked, H: DistDense, T: DistDense) -> None:
        self.product(0, self.A.A, E, H.block, T.block, self.bounds(E.heads, H))

    def multiply_adjoint(self, E: DistEdges | Masked, G: DistDense, F: DistDense) -> None:
        self.product(0, self.A.At, E, G.block, F.block, self.bounds(E.heads, G), transposed=True)

    def dots(self, U: DistDense, V: DistDense, E: DistEdges) -> None:
        entries.dots(self.A.A, U.block, V.block, self.bounds(E.heads, V), E.data)


class OneRank(DistSparse):
    """A CSR matrix, m x n, multiplied by whole matrices (n, f) on the rank that has it, without the others.

    Args:
        alone: the grid of this rank.
        data, indices, indptr: on the host or on the grid's device; the columns of a row in any order.
        dtype: of the values there.
    """

    name, axes = "one rank", ()

    def __init__(self, alone: Alone, shape: Shape, data: Any, indices: Any, indptr: Any, dtype: Any) -> None:
        self.grid: Any = alone
        self.shape, self.dtype, self.symmetric = shape, np.dtype(dtype), False
        self.input_layout = self.output_layout = alone.whole
        self.weights = alone.weights
        self._pattern: Callable[[], EdgePattern | None] = lambda: None
        self.A = CSR.empty(shape, len(data), self.dtype, alone.backend)
        for source, target in ((data, self.A.data), (indices, self.A.indices), (indptr, self.A.indptr)):
            if backend.of(source).on_device:
                target[...] = source
            else:
                alone.backend.copy_in(np.ascontiguousarray(source, target.dtype), target)

    @property
    def T(self) -> DistSparse:
        """Not kept: a block and its adjoint, holding each other, would outlive the minibatch."""
        return Adjoint(self)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        return [{}] if ranks == 1 else []

    @property
    def pattern(self) -> EdgePattern:
        """The stored entries; kept by their edges alone, as :attr:`T`."""
        pattern = self._pattern()
        if pattern is None:
            pattern = OneRankEdges(self)
            self._pattern = weakref.ref(pattern)
        return pattern

    def _aggregate_way(self) -> Way:
        return OfOneRank(self)

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        local.spmm(self.A, H.block, T.block)

    def _multiply_then(self, H: DistDense, T: DistDense, then: Epilogue) -> None:
        local.spmm(self.A, H.block, T.block, then=then)

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        local.spmm(self.At, G.block, F.block)

    @property
    def _one_piece(self) -> Any:
        return self.A.to_scipy()

    @cached_property
    def At(self) -> CSR:
        """The transposed matrix, made when it is first asked for."""
        return self.A.transposed(self.grid.backend)

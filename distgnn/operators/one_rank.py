"""A matrix that one rank has all of, as an operator: the sampled block of a minibatch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR, Shape
from distgnn.comm.grid import Grid
from distgnn.layout import Axes, Cut, Layout, Range
from distgnn.local.epilogue import Ending
from distgnn.local.tuner import FLEETING
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.kept import cached_property
from distgnn.operators.moves import Moves
from distgnn.operators.weights import ReplicatedWeights

Array = Any


class Alone(Axes):
    """One rank as a grid of its own, with the backend and the workspace of the grid that it belongs to.

    Attributes:
        whole: the layout of matrices on it; weights: the dense products with them.
    """

    checks = narrow = links = None
    reads_rounded = mixed = False

    def __init__(self, grid: Grid) -> None:
        super().__init__({}, 0)
        self.backend, self.workspace, self.overlap = grid.backend, grid.workspace, False
        self.along = lambda *axes: grid.along()
        self.whole: Any = Layout(self, Cut(), Cut())
        self.weights = ReplicatedWeights(self.whole)


class OneRankMoves(Moves):
    """Moves of a matrix that one rank has all of: nothing travels."""

    def __init__(self, A: OneRank) -> None:
        super().__init__(A, [A.A], A.grid.along(), A.output_layout, A.input_layout)
        self.piecewise = False  # a minibatch has few entries

    def back(self) -> AbstractContextManager[Iterator[tuple[int, CSR]]]:
        return nullcontext(iter([(0, self.A.At)]))

    def ranges(self) -> list[Range]:
        return [(0, self.A.shape[1])]

    def columns_read(self, V: Any) -> AbstractContextManager[Iterator[Any]]:
        return nullcontext(iter([V]))

    def columns_written(self, F: Any) -> AbstractContextManager[Iterator[Any]]:
        return nullcontext(iter([F]))


class OneRank(Algorithm):
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
        self._pattern: Callable[[], Moves | None] = lambda: None
        self.A = CSR.empty(shape, len(data), self.dtype, alone.backend)
        self.A.pattern[FLEETING] = True
        for source, target in ((data, self.A.data), (indices, self.A.indices), (indptr, self.A.indptr)):
            if backend.of(source).on_device:
                target[...] = source
            else:
                alone.backend.copy_in(np.ascontiguousarray(source, target.dtype), target)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        return [{}] if ranks == 1 else []

    @property
    def pattern(self) -> Moves:
        """The stored entries; kept by their edges alone: else block and moves outlive a minibatch."""
        pattern = self._pattern()
        if pattern is None:
            pattern = OneRankMoves(self)
            self._pattern = weakref.ref(pattern)
        return pattern

    def multiply(self, H: Array, T: Array, then: Ending | None = None) -> None:
        local.spmm(self.A, H, T, then=then)

    def multiply_adjoint(self, G: Array, F: Array, then: Ending | None = None) -> None:
        local.spmm(self.At, G, F, then=then)

    def one_piece(self) -> Any:
        return self.A.to_scipy()

    @cached_property
    def At(self) -> CSR:
        """The transposed matrix, made when it is first asked for."""
        At = self.A.transposed(self.grid.backend)
        At.pattern[FLEETING] = True
        return At

"""GraphSAGE with mean aggregation, forward and backward side by side.

Z_l = [H_{l-1} | D⁻¹ A H_{l-1}] W_l + b_l (Hamilton, Ying and Leskovec, NIPS 2017, Algorithm 1 without its
normalisation of H), D the row sums of A: every vertex's own features beside the mean of its neighbours'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgnn.errors import ArgumentError
from distgnn.nn.gcn import GCN
from distgnn.nn.layers import AGGREGATE, TRANSFORM, Forward, Gradients, GraphConvolution, Kept, associative
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse

Array = Any


class NeighbourMean(DistSparse):
    """D⁻¹ A, cut like A: its products are means over neighbours, 0 for a vertex without any.

    Args:
        A: with values that are not negative, by which the means are weighted. Collective.
    """

    def __init__(self, A: DistSparse) -> None:
        self.A, self.inverse = A, inverse_row_sums(A)
        self.name, self.axes, self.grid, self.shape, self.dtype = A.name, A.axes, A.grid, A.shape, A.dtype
        self.input_layout, self.output_layout, self.weights = A.input_layout, A.output_layout, A.weights
        self.symmetric = False

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        raise TypeError("means live on the grid of the operator that they are made of")

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        self.A.multiply(H, T)
        T.block *= self.inverse

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        with self.grid.workspace.lend(G.block.shape, G.dtype) as scaled:
            self.grid.backend.xp.multiply(G.block, self.inverse, out=scaled)
            self.A.T.multiply(G.like(scaled), F)


class MeanConvolution(GraphConvolution):
    """Layer `index` of a GraphSAGE network. Its operators make means, and the vertices of their rows are the
    first of their columns. W is (2 fan in, fan out): for own features above, for neighbours' below.
    """

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Global shape of the weights: a vertex's own inputs, the mean of its neighbours'; outputs."""
        return 2 * self.shape[0], self.shape[1]

    def choose(self, A: DistSparse, need_input: bool, fixed_input: bool) -> str:
        return AGGREGATE

    def _aggregate_first(self, A: DistSparse, H: DistDense, T: DistDense, keep: bool) -> Forward:
        f = self.shape[0]
        Z = self._times(A, self._own(H, T), self.W.block[:f])
        from_neighbours = self._times(A, T, self.W.block[f:])
        Z.block += from_neighbours.block
        self._give_back(from_neighbours)
        if not keep:
            self._give_back(H, T)
        return Z, (H, T)

    def _aggregate_back(self, A: DistSparse, kept: Kept, G: DistDense, need_input: bool) -> Gradients:
        (H, T), f = kept, self.shape[0]
        of_own, d_own = self._times_back(A, self._own(H, T), self.W.block[:f], G, need_input)
        of_neighbours, dT = self._times_back(A, T, self.W.block[f:], G, need_input)
        self._give_back(H, T, G)
        dH = self._adjoint(A, dT)
        if dH is not None and d_own is not None:
            dH.block[: len(d_own.block)] += d_own.block
            self._give_back(d_own)
        return [A.grid.backend.xp.concatenate((of_own.block, of_neighbours.block))], dH

    @staticmethod
    def _own(H: DistDense, T: DistDense) -> DistDense:
        """The rows of H that belong to the vertices of T."""
        return DistDense(H.block[: len(T.block)], T.layout, T.shape)


class SageMean(GCN):
    """GraphSAGE with mean aggregation, on the algorithms that cut the input of a product like its output: all
    but `3d`.

    Args:
        A: adjacency matrix, n x n, without loops, as own features have weights of their own. Its values, not
            negative, weight the means; a vertex without neighbours has the mean 0.
        others: as those of a :class:`GCN`. W of a layer is (2 fan in, fan out). Products are aggregate-first.

    Raises:
        as GCN, and UserError for `3d` and for transform first (on every rank).
    """

    convolution = MeanConvolution
    means = needs_own = neighbours = True

    def __init__(
        self, A: DistSparse, widths: Sequence[int], seed: int = 0, dropout: float = 0.0, bias: bool = False,
        product_order: str = "auto", keep_aggregate: bool = True, residual: bool = False,
        layer_norm: bool = False,
    ) -> None:  # fmt: skip
        square = A.shape[0] == A.shape[1]
        if square and not associative(A):
            problem = f"algorithm {A.name} cuts the input of a product unlike its output; choose another"
            raise ArgumentError("model", "sage", problem)
        if product_order == TRANSFORM:
            raise ArgumentError("product_order", TRANSFORM, "model=sage aggregates first")
        A = NeighbourMean(A) if square else A
        options = product_order, keep_aggregate, residual, layer_norm
        super().__init__(A, widths, seed, dropout, bias, *options)


def inverse_row_sums(A: DistSparse) -> Array:
    """1 / (sum of row i), 0 for a sum of 0: (local rows, 1) of the output of A. Collective.

    Cost: that of a product with a matrix of as many columns as its layout cuts columns into blocks.
    """
    layout, xp = A.input_layout, A.grid.backend.xp
    shape = A.shape[1], A.grid.count(*layout.col_axes)
    ones = DistDense(xp.ones(layout.local_shape(shape), A.dtype), layout, shape)
    sums = A.multiply(ones).block[:, :1]
    return xp.where(sums == 0, 0, 1 / xp.where(sums == 0, 1, sums)).astype(A.dtype)

"""GraphSAGE with mean aggregation, forward and backward side by side.

Z_l = [H_{l-1} | D⁻¹ A H_{l-1}] W_l + b_l (Hamilton, Ying and Leskovec, NIPS 2017, Algorithm 1 without its
normalisation of H), D the row sums of A: every vertex's own features beside the mean of its neighbours'.
"""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp

from distgnn.errors import ArgumentError
from distgnn.local.epilogue import Epilogue, Kept
from distgnn.nn.buffers import Buffers, Gradients, Names
from distgnn.nn.gcn import GCN
from distgnn.nn.layers import GraphConvolution
from distgnn.nn.products import AGGREGATE, TRANSFORM, AggregateFirst, SparseInput, associative
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features

Array = Any


class NeighbourMean(Operator):
    """The operator D⁻¹ A, cut like A: its products are means over neighbours, 0 for a vertex without any.

    Args:
        A: with values that are not negative, by which the means are weighted. Collective.
    """

    def __init__(self, A: Operator) -> None:
        self.A, self.inverse = A, inverse_row_sums(A)
        self.name, self.grid, self.shape, self.dtype = A.name, A.grid, A.shape, A.dtype
        self.input_layout, self.output_layout, self.weights = A.input_layout, A.output_layout, A.weights
        self.symmetric, self.inner_layouts = False, A.inner_layouts

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        self.A.multiply(H, T)
        T.block *= self.inverse

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        with self.grid.workspace.lend(G.block.shape, G.dtype) as scaled:
            self.grid.backend.xp.multiply(G.block, self.inverse, out=scaled)
            self.A.T.multiply(G.like(scaled), F)

    @property
    def _one_piece(self) -> Any:
        return sp.diags_array(self.inverse[:, 0]) @ self.A._one_piece

    @property
    def nnz(self) -> int:
        return self.A.nnz

    def diagonal(self) -> DistDense:
        D = self.A.diagonal()
        return D.like(D.block * self.inverse)


class OwnAndMean(AggregateFirst):
    """Products Z = [H | T] W with T = A H, and of H the first rows, those of the vertices of T."""

    keeps: Names = ("H", "T")
    before_Z: Names = ()
    before_dH: Names = ("T",)
    rounded: Names = ()
    stored: Names = ()

    def forward(
        self, A: Operator, H: DistDense, W: DistDense, buffers: Buffers, then: Epilogue
    ) -> DistDense:  # fmt: skip
        T = self.aggregate(A, H, buffers)  # T = A H
        W_own, W_mean = _halves(W)
        Z = A.weights.times(_own_rows(A, H), W_own, buffers.Z)  # Z = H W_own
        return A.weights.times(T, W_mean, Z, then, add=True)  # Z += T W_mean

    def backward(
        self, A: Operator, G: DistDense, W: DistDense | None, buffers: Buffers, then: Kept | None
    ) -> Gradients:  # fmt: skip
        T, H = buffers.T, _own_rows(A, buffers.H)
        W_own, W_mean = (None, None) if W is None else _halves(W)
        dW, of_own, of_mean = _room(A, H, G)
        dT = None if W is None else buffers.in_place("dT", "T")
        A.weights.shares(T, G, W_mean, dT, share=of_mean)  # dW_mean = Tᵀ G, dT = G W_meanᵀ
        if dT is None:
            A.weights.shares(H, G, share=of_own)  # dW_own = Hᵀ G
            return [A.weights.sum(dW, H, buffers.later, matrices=2)], None
        dH = A.T.multiply(dT, buffers.dH)  # dH = Aᵀ dT
        own = _own_rows(A, dH)
        ends = then if len(own.block) == len(dH.block) else None
        A.weights.shares(H, G, W_own, own, ends, True, of_own)  # dW_own = Hᵀ G, dH += G W_ownᵀ
        return [A.weights.sum(dW, H, buffers.later, matrices=2)], dH


class OwnAndMeanOfNarrow(SparseInput):
    """Products Z = H W_own + A (H W_mean), and of H the first rows, those of A's rows.

    H are sparse features, or a dense matrix where no backward pass follows and Z is the narrower.
    """

    before_Y: Names = ("H",)

    def forward(
        self, A: Operator, H: Any, W: DistDense, buffers: Buffers, then: Epilogue
    ) -> DistDense:  # fmt: skip
        W_own, W_mean = _halves(W)
        if not buffers.plan.mode.scratch or "H" in buffers.kept:  # H stays in any case
            Z = A.multiply(A.weights.times(H, W_mean, buffers.XW), buffers.Z)  # Z = A (H W_mean)
            own = _own_rows(A, H)
            if A.weights.adds(own):
                return A.weights.times(own, W_own, Z, then, add=True)  # Z += H W_own
            with A.grid.workspace.lend(Z.block.shape, Z.dtype) as room:
                Z.block += A.weights.times(own, W_own, Z.like(room)).block
            return Z
        Z = A.weights.times(_own_rows(A, H), W_own, buffers.Z)  # Z = H W_own
        XW = A.weights.times(H, W_mean, buffers.XW)
        Z.block += A.multiply(XW, buffers.Y).block  # Z += A (H W_mean), where H is over
        return Z

    def backward(
        self, A: Operator, G: DistDense, W: DistDense | None, buffers: Buffers, then: Kept | None
    ) -> Gradients:  # fmt: skip
        assert W is None
        X: Any = buffers.H
        S = A.T.multiply(G, buffers.S)  # S = Aᵀ G
        dW, of_own, of_mean = _room(A, X, G)
        A.weights.shares(_own_rows(A, X), G, share=of_own)  # dW_own = Xᵀ G
        A.weights.shares(X, S, share=of_mean)  # dW_mean = Xᵀ S
        return [A.weights.sum(dW, X, buffers.later, matrices=2)], None


def _own_rows(A: Operator, H: Any) -> Any:
    """Return the rows of H, dense or sparse, that belong to A's rows."""
    shape = A.shape[0], H.shape[1]
    height, _ = A.output_layout.local_shape(shape)
    if isinstance(H, SparseFeatures):
        return SparseFeatures(H.block.rows(0, height), A.output_layout, shape)
    return DistDense(H.block[:height], A.output_layout, shape)


def _halves(W: DistDense) -> tuple[DistDense, DistDense]:
    f, width = W.shape[0] // 2, W.shape[1]
    return DistDense(W.block[:f], W.layout, (f, width)), DistDense(W.block[f:], W.layout, (f, width))


def _room(A: Operator, H: Features, G: DistDense) -> tuple[Array, Array, Array]:
    """Make room for this rank's share of dW, and give its halves: of own features, of means."""
    height = H.block.shape[1]
    dW = A.grid.backend.empty((2 * height, G.shape[1]), G.dtype)
    return dW, dW[:height], dW[height:]


class MeanConvolution(GraphConvolution):
    """A layer of a GraphSAGE network.

    W is (2 fan in, fan out): for own features above, for neighbours' below. Its operators make means, and the
    vertices of their rows are the first of their columns.
    """

    aggregate_first, transform_first, of_sparse = OwnAndMean, OwnAndMeanOfNarrow, OwnAndMeanOfNarrow

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Global shape of the weights: a vertex's own inputs, the mean of its neighbours'; outputs."""
        return 2 * self.shape[0], self.shape[1]

    def order(self, A: Operator, need_input: bool, fixed_input: bool, back: bool = True) -> str:
        return AGGREGATE if back else super().order(A, need_input, fixed_input, back)


class SageMean(GCN):
    """GraphSAGE with mean aggregation.

    On the algorithms that cut the input of a product like its output: all but `3d`.

    Args:
        A: adjacency matrix, n x n, without loops, as own features have weights of their own. Its values, not
            negative, weight the means; a vertex without neighbours has the mean 0.
        others: as those of a :class:`GCN`. W of a layer is (2 fan in, fan out). Products of
            training are aggregate-first.

    Raises:
        as GCN, and UserError for `3d` and for transform first (on every rank).
    """

    convolution = MeanConvolution
    means = needs_own = neighbours = True

    def operator(self, A: Operator, product_order: str) -> Operator:
        if not associative(A):
            problem = f"algorithm {A.name} cuts the input of a product unlike its output; choose another"
            raise ArgumentError("model", "sage", problem)
        if product_order == TRANSFORM:
            raise ArgumentError("product_order", TRANSFORM, "model=sage aggregates first")
        return NeighbourMean(A)


def inverse_row_sums(A: Operator) -> Array:
    """Compute 1 / (sum of row i), 0 for a sum of 0: (local rows, 1) of the output of A. Collective.

    Cost: that of a product with a matrix of as many columns as its layout cuts columns into blocks.
    """
    layout, xp = A.input_layout, A.grid.backend.xp
    shape = A.shape[1], A.grid.count(*layout.col_axes)
    ones = DistDense(xp.ones(layout.local_shape(shape), A.dtype), layout, shape)
    sums = A.multiply(ones).block[:, :1]
    return xp.where(sums == 0, 0, 1 / xp.where(sums == 0, 1, sums)).astype(A.dtype)

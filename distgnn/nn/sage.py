"""GraphSAGE with mean aggregation on the whole graph, forward and backward side by side.

Z_l = [H_{l-1} | D⁻¹ A H_{l-1}] W_l + b_l (Hamilton, Ying and Leskovec, NIPS 2017, Algorithm 1 without its normalisation of H),
D the row sums of A: every vertex's own features beside the mean of its neighbours', and a weight matrix for
both, one above the other. What is done to H_{l-1} is as in ``layers.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgnn.errors import ArgumentError
from distgnn.nn.gcn import GCN
from distgnn.nn.layers import TRANSFORM, GraphConvolution, associative
from distgnn.nn.relu import positive_bits
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse

Array = Any


class MeanConvolution(GraphConvolution):
    """Layer `index` of a GraphSAGE network; its arguments are those of a :class:`GraphConvolution`, and
    before them:

    Args:
        inverse: (local rows, 1), 1 / D of the rows of A's output that this rank holds.

    Attributes:
        own, neighbours: (fan in, fan out), the upper and the lower half of W.
    """

    def __init__(self, inverse: Array, A: DistSparse, *options: Any) -> None:
        super().__init__(A, *options)
        self.inverse = inverse
        f = self.shape[0]
        self.own, self.neighbours = (
            DistDense(half, self.W.layout, self.shape) for half in (self.W.block[:f], self.W.block[f:])
        )

    @property
    def weight_shape(self) -> tuple[int, int]:
        return 2 * self.shape[0], self.shape[1]

    def forward(self, H: DistDense, epoch: int | None, keep: bool, need_input: bool = True) -> DistDense:
        features = H
        H = self._activate(H, epoch)
        self.bits = positive_bits(H.block) if keep and self.index > 0 else None
        T = self._aggregate(H, self._constant(H is features, need_input))
        Z = self.A.weights.times(H, self.own, self._borrow(self.A.weights.output_layout, self.shape[1]))
        from_neighbours = self.A.weights.times(
            T, self.neighbours, self._borrow(self.A.weights.output_layout, self.shape[1])
        )
        Z.block += from_neighbours.block
        self._give_back(from_neighbours)
        if self.b is not None:
            Z.block += self.b.block
        if keep:
            self.kept = ("", (H, T))
        else:
            self._give_back(H)
            self._give_back(T)
        return Z

    def backward(
        self, G: DistDense, epoch: int | None, need_input: bool = True
    ) -> tuple[Array, Array | None, DistDense | None]:
        if self.kept is None:
            raise RuntimeError("backward without a forward(..., keep=True) before it")
        (_, (H, T)), self.kept = self.kept, None
        db = None if self.b is None else self._column_sums(G)
        dW = self.W.like(self.A.grid.backend.empty(self.W.block.shape, self.W.dtype))
        own, dH = self.A.weights.backward(H, G, *self._wanted(self.own, need_input))
        neighbours, dT = self.A.weights.backward(T, G, *self._wanted(self.neighbours, need_input))
        dW.block[: self.shape[0]], dW.block[self.shape[0] :] = own.block, neighbours.block
        for used in (H, T, G):
            self._give_back(used)
        if dH is not None and dT is not None:
            dT.block *= self.inverse
            dS = self.A.T.multiply(dT, self._borrow(self.A.input_layout, self.shape[0]))
            dH.block += dS.block
            self._give_back(dT)
            self._give_back(dS)
            self._activate_backward(dH, epoch)
        return dW.block, db, dH

    def _wanted(self, W: DistDense, need_input: bool) -> tuple[DistDense | None, DistDense | None]:
        return (W, self._borrow(self.A.input_layout, self.shape[0])) if need_input else (None, None)

    def _product(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        T = self.A.multiply(H, out)
        T.block *= self.inverse
        return T


class SageMean(GCN):
    """GraphSAGE with mean aggregation, on the algorithms that cut the input of a product like its output: all
    but `3d`.

    Args:
        A: adjacency matrix with weights that are not negative, n x n: means are weighted by them; a vertex
            without neighbours has the mean 0. Put no loops in it: a vertex's own features have weights of
                their own.
        others: as those of a :class:`GCN`. W of a layer is (2 fan in, fan out). Products are aggregate-first.

    Raises:
        as GCN, and UserError for `3d` and for transform first (on every rank).
    """

    def __init__(
        self, A: DistSparse, widths: Sequence[int], seed: int = 0, dropout: float = 0.0, bias: bool = False,
        nodes: Any = None, product_order: str = "auto", keep_aggregate: bool = True,
    ) -> None:  # fmt: skip
        if A.shape[0] == A.shape[1] and not associative(A):
            problem = f"algorithm {A.name} cuts the input of a product unlike its output; choose another"
            raise ArgumentError("model", "sage", problem)
        if product_order == TRANSFORM:
            raise ArgumentError("product_order", TRANSFORM, "model=sage aggregates first")
        self.inverse = inverse_row_sums(A) if A.shape[0] == A.shape[1] else None
        super().__init__(A, widths, seed, dropout, bias, nodes, product_order, keep_aggregate)

    def _layer(self, A: DistSparse, index: int, shape: tuple[int, int], *options: Any) -> GraphConvolution:
        return MeanConvolution(self.inverse, A, index, shape, *options)


def inverse_row_sums(A: DistSparse) -> Array:
    """1 / (sum of row i), 0 for a sum of 0: (local rows, 1) of the output of A. Collective.

    Cost: that of a product with a matrix of as many columns as its layout cuts columns into blocks.
    """
    layout, xp = A.input_layout, A.grid.backend.xp
    shape = A.shape[1], A.grid.count(*layout.col_axes)
    ones = DistDense(xp.ones(layout.local_shape(shape), A.dtype), layout, shape)
    sums = A.multiply(ones).block[:, :1]
    return xp.where(sums == 0, 0, 1 / xp.where(sums == 0, 1, sums)).astype(A.dtype)

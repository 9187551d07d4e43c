"""One graph convolution, forward and backward side by side.

Z_l = A H_{l-1} W_l + b_l (Plexus section 2.1, equations 1 and 2; CAGNET section III-C). The layer also owns
what is done to its input, H_{l-1} = dropout(relu(Z_{l-1})), because that is the layout it happens in; layer 0
has dropout only.

The product is associative, and the sparse product costs time and words in proportion to the width it
multiplies, so a layer chooses (MG-GCN section 4.4): *aggregate first*, (A H) W, multiplies A at the width
that comes in, *transform first*, A (H W), at the width that goes out, forward and backward alike. Where the
gradient of the layer's input is not wanted (layer 0, unless features are trained), aggregate first needs no
sparse product in backward, since dW = (A H)ᵀ G; transform first does, dW = Hᵀ (Aᵀ G). If that input is the
same in every epoch, too (no dropout), A H is computed once and kept, and the layer needs no sparse product at
all. This is exact only so: MG-GCN skips the backward product of a layer that computed A (H W), taking Aᵀ for
    the identity there, which is not the gradient.
"""

from __future__ import annotations

from typing import Any

from distgnn import rng
from distgnn.layout import Cut, Layout
from distgnn.local.elementwise import keep_positive, positive_bits, relu
from distgnn.nn.dropout import Dropout
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse

Array = Any

AGGREGATE, TRANSFORM = "aggregate-first", "transform-first"
ORDERS = ("auto", AGGREGATE, TRANSFORM)


def sparse_width(order: str, shape: tuple[int, int], need_input: bool, fixed_input: bool) -> int:
    """Columns that A and Aᵀ multiply per epoch in a layer of this (fan in, fan out): time and words are in
    proportion.
    """
    if order == TRANSFORM:
        return 2 * shape[1]
    return shape[0] * (1 + need_input - (fixed_input and not need_input))


def associative(A: DistSparse) -> bool:
    """Can ``A (H W)`` be computed as well as ``(A H) W``? So it is where A's input is cut like its output."""
    return A.shape[0] == A.shape[1] and all(
        A.input_layout.same(other, (A.shape[0], 0)) for other in (A.output_layout, A.weights.output_layout)
    )


class GraphConvolution:
    """Layer `index` of a network.

    Args:
        A: the operator of this layer (`A.layer(index)`), with its dense products.
        index: from 0.
        shape: (fan in, fan out) of the layer.
        seed: of weights and masks; rate: of dropout; bias: whether there is one.
        nodes: original ids of the rows of this layer's input block, int64 on its device.
        order: of the products, or "auto" for the one that multiplies fewer columns by A; keep_aggregate:
            whether to keep A H of a layer 0 whose input does not change. An operator whose input is cut
            unlike its output can only aggregate first.

    Attributes:
        W: in `A.weights.weight_layout`, of `weight_shape`; b: the bias as a matrix of one row, cut as the columns of
            Z are, or None.
    """

    def __init__(
        self, A: DistSparse, index: int, shape: tuple[int, int], seed: int, rate: float, bias: bool,
        nodes: Array, order: str = "auto", keep_aggregate: bool = True,
    ) -> None:  # fmt: skip
        self.A, self.index, self.shape = A, index, shape
        xp = A.grid.backend.xp
        (top, bottom), (left, right) = A.weights.weight_layout.ranges(self.weight_shape)
        rows, cols = xp.arange(top, bottom), xp.arange(left, right)
        W = rng.glorot(seed, index, self.weight_shape, rows, cols, A.dtype)
        self.W = DistDense(W, A.weights.weight_layout, self.weight_shape)
        along_columns = Layout(A.grid, Cut(), A.weights.output_layout.cols)
        local = along_columns.local_shape((1, shape[1]))
        self.b = DistDense(xp.zeros(local, A.dtype), along_columns, (1, shape[1])) if bias else None
        self.dropout = Dropout(rate, seed, index, nodes, xp.arange(*A.input_layout.col_range(shape[0])))
        self.keep_aggregate = keep_aggregate and index == 0
        self.order = order
        self.kept: tuple[str, Any] | None = None  # the order of the last forward, and A H or H
        self.bits: Array = None
        self.aggregate: tuple[DistDense, DistDense] | None = None  # the features, and A times them

    @property
    def weight_shape(self) -> tuple[int, int]:
        return self.shape

    def choose(self, need_input: bool) -> str:
        """The order of products for epochs in which the gradient of the input is wanted or not."""
        if not associative(self.A):
            return AGGREGATE
        if self.order != "auto":
            return self.order
        fixed = self.keep_aggregate and self.dropout.rate == 0
        orders = (TRANSFORM, AGGREGATE)  # of equals the first: it keeps H, which is there anyway
        return min(orders, key=lambda order: sparse_width(order, self.shape, need_input, fixed))

    def forward(self, H: DistDense, epoch: int | None, keep: bool, need_input: bool = True) -> DistDense:
        """Z of this layer, in memory borrowed from the grid's workspace. Collective.

        Args:
            H: the features (layer 0, left alone) or the previous layer's Z (overwritten and, once used, given
                back).
            epoch: the epoch whose dropout masks apply, or None for no dropout.
            keep: keep what `backward` needs: one n x fan-in matrix.
            need_input: whether `backward` will be asked for the gradient of the input. If not, features may
                not be changed any more while this layer lives: A H may have been kept.
        """
        features = H
        H = self._activate(H, epoch)
        order = self.choose(need_input)
        self.bits = positive_bits(H.block) if keep and self.index > 0 and order == AGGREGATE else None
        if order == TRANSFORM:
            kept = H
            Y = self.A.weights.times(H, self.W, self._borrow(self.A.weights.output_layout, self.shape[1]))
            if not keep:
                self._give_back(H)
            Z = self.A.multiply(Y, self._borrow(self.A.weights.output_layout, self.shape[1]))
            self._give_back(Y)
        else:
            kept = self._aggregate(H, self._constant(H is features, need_input))
            self._give_back(H)
            Z = self.A.weights.times(kept, self.W, self._borrow(self.A.weights.output_layout, self.shape[1]))
            if not keep:
                self._give_back(kept)
        if self.b is not None:
            Z.block += self.b.block
        self.kept = (order, kept) if keep else None
        return Z

    def backward(
        self, G: DistDense, epoch: int | None, need_input: bool = True
    ) -> tuple[Array, Array | None, DistDense | None]:
        """Gradients of this layer from that of its Z, which is given back to the workspace, like what
        `forward` kept. Collective.

        Returns:
            blocks of dW (like W) and db (like b), and the gradient of the layer's input: for layer 0 that of
            the features, else that of the previous layer's Z; None with `need_input=False`.
        """
        if self.kept is None:
            raise RuntimeError("backward without a forward(..., keep=True) before it")
        (order, kept), self.kept = self.kept, None
        db = None if self.b is None else self._column_sums(G)
        W = self.W if need_input else None
        if order == TRANSFORM:
            S = self.A.T.multiply(G, self._borrow(self.A.input_layout, self.shape[1]))
            self._give_back(G)
            dH = self._borrow(self.A.input_layout, self.shape[0]) if need_input else None
            dW, dH = self.A.weights.backward(kept, S, W, dH)
            self._give_back(S)
            self.bits = positive_bits(kept.block) if need_input and self.index > 0 else None
            self._give_back(kept)
        else:
            dT = self._borrow(self.A.output_layout, self.shape[0]) if need_input else None
            dW, dT = self.A.weights.backward(kept, G, W, dT)
            self._give_back(kept)
            self._give_back(G)
            dH = None
            if dT is not None:
                dH = self.A.T.multiply(dT, self._borrow(self.A.input_layout, self.shape[0]))
                self._give_back(dT)
        if dH is not None:
            self._activate_backward(dH, epoch)
        return dW.block, db, dH

    def _activate(self, H: DistDense, epoch: int | None) -> DistDense:
        """Dropout of the features, into a matrix of its own, or ReLU and dropout of what the layer before
        made, in place.
        """
        if epoch is not None and self.dropout.rate > 0:
            out = H if self.index > 0 else self._borrow(H.layout, H.shape[1])
            self.dropout.apply(H.block, epoch, out.block, relu=self.index > 0)
            return out
        if self.index > 0:
            relu(H.block)
        return H

    def _activate_backward(self, dH: DistDense, epoch: int | None) -> None:
        if self.index > 0:
            keep_positive(dH.block, self.bits, 1.0 if epoch is None else self.dropout.scale)
            self.bits = None
        elif epoch is not None and self.dropout.rate > 0:
            self.dropout.apply(dH.block, epoch)

    def _constant(self, features: bool, need_input: bool) -> bool:
        """Will the input be the same in every epoch?"""
        return (
            self.index == 0 and self.keep_aggregate and features and not need_input and self.dropout.rate == 0
        )

    def _aggregate(self, H: DistDense, constant: bool) -> DistDense:
        """A H, of constant features computed once, into memory of its own."""
        if not constant:
            self.aggregate = None
            return self._product(H, self._borrow(self.A.output_layout, self.shape[0]))
        if self.aggregate is None or self.aggregate[0] is not H:
            self.aggregate = (H, self._product(H))
        return self.aggregate[1]

    def _product(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        return self.A.multiply(H, out)

    def _borrow(self, layout: Layout, width: int) -> DistDense:
        shape = (self.A.shape[0], width)
        return DistDense(self.A.grid.workspace.borrow(layout.local_shape(shape), self.A.dtype), layout, shape)

    def _give_back(self, H: DistDense) -> None:
        self.A.grid.workspace.give_back(H.block)

    def _column_sums(self, G: DistDense) -> Array:
        """Sums over all nodes of this rank's columns: over the axes that cut the rows, never over replicas."""
        sums = G.block.sum(axis=0, keepdims=True, dtype="float64").astype(G.dtype)
        return G.grid.along(*G.layout.row_axes).allreduce(sums)

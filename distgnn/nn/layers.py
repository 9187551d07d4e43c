"""One graph convolution, forward and backward side by side.

Z_l = A H_{l-1} W_l + b_l (Plexus section 2.1, equations 1 and 2; CAGNET section III-C). The layer holds W and
b; every call is given the operator A: the whole graph, or the sampled block of a minibatch. The layer also
makes its input, H_{l-1} = dropout(relu(norm(Z_{l-1}))), in whose layout that happens (``activation.py``). The
products with A and W have one of two orders (``products.py``), in memory that a plan laid out
(``buffers.py``). A network may want H_{l-1} added to Z_l (residual connections).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from distgnn import rng
from distgnn.layout import Cut, Layout
from distgnn.local import elementwise
from distgnn.nn.activation import Activation
from distgnn.nn.buffers import Buffers, Mode, Plan
from distgnn.nn.norm import LayerNorm
from distgnn.nn.optim import Parameter
from distgnn.nn.products import (
    AGGREGATE,
    TRANSFORM,
    AggregateFirst,
    FixedAggregate,
    Products,
    TransformFirst,
    associative,
    cheaper,
)
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse
from distgnn.operators.relayout import relayout

Array = Any


@dataclass(frozen=True)
class Options:
    """The options of a network that its layers share; see :class:`distgnn.nn.GCN`."""

    seed: int
    dropout: float
    bias: bool
    product_order: str
    keep_aggregate: bool
    residual: bool
    layer_norm: bool


class Record(NamedTuple):
    """The results of a layer's forward pass that its backward pass needs.

    Attributes:
        positive: bits of the input, 1 where it is positive, or None where backward has the input itself.
        scales: of the norm.
    """

    mode: Mode
    products: Products
    buffers: Buffers
    positive: Array
    scales: Array


class GraphConvolution:
    """Layer `index` of a network.

    Args:
        A: the operator of this layer on the whole graph, for whose dense products the weights are cut.
        index: from 0. shape: (fan in, fan out), equal for a residual connection.
        options: of the network, but ``residual`` of this layer. An operator whose input is cut unlike its
            output can only aggregate first.

    Attributes:
        W: in `A.weights.weight_layout`, of `weight_shape`; b: the bias as a matrix of one row, cut as the
            columns of Z are, or None; norm: of the input, or None; added: parameters beside these.
        fixed: A H of a layer 0 whose input does not change.
    """

    aggregate_first: type[AggregateFirst] = AggregateFirst

    def __init__(self, A: DistSparse, index: int, shape: tuple[int, int], options: Options) -> None:
        self.index, self.shape, self.options = index, shape, options
        xp, seed = A.grid.backend.xp, options.seed
        (top, bottom), (left, right) = A.weights.weight_layout.ranges(self.weight_shape)
        rows, cols = xp.arange(top, bottom), xp.arange(left, right)
        W = rng.glorot(seed, index, self.weight_shape, rows, cols, A.dtype)
        self.W = DistDense(W, A.weights.weight_layout, self.weight_shape)
        along_columns = Layout(A.grid, Cut(), A.weights.output_layout.cols)
        local = along_columns.local_shape((1, shape[1]))
        self.b = DistDense(xp.zeros(local, A.dtype), along_columns, (1, shape[1])) if options.bias else None
        self.norm = LayerNorm(A.input_layout, shape[0], A.dtype) if options.layer_norm and index else None
        self.activation = Activation(index, self.norm, seed, options.dropout)
        self.added: list[Parameter] = []
        self.fixed = FixedAggregate()

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Global shape of the weights: (inputs, outputs)."""
        return self.shape

    def parameters(self) -> list[Parameter]:
        """The trained matrices; `backward` returns their gradients in this order. The norm of the input has
        the number of the layer whose output that is.
        """
        i = self.index
        trained = [Parameter(f"W{i}", i, "weight", self.W), *self.added]
        trained += [] if self.b is None else [Parameter(f"b{i}", i, "bias", self.b)]
        if self.norm is not None:
            trained += [Parameter(f"g{i - 1}", i - 1, "gain", self.norm.gain)]
            trained += [Parameter(f"s{i - 1}", i - 1, "shift", self.norm.shift)]
        return trained

    def forward(self, plan: Plan, H: DistDense, mode: Mode) -> tuple[DistDense, Record]:
        """Z of this layer, and the record for `backward`. Collective over the grid of A.

        Args:
            plan: of this layer on the graph.
            H: the features (layer 0), or the previous layer's Z. ``mode.scratch`` says what becomes of it.

        Returns:
            Z, in memory of the grid's workspace, which it returns to in ``backward`` or by the caller.
        """
        A, products = plan.A, self.products(plan.A, mode)
        over = {"Z": products.before_Z, "dH": products.before_dH}
        buffers = Buffers(plan, over, (*products.keeps, "N") if mode.keep else ())
        H, scales = self.activation.forward(H, mode, buffers)  # H = dropout(relu(norm(H)))
        if self.options.residual:
            copy_rows(H, buffers.H_like_Z)
        positive = self.activation.positive(H) if mode.keep and "H" not in products.keeps else None
        Z = products.forward(A, H, self.weights(A), buffers)  # Z = A H W
        if self.b is not None:
            Z.block += self.b.block  # Z += b
        if self.options.residual:
            Z.block += buffers.H_like_Z.block  # Z += H
        buffers.close("Z")
        return Z, Record(mode, products, buffers, positive, scales)

    def backward(
        self, record: Record, G: DistDense, need_input: bool = True
    ) -> tuple[list[Array], DistDense | None]:
        """Blocks of the gradients of `parameters()`; and the gradient of the features (layer 0) or of the
        previous layer's Z, None with `need_input=False`. The memory of G and of what `forward` kept returns
        to the workspace. Collective over the grid of A.
        """
        mode, products, buffers, positive, scales = record
        A, residual = buffers.plan.A, self.options.residual and need_input
        buffers.reopen(G)
        gradients = [] if self.b is None else [column_sums(G)]  # db = 1ᵀ G
        if residual:
            copy_rows(G, buffers.G_like_H)
        if need_input and "H" in products.keeps:
            positive = self.activation.positive(buffers.H)
        dW, dH = products.backward(A, G, self.weights(A) if need_input else None, buffers)
        if dH is not None:
            if residual:
                dH.block[: len(buffers.G_like_H.block)] += buffers.G_like_H.block  # dH += G
            gradients += self.activation.backward(dH, positive, scales, mode, buffers)
        buffers.close("dH")
        return [*dW, *gradients], dH

    def products(self, A: DistSparse, mode: Mode) -> Products:
        """The products of a pass, in the order of this layer."""
        features = not (mode.need_input or mode.scratch)  # which stay as they are
        options = self.options
        fixed = features and self.index == 0 and options.keep_aggregate and options.dropout == 0
        if self.order(A, mode.need_input, fixed) == TRANSFORM:
            return TransformFirst()
        if not fixed and not mode.scratch:
            self.fixed.forget()  # the features may have changed since
        return self.aggregate_first(self.fixed if fixed else None)

    def order(self, A: DistSparse, need_input: bool, fixed_input: bool) -> str:
        """Choose the order of products; a fixed input is the same in every epoch."""
        if not associative(A):
            return AGGREGATE
        asked = self.options.product_order
        return cheaper(self.shape, need_input, fixed_input) if asked == "auto" else asked

    def weights(self, A: DistSparse) -> DistDense:
        """W as the dense products of A take it."""
        return DistDense(self.W.block, A.weights.weight_layout, self.weight_shape)


def copy_rows(X: DistDense, out: DistDense) -> DistDense:
    """Copy the first rows of X to ``out``, which may be cut otherwise if X has no other rows. Collective."""
    if not X.layout.same(out.layout, X.shape):
        return relayout(X, out)
    out.block[...] = X.block[: len(out.block)]
    return out


def column_sums(G: DistDense) -> Array:
    """Sums over all rows of this rank's columns: over the axes that cut the rows, never over replicas."""
    sums = elementwise.column_sums(G.block)
    return G.grid.along(*G.layout.row_axes).allreduce(sums, matrix="gradients")

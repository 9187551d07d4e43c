"""One graph convolution, forward and backward side by side.

Z_l = A H_{l-1} W_l + b_l (Plexus section 2.1, equations 1 and 2; CAGNET section III-C). The layer holds W and
b; every call is given the operator A: the whole graph, or the sampled block of a minibatch. The layer also
makes its input, H_{l-1} = dropout(relu(norm(Z_{l-1}))), or with ELU, in whose layout that happens
(``activation.py``); without norm and ELU the layer before makes it, with the bias. The products with A and W
have one of two orders (``products.py``), in memory that a plan laid out (``buffers.py``). A network may want
H_{l-1} added to Z_l (residual connections).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distgnn.layout import Cut, Layout
from distgnn.local import elementwise
from distgnn.local.epilogue import Epilogue
from distgnn.local.initial import glorot
from distgnn.nn.activation import RELU, Activation
from distgnn.nn.buffers import Buffers, Gradients, LayerGraph, LayerProducts, Mode, Products
from distgnn.nn.norm import LayerNorm
from distgnn.nn.optim import Parameter
from distgnn.nn.products import (
    AGGREGATE,
    TRANSFORM,
    AggregateFirst,
    FixedAggregate,
    SparseInput,
    TransformFirst,
    choose,
    multiply,
)
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense
from distgnn.operators.later import Later, summed_over
from distgnn.operators.relayout import relayout

Array = Any


@dataclass(frozen=True)
class Options:
    """Options of a network that its layers share; see :class:`distgnn.nn.GCN`."""

    seed: int
    dropout: float
    bias: bool
    product_order: str
    keep_aggregate: bool
    residual: bool
    layer_norm: bool
    activation: str = RELU


class GraphConvolution:
    """A layer of a network: its parameters, and its passes over any graph.

    Args:
        A: the operator of this layer on the whole graph, for whose dense products the weights are cut.
        index: from 0. shape: (fan in, fan out), equal for a residual connection.
        options: of the network, but ``residual`` of this layer. An operator whose input is cut unlike its
            output can only aggregate first.

    Attributes:
        W: in `A.weights.weight_layout`, of `weight_shape`; b: the bias as a matrix of one row, cut as the
            columns of Z are, or None; norm: of the input, or None; added: parameters beside these.
        fixed: A H of a layer 0 whose input does not change. of_sparse: the products of sparse features; None:
            the layer takes none.
    """

    aggregate_first: type[AggregateFirst] = AggregateFirst
    transform_first: type[Products] = TransformFirst
    of_sparse: type[SparseInput] | None = SparseInput

    def __init__(self, A: Operator, index: int, shape: tuple[int, int], options: Options) -> None:
        self.index, self.shape, self.options = index, shape, options
        xp, seed = A.grid.backend.xp, options.seed
        (top, bottom), (left, right) = A.weights.weight_layout.ranges(self.weight_shape)
        rows, cols = xp.arange(top, bottom), xp.arange(left, right)
        W = glorot(seed, index, self.weight_shape, rows, cols, A.dtype)
        self.W = DistDense(W, A.weights.weight_layout, self.weight_shape)
        along_columns = Layout(A.grid, Cut(), A.weights.output_layout.cols)
        local = along_columns.local_shape((1, shape[1]))
        self.b = DistDense(xp.zeros(local, A.dtype), along_columns, (1, shape[1])) if options.bias else None
        self.norm = LayerNorm(A.input_layout, shape[0], A.dtype) if options.layer_norm and index else None
        self.activation = Activation(index, self.norm, seed, options.dropout, options.activation)
        self.added: list[Parameter] = []
        self.fixed = FixedAggregate(not options.residual and "H" not in self.aggregate_first.keeps)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Global shape of the weights: (inputs, outputs)."""
        return self.shape

    def parameters(self) -> list[Parameter]:
        """List what is trained, in the order of the gradients of `backward`.

        The norm of the input has the number of the layer whose output that is.
        """
        i = self.index
        trained = [Parameter(f"W{i}", i, "weight", self.W), *self.added]
        trained += [] if self.b is None else [Parameter(f"b{i}", i, "bias", self.b)]
        if self.norm is not None:
            trained += [Parameter(f"g{i - 1}", i - 1, "gain", self.norm.gain)]
            trained += [Parameter(f"s{i - 1}", i - 1, "shift", self.norm.shift)]
        return trained

    def forward(
        self, buffers: Buffers, H: Any, following: Callable[[Array], Epilogue] = Epilogue
    ) -> DistDense:  # fmt: skip
        """Compute Z, in memory of the grid's workspace; `buffers` then have what `backward` needs.

        Collective over the grid of A.

        Args:
            buffers: of a plan made by :meth:`plan`.
            H: the features (layer 0), or what the layer before returned. The plan's mode says what becomes of
                it.
            following: makes, of the bias, what becomes of Z before it is returned:
                :meth:`Activation.epilogue` of the next layer, which is told so.
        """
        plan, products = buffers.plan, buffers.plan.products
        H = self.activation.forward(H, buffers, remember=plan.mode.keep)  # H = dropout(relu(norm(H)))
        own = copy_rows(H, buffers.H_like_Z) if self.options.residual else None
        bias = None if self.b is None else self.b.block
        then = following(bias) if own is None else Epilogue(bias)
        Z = products.forward(plan.A, H, plan.W, buffers, then)  # Z = A H W
        elementwise.apply(then, Z.block)  # Z += b; Z = dropout(relu(Z)), the next layer's H
        if own is not None:
            Z.block += own.block  # Z += H
        buffers.close("Z")
        return Z

    def again(self, buffers: Buffers, H: Any) -> None:
        """Make what `backward` needs, of a forward pass whose Z is known. Collective, as `forward`."""
        plan = buffers.plan
        H = self.activation.forward(H, buffers, remember=True)
        plan.products.again(plan.A, H, plan.W, buffers)
        buffers.close()

    def backward(self, buffers: Buffers, G: DistDense, need_input: bool = True) -> Gradients:
        """Compute the gradients from G, that of Z. Collective over the grid of A.

        Returns:
            this rank's blocks of the gradients of `parameters()`, or sums that `buffers.later` makes; and the
            gradient of the features (layer 0) or of the previous layer's Z, None with `need_input=False`. The
            memory of G and of the matrices that `forward` kept returns to the workspace.
        """
        plan = buffers.plan
        A, W, products = plan.A, plan.W if need_input else None, plan.products
        buffers.reopen(G)
        gradients = [] if self.b is None else [column_sums(G, buffers.later)]  # db = 1ᵀ G
        own = copy_rows(G, buffers.G_like_H) if self.options.residual and need_input else None
        buffers.kept = self.activation.kept if need_input else ()
        then = self.activation.ending(buffers)
        dW, dH = products.backward(A, G, W, buffers, then if own is None else None)
        if dH is not None and own is not None:
            rows = dH.block[: len(own.block)]
            rows += own.block  # dH += G
        if dH is not None:
            gradients += self.activation.backward(dH, buffers, then)
        buffers.kept = ()
        buffers.close("dH")
        return [*dW, *gradients], dH

    def plan(self, graph: LayerGraph, mode: Mode) -> LayerProducts:
        """Plan this layer's passes over a graph."""
        return LayerProducts(graph, self.weights(graph.A), self.shape, self.products(graph.A, mode), mode)

    def weights(self, A: Operator) -> DistDense:
        """Cut W as the dense products of A take it. A minibatch's block has a grid of this rank alone."""
        layout = A.weights.weight_layout
        return self.W if layout is self.W.layout else DistDense(self.W.block, layout, self.weight_shape)

    def products(self, A: Operator, mode: Mode) -> Products:
        """Make the products with A and W, in the order of this layer."""
        if mode.sparse:
            assert self.of_sparse is not None
            return self.of_sparse()
        features = not (mode.need_input or mode.scratch)  # which stay as they are
        options = self.options
        fixed = features and self.index == 0 and options.keep_aggregate and options.dropout == 0
        if self.order(A, mode.need_input, fixed, mode.keep) == TRANSFORM:
            return self.transform_first()
        if mode.scratch:
            return self.aggregate_first(multiply)
        return self.aggregate_first(self.fixed.multiply if fixed else self.fixed.multiply_anew)

    def needs_dense(self) -> str | None:
        """Return why this layer takes no sparse features, or None where it does."""
        if self.of_sparse is None:
            return f"{type(self).__name__} multiplies dense matrices"
        if self.options.residual:
            return "residual connections add the features to the output of the first layer"
        return "product_order=aggregate-first makes A X" if self.options.product_order == AGGREGATE else None

    def order(self, A: Operator, need_input: bool, fixed_input: bool, back: bool = True) -> str:
        """Choose the order of products; a fixed input is the same in every epoch. ``back``: as of choose."""
        goes = self.index > 0 and "H" not in self.activation.kept
        return choose(A, self.options.product_order, self.shape, need_input, fixed_input, goes, back)


def copy_rows(X: DistDense, out: DistDense) -> DistDense:
    """Copy the first rows of X to ``out``, which may be cut otherwise if X has no other rows. Collective."""
    if not X.layout.same(out.layout, X.shape):
        return relayout(X, out)
    out.block[...] = X.block[: len(out.block)]
    return out


def column_sums(G: DistDense, later: Later | None = None) -> Any:
    """Add up the rows of G, for this rank's columns. Collective over the axes that cut the rows."""
    return summed_over(later, G.grid.along(*G.layout.row_axes), elementwise.column_sums(G.block))

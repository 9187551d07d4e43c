"""One graph convolution, forward and backward side by side.

Z_l = A H_{l-1} W_l + b_l (Plexus section 2.1, equations 1 and 2; CAGNET section III-C). The layer holds W and
b; every call is given the operator A: the whole graph, or the sampled block of a minibatch. The layer also
makes its input, H_{l-1} = dropout(relu(Z_{l-1})), in whose layout that happens; layer 0 has dropout only. A
network may want H_{l-1} added to Z_l (residual connections), and relu of the layer norm of Z_{l-1}.

A sparse product costs time and words in proportion to its width, so a layer chooses (MG-GCN section 4.4):
*aggregate first*, (A H) W, multiplies A at the width that comes in, *transform first*, A (H W), at the width
that goes out, forward and backward alike. Where the gradient of the layer's input is not wanted (layer 0,
unless features are trained), aggregate first needs no sparse product in backward, since dW = (A H)ᵀ G;
transform first does, dW = Hᵀ (Aᵀ G). If that input is the same in every epoch, too (no dropout), A H is
computed once and kept, and the layer needs no sparse product at all. This is exact; MG-GCN skips the backward
product of a layer that computed A (H W), taking Aᵀ for the identity, which does not give the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from distgnn import ledger, rng
from distgnn.layout import Cut, Layout
from distgnn.local import elementwise
from distgnn.local.elementwise import keep_positive, positive_bits, relu
from distgnn.nn.dropout import Dropout
from distgnn.nn.norm import LayerNorm
from distgnn.nn.optim import Parameter
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse
from distgnn.operators.relayout import relayout

Array = Any
Kept = tuple[DistDense, ...]
Forward = tuple[DistDense, Kept]
Gradients = tuple[list[Array], DistDense | None]  # blocks, of weights; and of the input where wanted

AGGREGATE, TRANSFORM = "aggregate-first", "transform-first"
ORDERS = ("auto", AGGREGATE, TRANSFORM)


class LayerGraph(NamedTuple):
    """What a layer is applied to: A, of the whole graph, or a minibatch's block on this rank alone, with as
    many columns as rows or more; and int64 original ids of this rank's rows of the input.
    """

    A: DistSparse
    nodes: Array


def sparse_width(order: str, shape: tuple[int, int], need_input: bool, fixed_input: bool) -> int:
    """Columns that A and Aᵀ multiply per epoch in a layer of this (fan in, fan out)."""
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
        A: the operator of this layer on the whole graph, for whose dense products the weights are cut.
        index: from 0. shape: (fan in, fan out).
        seed: of weights and masks; rate: of dropout; bias: whether there is one.
        order: of the products, or "auto" for the one that multiplies fewer columns by A. An operator whose
            input is cut unlike its output can only aggregate first.
        keep_aggregate: whether to keep A H of a layer 0 whose input does not change.
        residual: add the input, as activated, to Z; fan in and fan out must be equal.
        layer_norm: normalise the input before its activation; not for layer 0.

    Attributes:
        W: in `A.weights.weight_layout`, of `weight_shape`; b: the bias as a matrix of one row, cut as the
            columns of Z are, or None; norm: of the input, or None.
    """

    def __init__(
        self, A: DistSparse, index: int, shape: tuple[int, int], seed: int, rate: float, bias: bool,
        order: str = "auto", keep_aggregate: bool = True, residual: bool = False, layer_norm: bool = False,
    ) -> None:  # fmt: skip
        self.index, self.shape, self.seed, self.rate, self.order = index, shape, seed, rate, order
        self.residual = residual
        self.norm = LayerNorm(A.input_layout, shape[0], A.dtype) if layer_norm and index else None
        xp = A.grid.backend.xp
        (top, bottom), (left, right) = A.weights.weight_layout.ranges(self.weight_shape)
        rows, cols = xp.arange(top, bottom), xp.arange(left, right)
        W = rng.glorot(seed, index, self.weight_shape, rows, cols, A.dtype)
        self.W = DistDense(W, A.weights.weight_layout, self.weight_shape)
        along_columns = Layout(A.grid, Cut(), A.weights.output_layout.cols)
        local = along_columns.local_shape((1, shape[1]))
        self.b = DistDense(xp.zeros(local, A.dtype), along_columns, (1, shape[1])) if bias else None
        self.keep_aggregate = keep_aggregate and index == 0
        self.more: list[Parameter] = []  # that a layer has beside W
        self.kept: Kept | None = None  # what backward needs
        self.taken = AGGREGATE  # the order of the last forward
        self.bits: Array = None
        self.normal: tuple[DistDense, Array] | None = None  # the normalised input, and by what it was scaled
        self.aggregate: tuple[DistSparse, Array, DistDense] | None = None  # A, the features, A times them

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Global shape of the weights: (inputs, outputs)."""
        return self.shape

    def parameters(self) -> list[Parameter]:
        """What is trained; `backward` returns the gradients in this order. The norm of the input is named by
        the layer whose output that is.
        """
        i = self.index
        found = [Parameter(f"W{i}", i, "weight", self.W), *self.more]
        found += [] if self.b is None else [Parameter(f"b{i}", i, "bias", self.b)]
        if self.norm is not None:
            found += [Parameter(f"g{i - 1}", i - 1, "gain", self.norm.gain)]
            found += [Parameter(f"s{i - 1}", i - 1, "shift", self.norm.shift)]
        return found

    def choose(self, A: DistSparse, need_input: bool, fixed_input: bool) -> str:
        """The order of products; a fixed input is the same in every epoch."""
        if not associative(A):
            return AGGREGATE
        if self.order != "auto":
            return self.order
        orders = (TRANSFORM, AGGREGATE)  # of equals the first: it keeps H, which is there anyway
        return min(orders, key=lambda order: sparse_width(order, self.shape, need_input, fixed_input))

    def forward(
        self, graph: LayerGraph, H: DistDense, epoch: int | None, keep: bool, need_input: bool = True,
        scratch: bool = False,
    ) -> DistDense:  # fmt: skip
        """Z of this layer, in memory borrowed from the grid's workspace. Collective over the grid of A.

        Args:
            H: the features (layer 0), or the previous layer's Z, which is overwritten and then given back.
            epoch: whose dropout masks apply, or None for no dropout; of a minibatch the number of its step.
            keep: keep what `backward` needs: one n x fan-in matrix.
            need_input: whether `backward` will be asked for the gradient of the input. If not, features that
                are not scratch must stay as they are: A H may have been kept.
            scratch: the features may be overwritten and given back, too.
        """
        A, scratch = graph.A, scratch or self.index > 0
        fixed = self.keep_aggregate and self.rate == 0 and not scratch and not need_input
        self.taken = self.choose(A, need_input, fixed)
        H = self._activate(graph, H, epoch, scratch, keep)
        own = self._carried(H, A.weights.output_layout, A.shape[0]) if self.residual else None
        Z, kept = self._products(A, H, keep, fixed, scratch)
        self.kept = kept if keep else None
        if self.b is not None:
            Z.block += self.b.block
        if own is not None:
            Z.block += own.block
            self._give_back(own)
        return Z

    def backward(
        self, graph: LayerGraph, G: DistDense, epoch: int | None, need_input: bool = True
    ) -> tuple[list[Array], DistDense | None]:
        """Blocks of the gradients of `parameters()`; and the gradient of the features (layer 0) or of the
        previous layer's Z, None with `need_input=False`. G and what `forward` kept of the same graph in the
        same epoch are given back to the workspace. Collective over the grid of A.
        """
        if self.kept is None:
            raise RuntimeError("backward without a forward(..., keep=True) before it")
        kept, self.kept = self.kept, None
        found = [] if self.b is None else [column_sums(G)]
        rows = graph.A.shape[0]
        own = self._carried(G, graph.A.input_layout, rows) if self.residual and need_input else None
        of_weights, dH = self._products_back(graph.A, kept, G, need_input)
        if own is not None and dH is not None:
            dH.block[: len(own.block)] += own.block
            self._give_back(own)
        if dH is not None:
            found += self._activate_back(graph, dH, epoch)
        return [*of_weights, *found], dH

    def drop(self) -> None:
        """Give back what `forward` kept for a `backward` that won't come."""
        if self.kept is not None:
            self._give_back(*self.kept)
        if self.normal is not None:
            self._give_back(self.normal[0])
        self.kept = self.bits = self.normal = None

    def _products(self, A: DistSparse, H: DistDense, keep: bool, fixed: bool, scratch: bool) -> Forward:
        """Z without bias, and what backward needs; the rest is given back."""
        if self.taken == TRANSFORM:
            return self._transform_first(A, H, keep)
        self.bits = self._positive_bits(H) if keep else None
        return self._aggregate_first(A, H, self._aggregate(A, H, fixed, scratch), keep)

    def _products_back(self, A: DistSparse, kept: Kept, G: DistDense, need_input: bool) -> Gradients:
        """Gradients of W and `more`, and of H. G and what was kept are given back."""
        back = self._transform_back if self.taken == TRANSFORM else self._aggregate_back
        return back(A, kept, G, need_input)

    def _transform_first(self, A: DistSparse, H: DistDense, keep: bool) -> Forward:
        """Z = A (H W), and what of the input backward needs; the rest is given back."""
        Y = self._times(A, H, self.W.block)
        if not keep:
            self._give_back(H)
        Z = A.multiply(Y, self._borrow(A.weights.output_layout, Y.shape))
        self._give_back(Y)
        return Z, (H,)

    def _transform_back(self, A: DistSparse, kept: Kept, G: DistDense, need_input: bool) -> Gradients:
        """dW and dH. G and what was kept are given back."""
        (H,) = kept
        S = A.T.multiply(G, self._borrow(A.input_layout, G.shape))
        self._give_back(G)
        dW, dH = self._times_back(A, H, self.W.block, S, need_input)
        self._give_back(S)
        self.bits = self._positive_bits(H) if need_input else None
        self._give_back(H)
        return [dW.block], dH

    def _aggregate_first(self, A: DistSparse, H: DistDense, T: DistDense, keep: bool) -> Forward:
        """Z = (A H) W from T = A H, and what backward needs; the rest is given back."""
        self._give_back(H)
        Z = self._times(A, T, self.W.block)
        if not keep:
            self._give_back(T)
        return Z, (T,)

    def _aggregate_back(self, A: DistSparse, kept: Kept, G: DistDense, need_input: bool) -> Gradients:
        """dW and dH. G and what was kept are given back."""
        (T,) = kept
        dW, dT = self._times_back(A, T, self.W.block, G, need_input)
        self._give_back(T, G)
        return [dW.block], self._adjoint(A, dT)

    def _times(self, A: DistSparse, T: DistDense, W: Array) -> DistDense:
        """T W; W is all weights or some rows of them, of which the products of A get the same memory."""
        Z = self._borrow(A.weights.output_layout, (T.shape[0], self.shape[1]))
        return A.weights.times(T, self._weights(A, T, W), Z)

    def _times_back(
        self, A: DistSparse, T: DistDense, W: Array, G: DistDense, need_input: bool
    ) -> tuple[DistDense, DistDense | None]:
        """Tᵀ G and, if wanted, G Wᵀ."""
        if not need_input:
            return A.weights.backward(T, G)
        return A.weights.backward(T, G, self._weights(A, T, W), self._borrow(T.layout, T.shape))

    def _weights(self, A: DistSparse, T: DistDense, W: Array) -> DistDense:
        return DistDense(W, A.weights.weight_layout, (T.shape[1], self.shape[1]))

    def _adjoint(self, A: DistSparse, dT: DistDense | None) -> DistDense | None:
        """Aᵀ dT; dT is given back."""
        if dT is None:
            return None
        dH = A.T.multiply(dT, self._borrow(A.input_layout, (A.shape[1], dT.shape[1])))
        self._give_back(dT)
        return dH

    def _aggregate(self, A: DistSparse, H: DistDense, fixed: bool, scratch: bool) -> DistDense:
        """A H, of fixed features computed once, into memory of its own."""
        if fixed:
            if self.aggregate is None or self.aggregate[0] is not A or self.aggregate[1] is not H.block:
                self.aggregate = (A, H.block, A.multiply(H))
            return self.aggregate[2]
        if not scratch:
            self.aggregate = None  # the features may have changed since
        return A.multiply(H, self._borrow(A.output_layout, (A.shape[0], H.shape[1])))

    def _dropout(self, graph: LayerGraph, epoch: int | None) -> Callable[..., Array] | None:
        if epoch is None or self.rate == 0:
            return None
        on, columns = graph.A.grid.backend, graph.A.input_layout.cols.range(graph.A.grid, self.shape[0])
        masks = Dropout(self.rate, self.seed, self.index, on.asarray(graph.nodes), on.xp.arange(*columns))
        return partial(masks.apply, epoch=epoch)

    def _carried(self, X: DistDense, layout: Layout, rows: int) -> DistDense:
        """A copy of the first rows of the input, or of the gradient of the output, cut as the other is."""
        out = self._borrow(layout, (rows, X.shape[1]))
        if X.layout.same(layout, X.shape):
            out.block[...] = X.block[: len(out.block)]
            return out
        return relayout(X, out)

    def _activate(
        self, graph: LayerGraph, H: DistDense, epoch: int | None, scratch: bool, keep: bool
    ) -> DistDense:
        """Layer norm, ReLU and dropout, of the features dropout alone; in place, or into one of its own."""
        dropout = self._dropout(graph, epoch)
        if self.norm is not None:
            Z, scales = H, self.norm.normalize(H)
            H = self._borrow(H.layout, H.shape) if keep else H
            self.norm.apply(Z, H)
            self.normal = (Z, scales) if keep else None
        if dropout is None and self.index == 0:
            return H
        with self._activation(H):
            if dropout is None:
                relu(H.block)
                return H
            out = H if scratch else self._borrow(H.layout, H.shape)
            dropout(H.block, out=out.block, relu=self.index > 0)
            return out

    def _positive_bits(self, H: DistDense) -> Array:
        """What the backward pass of ReLU needs; None in layer 0, which has none."""
        if self.index == 0:
            return None
        with self._activation(H):
            return positive_bits(H.block)

    def _activate_back(self, graph: LayerGraph, dH: DistDense, epoch: int | None) -> list[Array]:
        """In place; returns the gradients of the norm."""
        with self._activation(dH):
            if self.index > 0:
                keep_positive(dH.block, self.bits, 1.0 if epoch is None else 1 / (1 - self.rate))
                self.bits = None
            elif (dropout := self._dropout(graph, epoch)) is not None:
                dropout(dH.block)
        if self.norm is None or self.normal is None:
            return []
        (Z, scales), self.normal = self.normal, None
        found = self.norm.backward(Z, scales, dH)
        self._give_back(Z)
        return [*found]

    @staticmethod
    def _activation(H: DistDense) -> AbstractContextManager[None]:
        ledger.charge("activation", "relu, dropout", touched=2 * H.block.nbytes)
        return ledger.timed("activation", "relu, dropout", synchronize=H.grid.backend.synchronize)

    def _borrow(self, layout: Layout, shape: tuple[int, int]) -> DistDense:
        return DistDense(layout.grid.workspace.borrow(layout.local_shape(shape), self.W.dtype), layout, shape)

    @staticmethod
    def _give_back(*matrices: DistDense) -> None:
        for H in matrices:
            H.grid.workspace.give_back(H.block)


def column_sums(G: DistDense) -> Array:
    """Sums over all rows of this rank's columns: over the axes that cut the rows, never over replicas."""
    sums = elementwise.column_sums(G.block)
    return G.grid.along(*G.layout.row_axes).allreduce(sums, matrix="gradients")

"""The products of a layer, in one order or the other, forward and backward side by side.

A sparse product costs time and words in proportion to its width, so a layer chooses (MG-GCN section 4.4):
*aggregate first*, (A H) W, multiplies A at the width that comes in, *transform first*, A (H W), at the width
that goes out, forward and backward alike. Where the gradient of the layer's input is not wanted (layer 0,
unless features are trained), aggregate first needs no sparse product in backward, since dW = (A H)ᵀ G;
transform first does, dW = Hᵀ (Aᵀ G). If that input is the same in every epoch, too (no dropout), A H is
computed once and kept, and the layer needs no sparse product at all. This is exact; MG-GCN skips the backward
product of a layer that computed A (H W), taking Aᵀ for the identity, which does not give the gradient.

A pass that nothing goes back from, such as one that scores, counts its own product alone, and may take the
other order than one of training: its numbers are equal to rounding.

Where both orders multiply as many columns, memory decides. Aggregate first holds H and A H at a time, and
then A H and Z in the place of H; transform first H, H W and A (H W), a matrix more. But it keeps nothing
beside H, which is less where H stays in any case, as features do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from distgnn.local.epilogue import Epilogue, Kept
from distgnn.nn.buffers import Buffers, Gradients, Names, Shape
from distgnn.nn.features import OwnedFeatures
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.later import MadeLater, block_of
from distgnn.operators.relayout import relayout
from distgnn.operators.weights import DenseProducts, ReplicatedWeights

Array = Any

AGGREGATE, TRANSFORM = "aggregate-first", "transform-first"
ORDERS = ("auto", AGGREGATE, TRANSFORM)


class FixedAggregate:
    """A X of the features, in memory of its own where they are the same in every epoch.

    Args:
        suffices: the layer needs no more of X.

    Attributes:
        kept: A, a weak reference to the block of X, A X; or None. alone: the numbers of X are gone.
    """

    def __init__(self, suffices: bool = True) -> None:
        self.suffices, self.alone = suffices, False
        self.kept: tuple[Operator, weakref.ref[Array], DistDense] | None = None

    def multiply(self, A: Operator, X: DistDense, buffers: Buffers) -> DistDense:
        """Return T = A X, multiplied the first time. Collective then."""
        if self.kept is None or self.kept[0] is not A or self.kept[1]() is not X.block:
            with A.grid.workspace.once():
                T = A.multiply(X)
            A.grid.workspace.clear()  # later products may be narrower
            if self.suffices and isinstance(X, OwnedFeatures):
                X.let_go()
                self.alone = True
            self.kept = A, weakref.ref(X.block), T
        return buffers.hold("T", self.kept[2])

    def multiply_anew(self, A: Operator, X: DistDense, buffers: Buffers) -> DistDense:
        """Multiply T = A X of features that may have changed. Collective."""
        self.forget()
        return multiply(A, X, buffers)

    def forget(self) -> None:
        """Multiply again next time, if there is anything to multiply."""
        self.kept = self.kept if self.alone else None


def multiply(A: Operator, H: DistDense, buffers: Buffers) -> DistDense:
    """Multiply T = A H. Collective."""
    return A.multiply(H, buffers.T)


class AggregateFirst:
    """Products in the order Z = (A H) W. ``aggregate``: multiplies T = A H."""

    keeps: Names = ("T",)
    before_Z: Names = ("H",)
    before_dH: Names = ("T", "G")
    rounded: Names = ("H", "Z", "dT", "dH")
    stored: Names = (*rounded, "T", "G")

    def __init__(self, aggregate: Callable[[Operator, DistDense, Buffers], DistDense] = multiply) -> None:
        self.aggregate = aggregate

    def forward(
        self, A: Operator, H: DistDense, W: DistDense, buffers: Buffers, then: Epilogue
    ) -> DistDense:  # fmt: skip
        T = self.aggregate(A, H, buffers)  # T = A H
        return A.weights.times(T, W, buffers.Z, then)  # Z = T W

    def again(self, A: Operator, H: DistDense, W: DistDense, buffers: Buffers) -> None:
        self.aggregate(A, H, buffers)  # T = A H

    def backward(
        self, A: Operator, G: DistDense, W: DistDense | None, buffers: Buffers, then: Kept | None
    ) -> Gradients:  # fmt: skip
        T, dT = buffers.T, None if W is None else buffers.in_place("dT", "T")
        dW, dT = A.weights.shares(T, G, W, dT)  # dW = Tᵀ G, dT = G Wᵀ
        dW = A.weights.sum(dW, T, buffers.later)
        return [dW], None if dT is None else A.T.multiply(dT, buffers.dH, then=then)  # dH = Aᵀ dT


class TransformFirst:
    """Products in the order Z = A (H W)."""

    keeps: Names = ("H",)
    before_Z: Names = ("H",)
    before_dH: Names = ("G",)
    rounded: Names = ("Y", "Z", "G", "dH")
    stored: Names = (*rounded, "H", "S")

    def forward(
        self, A: Operator, H: DistDense, W: DistDense, buffers: Buffers, then: Epilogue
    ) -> DistDense:  # fmt: skip
        Y = A.weights.times(H, W, buffers.Y)  # Y = H W
        return A.multiply(Y, buffers.Z, then=then)  # Z = A Y

    def again(self, A: Operator, H: DistDense, W: DistDense, buffers: Buffers) -> None:
        """Compute nothing: H is all that backward needs."""

    def backward(
        self, A: Operator, G: DistDense, W: DistDense | None, buffers: Buffers, then: Kept | None
    ) -> Gradients:  # fmt: skip
        S = A.T.multiply(G, buffers.S)  # S = Aᵀ G
        H, dH = buffers.H, None if W is None else buffers.in_place("dH", "H")
        dW, dH = A.weights.shares(H, S, W, dH, then)  # dW = Hᵀ S, dH = S Wᵀ
        return [A.weights.sum(dW, H, buffers.later)], dH


class SparseInput:
    """Products in the order Z = A (X W) of sparse features X, whose gradient is not wanted.

    A X is rarely as sparse as X. Where A takes its input cut unlike its output, whole W is cut from there,
    and Z and its gradient change their cut.
    """

    keeps: Names = ("H",)
    before_Z: Names = ()
    before_dH: Names = ()

    def forward(
        self, A: Operator, H: Any, W: DistDense, buffers: Buffers, then: Epilogue
    ) -> DistDense:  # fmt: skip
        weights = input_weights(A)
        Y = weights.times(H, recut(W, weights.weight_layout), buffers.XW)  # Y = X W
        if A.output_layout.same(A.weights.output_layout, (A.shape[0], W.shape[1])):
            return A.multiply(Y, buffers.Z, then=then)  # Z = A Y
        T = A.multiply(Y, buffers.AXW)
        return relayout(T, buffers.Z)

    def again(self, A: Operator, H: Any, W: DistDense, buffers: Buffers) -> None:
        """Compute nothing: X is all that backward needs."""

    def backward(
        self, A: Operator, G: DistDense, W: DistDense | None, buffers: Buffers, then: Kept | None
    ) -> Gradients:  # fmt: skip
        assert W is None
        weights, X = input_weights(A), buffers.H
        if not G.layout.same(A.output_layout, G.shape):
            G = relayout(G, buffers.G_like_AXW)
        S = A.T.multiply(G, buffers.S)  # S = Aᵀ G
        share, _ = weights.shares(X, S)  # dW = Xᵀ S
        dW = weights.sum(share, X, buffers.later)
        rows, cols = (slice(*r) for r in A.weights.weight_layout.ranges((X.shape[1], G.shape[1])))
        contiguous = A.grid.backend.xp.ascontiguousarray
        return [MadeLater(lambda: contiguous(block_of(dW)[rows, cols]))], None


def input_weights(A: Operator) -> DenseProducts:
    """Return the products with weights of a matrix cut as the input of A is. Collective the first time."""
    alike = A.weights.input_layout.same(A.input_layout, (A.shape[1], 0)) and A.weights.replicated
    return A.weights if alike else ReplicatedWeights(A.input_layout)


def choose(
    A: Operator, asked: str, shape: Shape, need_input: bool, fixed_input: bool, goes: bool = False,
    back: bool = True,
) -> str:  # fmt: skip
    """Choose the order of products: as asked, or for "auto" the one that multiplies fewer columns by A.

    But aggregate first where A cannot do otherwise. A fixed input is the same in every epoch; one that
    ``goes`` is over once it is multiplied, if nothing but the product keeps it. ``back``: a backward pass
    follows.
    """
    if not associative(A):
        return AGGREGATE
    return cheapest(shape, need_input, fixed_input, goes, back) if asked == "auto" else asked


def cheapest(
    shape: Shape, need_input: bool, fixed_input: bool, goes: bool = False, back: bool = True
) -> str:
    """Return the order that multiplies fewer columns by A, of equals by memory; see :func:`choose`."""
    orders = (AGGREGATE, TRANSFORM) if goes else (TRANSFORM, AGGREGATE)  # of equals the first
    return min(orders, key=lambda order: sparse_width(order, shape, need_input, fixed_input, back))


def sparse_width(
    order: str, shape: Shape, need_input: bool, fixed_input: bool, back: bool = True
) -> int:
    """Count the columns that A multiplies in a pass of a layer of this (fan in, fan out), and Aᵀ after it."""
    if order == TRANSFORM:
        return shape[1] * (1 + back)
    return shape[0] * (1 + (need_input and back) - (fixed_input and not need_input))


def associative(A: Operator) -> bool:
    """Tell whether ``A (H W)`` can be computed, not only ``(A H) W``: A's input is cut like its output."""
    return A.shape[0] == A.shape[1] and all(
        A.input_layout.same(other, (A.shape[0], 0)) for other in (A.output_layout, A.weights.output_layout)
    )

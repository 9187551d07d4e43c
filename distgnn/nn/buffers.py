"""The matrices of a layer and the memory that they share (MG-GCN section 4.2).

With G the gradient of Z, S = Aᵀ G, and d before the name of any other matrix for its gradient:

    aggregate first   T = A H   Z = T W      dW = Tᵀ G   dT = G Wᵀ   dH = Aᵀ dT
    transform first   Y = H W   Z = A Y      S = Aᵀ G    dW = Hᵀ S   dH = S Wᵀ

A network makes :class:`LayerProducts` for each of its layers once: layouts and shapes of these matrices.
:class:`Buffers` puts the matrices of a pass into memory of the grid's workspace. Z takes the place of H, or H
stays and Y is temporary; dT takes the place of T, and dH that of G, or of H where no more than bits of it are
read on. So L layers of one width need L + 1 buffers, one for each layer and one for all of them; with the two
that panels are received into these are the L + 3 of MG-GCN. The first epoch shows how long each matrix is
needed; from then on it lies in as few buffers as life times allow, narrow matrices beside each other in the
place of a wide one that is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple, Protocol

from distgnn.layout import Layout
from distgnn.local import memory_of
from distgnn.local.epilogue import Epilogue, Kept
from distgnn.nn.dropout import DeviceEpoch, Dropout
from distgnn.nn.features import OwnedFeatures
from distgnn.operators.base import Operator
from distgnn.operators.dense import DistDense
from distgnn.operators.later import Later
from distgnn.operators.sparse_features import SparseFeatures

Array = Any
Names = tuple[str, ...]
Shape = tuple[int, int]
#: Blocks of the gradients of weights, or sums that are made later; the gradient of the input where wanted.
Gradients = tuple[list[Any], DistDense | None]
#: Matrices that nobody has but their layer.
WITHIN = ("Y", "T", "S", "dT")


class LayerGraph(NamedTuple):
    """The graph of a layer: the whole graph, or the block of a minibatch, which this rank has alone.

    Attributes:
        A: of a block with as many columns as rows or more.
        nodes: int64 original ids of this rank's rows of the input.
    """

    A: Operator
    nodes: Array


class Mode(NamedTuple):
    """The purpose of a layer's forward pass. The defaults are those of all layers but the first.

    Attributes:
        keep: keep what backward needs.
        need_input: backward will be asked for the gradient of the input. If not, an input that is not scratch
            must stay as it is from pass to pass: A H may have been kept.
        scratch: the input may be overwritten, and its memory goes back to the workspace. If not, in a layer
            but the first, the layer is gone through again before its backward pass.
        sparse: the input is sparse features.
    """

    keep: bool
    need_input: bool = True
    scratch: bool = True
    sparse: bool = False


class Products(Protocol):
    """The products of a layer with A and W, in one order.

    Attributes:
        keeps: matrices that backward needs of forward.
        rounded, stored: matrices that may have 16 bits, where this is said: that one product makes, or none
            but sparse products read; and in mixed precision, that none but products make or read.
        before_Z, before_dH: matrices that are over before Z or dH is written; before_Y: before Y is, where
            this is said.
    """

    keeps: Names
    before_Z: Names
    before_dH: Names

    def forward(
        self, A: Operator, H: DistDense, W: DistDense, buffers: Buffers, then: Epilogue
    ) -> DistDense:  # fmt: skip
        """Compute Z = A H W, and perhaps what becomes of it. Collective over the grid of A."""

    def again(self, A: Operator, H: DistDense, W: DistDense, buffers: Buffers) -> None:
        """Compute what backward needs of a forward pass whose Z is known. Collective over the grid of A."""

    def backward(
        self, A: Operator, G: DistDense, W: DistDense | None, buffers: Buffers, then: Kept | None
    ) -> Gradients:  # fmt: skip
        """Compute the gradients of the weights and, given ``W``, of H, and perhaps what becomes of that.

        Collective over the grid of A.
        """


class LayerProducts:
    """The products of a layer on one graph, in one mode, and layout and shape of all its matrices.

    Args:
        graph: of the layer; W: its weights, as the dense products of A take them; shape: (fan in, fan out).

    Attributes:
        A, nodes: of the graph; matrices: (layout, global shape) by name.
        over: the matrices that are over, by the name of the matrix before which they are; kept: the matrices
            that are over in backward only.
        rounded: the matrices that may have 16 bits as far as products go (see ``rounding.py``).
        local: local shapes by name, masks: of dropout, both from their first use on. dropped: sparse features
            after dropout.
    """

    def __init__(self, graph: LayerGraph, W: DistDense, shape: Shape, products: Products, mode: Mode) -> None:
        (self.A, self.nodes), self.W, self.products, self.mode = graph, W, products, mode
        (m, n), (below, above) = self.A.shape, shape
        H, T, Z = self.A.input_layout, self.A.output_layout, self.A.weights.output_layout
        self.matrices: dict[str, tuple[Layout, Shape]] = {
            "H": (H, (n, below)), "dH": (H, (n, below)), "S": (H, (n, above)),
            "T": (T, (m, below)), "dT": (T, (m, below)),
            "Y": (Z, (m, above)), "Z": (Z, (m, above)), "G": (Z, (m, above)),
            "H_like_Z": (Z, (m, above)), "G_like_H": (H, (m, above)),  # of residual connections
            "XW": (H, (n, above)), "AXW": (T, (m, above)), "G_like_AXW": (T, (m, above)),  # of sparse X
        }  # fmt: skip
        before_Y = getattr(products, "before_Y", ())
        self.over = {"Y": before_Y, "Z": products.before_Z, "dH": products.before_dH}
        self.kept: Names = (*products.keeps, "N") if mode.keep else ()
        alone = self.A.reads_rounded and self.A.weights.replicated
        which = "stored" if self.A.grid.mixed else "rounded"
        self.rounded: Names = getattr(products, which, ()) if alone else ()
        self.local: dict[str, Shape] = {}
        self.masks: Dropout | None = None
        self.dropped: SparseFeatures | None = None
        self._passing: dict[bool, LayerProducts] = {}

    def passing(self, scratch: bool) -> LayerProducts:
        """Plan a pass that keeps nothing for backward, of the same products; ``scratch``: as of the mode."""
        if scratch not in self._passing:
            self._passing[scratch] = other = copy(self)
            other.mode, other.kept = self.mode._replace(keep=False, scratch=scratch), ()
        return self._passing[scratch]

    def make(self, name: str, rounded: bool) -> DistDense:
        """Make a matrix of this name in memory of the workspace; ``rounded``: in 16 bits."""
        layout, shape = self.matrices[name]
        if name not in self.local:
            self.local[name] = layout.local_shape(shape)
        local, workspace, narrow = self.local[name], layout.grid.workspace, layout.grid.narrow
        room = narrow.room(local, workspace) if rounded and narrow else workspace.borrow(local, self.A.dtype)
        return DistDense(room, layout, shape)


class Buffers:
    """The matrices of a layer in a forward pass, and in the backward pass after it.

    ``buffers.T`` is the matrix of this name. Its first use takes memory of the grid's workspace, to which the
    memory of matrices that are over by then returns before. RuntimeError: the matrix itself is over.

    Args:
        epoch: whose dropout masks apply, of minibatches the number of the step; None for no dropout.

    Attributes:
        kept: names of the matrices that may not end yet; rounded: of those that are made in 16 bits.
        made: what made H of the product before it, or None; positive: bits of H, 1 where it is positive;
            scales: of the norm; own: matrices that a layer of the user's keeps for backward.
        later: makes sums of gradients at the end of backward; None: they are made at once.
        given: the input, where its memory is another's.
    """

    given: Any = None
    made: Epilogue | None = None
    positive: Array = None
    scales: Array = None
    own: tuple[DistDense, ...] = ()
    later: Later | None = None

    def __init__(self, plan: LayerProducts, epoch: int | DeviceEpoch | None) -> None:
        self.plan, self.epoch, self.kept = plan, epoch, plan.kept
        self.rounded = {name for name in plan.rounded if name in WITHIN}
        self.live: dict[str, DistDense] = {}
        self.ended: set[str] = set()

    def __getattr__(self, name: str) -> DistDense:
        if name not in self.live:
            if name in self.ended:
                raise RuntimeError(f"matrix {name} of a layer is over; its numbers are gone")
            if name in self.plan.over:
                self._end(*self.plan.over[name])
            self.live[name] = self.plan.make(name, name in self.rounded)
        return self.live[name]

    def hold(self, name: str, X: Any) -> Any:
        """Name a matrix that was made elsewhere. Its memory returns if it is the workspace's."""
        self.live[name] = X
        return X

    def beside(self, name: str, other: str) -> DistDense:
        """Make a new matrix of this name; give the present one the other name."""
        self.live[other] = self.live.pop(name)
        return getattr(self, name)

    def in_place(self, name: str, other: str) -> DistDense:
        """Make a new matrix of this name where the other one is, which is over once it is written.

        It has memory of its own where products with weights need that, the other one stays, or one of them
        alone has 16 bits.
        """
        there = getattr(self, other).block
        alike = (memory_of(there) is not there) == (name in self.rounded)
        in_place = self.plan.A.weights.in_place and self.plan.mode.scratch
        if not (alike and in_place) or other in self.kept:
            return getattr(self, name)
        X, narrow = self.live.pop(other), self.plan.A.grid.narrow
        self.live[name] = X.like(narrow.again(X.block)) if narrow and name in self.rounded else X
        self.ended.add(other)
        self._end(*self.plan.over.get(name, ()))
        return self.live[name]

    def close(self, result: str = "") -> None:
        """End all matrices but the result, whose memory is the caller's now, and those kept for backward."""
        self.live.pop(result, None)
        self._end(*self.live)

    def reopen(self, G: DistDense) -> None:
        """Begin backward with the gradient of Z. Matrices that were kept may end from now on."""
        self.kept = ()
        self.hold("G", G)

    def drop(self) -> None:
        """End all matrices, also those kept for a backward that won't come."""
        self.kept = ()
        self.close()

    def _end(self, *names: str) -> None:
        for name in names:
            if name in self.live and name not in self.kept:
                self.ended.add(name)
                X = self.live.pop(name)
                if isinstance(X, DistDense) and X is not self.given:
                    X.grid.workspace.give_back(memory_of(X.block))
                    if isinstance(X, OwnedFeatures):
                        X.let_go()


@contextmanager
def lent(X: DistDense) -> Iterator[DistDense]:
    """Return the memory of X to the workspace when the context ends."""
    try:
        yield X
    finally:
        X.grid.workspace.give_back(X.block)

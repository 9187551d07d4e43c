"""The matrices of a layer and the memory that they share (MG-GCN section 4.2).

With G the gradient of Z, S = Aᵀ G, and d before the name of any other matrix for its gradient:

    aggregate first   T = A H   Z = T W      dW = Tᵀ G   dT = G Wᵀ   dH = Aᵀ dT
    transform first   Y = H W   Z = A Y      S = Aᵀ G    dW = Hᵀ S   dH = S Wᵀ

A network makes a :class:`Plan` for each of its layers once: the layouts and shapes of these matrices.
:class:`Buffers` puts the matrices of a pass into memory of the grid's workspace. Z takes the place of H, or H
stays and Y is temporary; dH takes the place of G. So L layers of one width need L + 1 buffers, one for each
layer and one for all of them; with the two that panels are received into these are the L + 3 of MG-GCN. The
first epoch makes the buffers, and each later epoch puts each matrix where the first did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from distgnn.layout import Layout
from distgnn.operators.dense import DistDense
from distgnn.operators.operator import DistSparse

Array = Any
Names = tuple[str, ...]


class LayerGraph(NamedTuple):
    """The graph of a layer: the whole graph, or the block of a minibatch, which this rank has alone.

    Attributes:
        A: of a block with as many columns as rows or more.
        nodes: int64 original ids of this rank's rows of the input.
    """

    A: DistSparse
    nodes: Array


class Mode(NamedTuple):
    """The purpose of a layer's forward pass. The defaults are those of all layers but the first.

    Attributes:
        epoch: whose dropout masks apply, of minibatches the number of the step; None for no dropout.
        keep: keep what backward needs.
        need_input: backward will be asked for the gradient of the input. If not, an input that is not scratch
            must stay as it is from pass to pass: A H may have been kept.
        scratch: the input may be overwritten, and its memory goes back to the workspace.
    """

    epoch: int | None
    keep: bool
    need_input: bool = True
    scratch: bool = True


class Plan:
    """Layout and shape of every matrix of a layer.

    Args:
        graph: of the layer; shape: (fan in, fan out).

    Attributes:
        A, nodes: of the graph; matrices: (layout, global shape) by name.
    """

    def __init__(self, graph: LayerGraph, shape: tuple[int, int]) -> None:
        self.A, self.nodes = graph
        (m, n), (below, above) = self.A.shape, shape
        H, T, Z = self.A.input_layout, self.A.output_layout, self.A.weights.output_layout
        self.matrices: dict[str, tuple[Layout, tuple[int, int]]] = {
            "H": (H, (n, below)), "dH": (H, (n, below)), "S": (H, (n, above)),
            "T": (T, (m, below)), "dT": (T, (m, below)), "d_own": (T, (m, below)),
            "Y": (Z, (m, above)), "Z": (Z, (m, above)),
            "H_like_Z": (Z, (m, above)), "G_like_H": (H, (m, above)),  # of residual connections
        }  # fmt: skip


class Buffers:
    """The matrices of a layer in a forward pass, and in the backward pass after it.

    ``buffers.T`` is the matrix of this name. Its first use takes memory of the grid's workspace, to which the
    memory of matrices that are over by then returns before.

    Args:
        over: the matrices that are over, by the name of the matrix before which they are.
        kept: the matrices that are over in backward only.
    """

    def __init__(self, plan: Plan, over: Mapping[str, Names], kept: Names = ()) -> None:
        self.plan, self.over, self.kept = plan, over, kept
        self.live: dict[str, DistDense] = {}

    def __getattr__(self, name: str) -> DistDense:
        if name not in self.live:
            self._end(*self.over.get(name, ()))
            layout, shape = self.plan.matrices[name]
            memory = layout.grid.workspace.borrow(layout.local_shape(shape), self.plan.A.dtype)
            self.live[name] = DistDense(memory, layout, shape)
        return self.live[name]

    def hold(self, name: str, X: DistDense) -> DistDense:
        """Name a matrix that was made elsewhere, and return it. Its memory returns if the workspace lent it."""
        self.live[name] = X
        return X

    def beside(self, name: str, other: str) -> DistDense:
        """A new matrix of this name; the present one gets the other name."""
        self.live[other] = self.live.pop(name)
        return getattr(self, name)

    def close(self, result: str = "") -> None:
        """End all matrices but the result, whose memory is the caller's now, and those kept for backward."""
        self.live.pop(result, None)
        self._end(*self.live)

    def reopen(self, G: DistDense) -> None:
        """Begin backward with the gradient of Z: now matrices that were kept may end."""
        self.kept = ()
        self.hold("G", G)

    def drop(self) -> None:
        """End all matrices, also those kept for a backward that won't come."""
        self.kept = ()
        self.close()

    def _end(self, *names: str) -> None:
        for name in names:
            if name in self.live and name not in self.kept:
                X = self.live.pop(name)
                X.grid.workspace.give_back(X.block)


@contextmanager
def lent(X: DistDense) -> Iterator[DistDense]:
    """Return the memory of X to the workspace when the context ends."""
    try:
        yield X
    finally:
        X.grid.workspace.give_back(X.block)

"""Layers that a pass goes through again, in place of keeping what their backward pass needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from distgnn.nn.buffers import Buffers, LayerProducts
from distgnn.nn.layers import GraphConvolution
from distgnn.operators.dense import DistDense


class Passed(NamedTuple):
    """Layers that a forward pass went through without keeping what their backward pass needs.

    Attributes:
        plans: of a pass that keeps it; X: the input of the first, in memory that returns with this pass;
        before: buffers of the first in the pass that was.
    """

    layers: Sequence[GraphConvolution]
    plans: Sequence[LayerProducts]
    X: Any
    before: Buffers

    def again(self, network: Sequence[GraphConvolution]) -> list[Buffers]:
        """Go through these layers of a network again, to keep what backward needs. Collective."""
        layers, plans, X, before = self
        made = [Buffers(plan, before.epoch) for plan in plans]
        made[0].made, plans[0].dropped = before.made, before.plan.dropped
        for layer, buffers, after in zip(layers, made, made[1:], strict=False):
            following = network[layer.index + 1].activation
            X = layer.forward(buffers, X, partial(following.epilogue, after))
        layers[-1].again(made[-1], X)
        return made

    def drop(self) -> None:
        """Return the memory of the input."""
        if isinstance(self.X, DistDense):
            self.X.grid.workspace.give_back(self.X.block)

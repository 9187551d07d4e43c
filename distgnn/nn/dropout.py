"""Dropout whose masks are functions of (seed, epoch, layer, original node id, column), never stored."""

from __future__ import annotations

from typing import Any

from distgnn import rng
from distgnn.local import elementwise

Array = Any


class Dropout:
    """Dropout on this rank's block of the input of one layer.

    Args:
        rate: probability that an entry is dropped, in [0, 1); kept entries are scaled by 1 / (1 - rate).
        seed, layer: of the network and the layer.
        nodes: int64 original ids of the block's rows, on the block's device.
        cols: int64 global columns of the block, on the block's device.
    """

    def __init__(self, rate: float, seed: int, layer: int, nodes: Array, cols: Array) -> None:
        self.rate, self.seed, self.layer = rate, seed, layer
        self.scale = 1 / (1 - rate)
        self.nodes, self.cols = nodes, cols

    def mask(self, epoch: int) -> tuple[int, Array, Array, float]:
        """Return what `elementwise.activate` takes as the epoch's mask."""
        return rng.key(self.seed, rng.DROPOUT, epoch, self.layer), self.nodes, self.cols, 1 - self.rate

    def apply(self, block: Array, epoch: int, out: Array | None = None, relu: bool = False) -> Array:
        """Multiply `block`, or its positive part with `relu`, by the epoch's mask.

        The product goes into `out` (default: in place).

        Without `relu` it is its own adjoint: the backward pass applies it to the gradient.
        """
        out = block if out is None else out
        return elementwise.dropout(block, out, *self.mask(epoch), relu)

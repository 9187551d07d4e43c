"""Dropout whose masks are functions of (seed, epoch, layer, original node id, column), regenerated and never
stored.
"""

from __future__ import annotations

from typing import Any

from distgnn import backend, rng

Array = Any


class Dropout:
    """Dropout on the input of one layer, as this rank's block sees it.

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

    def apply(self, block: Array, epoch: int, out: Array | None = None) -> Array:
        """`block` times the epoch's mask, into `out` (default: in place; a new array must be passed in).

        Its own adjoint: the backward pass applies it to the gradient. Memory: a few cache-sized row blocks.
        """
        out = block if out is None else out
        if self.rate == 0:
            if out is not block:
                out[...] = block
            return out
        xp = backend.module(block)
        scale = block.dtype.type(self.scale)
        k = rng.key(self.seed, rng.DROPOUT, epoch, self.layer)
        factors: Array = None
        for part, keep in rng.keep_blocks(k, self.nodes, self.cols, 1 - self.rate, xp):
            factors = xp.empty(keep.shape, block.dtype) if factors is None else factors[: len(keep)]
            factors[...] = keep
            factors *= scale
            xp.multiply(block[part], factors, out=out[part])
        return out

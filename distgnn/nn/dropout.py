"""Dropout whose masks are functions of (seed, epoch, layer, original node id, column), regenerated and never
stored.
"""

from __future__ import annotations

from typing import Any

from distgnn import rng
from distgnn.arrays import backend
from distgnn.local import cuda, host
from distgnn.nn.dispatch import compiled, on_gpu

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

    def apply(self, block: Array, epoch: int, out: Array | None = None, relu: bool = False) -> Array:
        """`block`, or its positive part with `relu`, times the epoch's mask, into `out` (default: in place).

        Without `relu` its own adjoint: the backward pass applies it to the gradient. Memory: no array of the
            block's size.
        """
        out = block if out is None else out
        k = rng.key(self.seed, rng.DROPOUT, epoch, self.layer)
        if compiled(block):
            host.dropout(block, out, k, self.nodes, self.cols, 1 - self.rate, relu)
            return out
        if on_gpu(block):
            return cuda.activate(
                block, out, relu=relu, dropout=cuda.Dropout(self.rate, k, self.nodes, self.cols)
            )
        xp = backend.module(block)
        scale = block.dtype.type(self.scale)
        factors: Array = None
        for part, keep in rng.keep_blocks(k, self.nodes, self.cols, 1 - self.rate, xp):
            factors = xp.empty(keep.shape, block.dtype) if factors is None else factors[: len(keep)]
            factors[...] = keep
            factors *= scale
            if relu:
                xp.multiply(factors, block[part] > 0, out=factors)
            xp.multiply(block[part], factors, out=out[part])
        return out

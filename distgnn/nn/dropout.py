"""Dropout whose masks are functions of (seed, epoch, layer, original node id, column), never stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays.backend import Backend
from distgnn.local import elementwise

Array = Any


class DeviceEpoch:
    """An epoch whose keys are in the memory of a device, where work that is made again finds them.

    Args:
        on: the backend; seed: of the network; layers: how many it has.

    Attributes:
        keys: uint64 (layers, 2), of rows and of columns, as of the last :meth:`set`.
    """

    def __init__(self, on: Backend, seed: int, layers: int) -> None:
        self.seed, self.keys = seed, on.zeros((layers, 2), np.uint64)
        self._host = on.pinned((layers, 2), np.uint64)

    def set(self, epoch: int) -> None:
        """Queue a copy of an epoch's keys. The copy before it must be over."""
        for layer, pair in enumerate(self._host):
            k = rng.key(self.seed, rng.DROPOUT, epoch, layer)
            pair[...] = k, rng.key(k, 1)
        self.keys.set(self._host)


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

    def mask(self, epoch: int | DeviceEpoch) -> tuple[int | Array, Array, Array, float]:
        """Return what `elementwise.activate` takes as the epoch's mask."""
        if isinstance(epoch, DeviceEpoch):
            k: int | Array = epoch.keys[self.layer]
        else:
            k = rng.key(self.seed, rng.DROPOUT, epoch, self.layer)
        return k, self.nodes, self.cols, 1 - self.rate

    def apply(
        self, block: Array, epoch: int | DeviceEpoch, out: Array | None = None, relu: bool = False
    ) -> Array:
        """Multiply `block`, or its positive part with `relu`, by the epoch's mask.

        The product goes into `out` (default: in place).

        Without `relu` it is its own adjoint: the backward pass applies it to the gradient.
        """
        out = block if out is None else out
        return elementwise.dropout(block, out, *self.mask(epoch), relu)

"""Dropout whose masks are functions of (seed, epoch, layer, original node id, column), never stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger, rng
from distgnn.arrays.backend import Backend
from distgnn.local import edges, elementwise
from distgnn.operators.sparse_features import SparseFeatures

Array = Any


PURPOSES = rng.DROPOUT, rng.ATTENTION  # of the masks of a pass


class DeviceEpoch:
    """An epoch whose keys are in the memory of a device, where work that is made again finds them.

    Args:
        on: the backend; seed: of the network; layers: how many it has.

    Attributes:
        keys: uint64 (purposes, layers, 2), of rows and of columns, as of the last :meth:`set`.
    """

    def __init__(self, on: Backend, seed: int, layers: int) -> None:
        shape = len(PURPOSES), layers, 2
        self.seed, self.keys = seed, on.zeros(shape, np.uint64)
        self._host = on.pinned(shape, np.uint64)

    def set(self, epoch: int) -> None:
        """Queue a copy of an epoch's keys. The copy before it must be over."""
        for purpose, layers in zip(PURPOSES, self._host, strict=True):
            for layer, pair in enumerate(layers):
                k = rng.key(self.seed, purpose, epoch, layer)
                pair[...] = k, rng.key(k, 1)
        self.keys.set(self._host)


def mask_key(epoch: int | DeviceEpoch, seed: int, purpose: int, layer: int) -> int | Array:
    """Return the key of a mask, as `elementwise.dropout` takes it: a number, or those of rows and columns."""
    if isinstance(epoch, DeviceEpoch):
        return epoch.keys[PURPOSES.index(purpose), layer]
    return rng.key(seed, purpose, epoch, layer)


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
        k = mask_key(epoch, self.seed, rng.DROPOUT, self.layer)
        return k, self.nodes, self.cols, 1 - self.rate

    def of_entries(
        self, X: SparseFeatures, epoch: int, out: SparseFeatures | None = None
    ) -> SparseFeatures:  # fmt: skip
        """Return sparse features of which the epoch's mask has dropped some: dropped entries are 0.

        out: an earlier result for the same X, whose values are overwritten; default: a new one.
        """
        places = edges.transposition(X.block)
        if out is None or out.block.indices is not X.block.indices:
            out = X.like(X.block.with_values(X.grid.backend.empty((X.block.nnz,), X.dtype)))
            turned = X.transposed.with_values(X.grid.backend.empty((X.block.nnz,), X.dtype))
            out.block.cached["transposed"] = turned
            ledger.holds(out, "features", 2 * out.block.data.nbytes + places.nbytes)
        block = out.block
        elementwise.dropout_entries(X.block, X.row_numbers, block.data, *self.mask(epoch))
        edges.gathered(block.data[:, None], places, out.transposed.data[:, None])
        return out

    def apply(
        self, block: Array, epoch: int | DeviceEpoch, out: Array | None = None, relu: bool = False
    ) -> Array:
        """Multiply `block`, or its positive part with `relu`, by the epoch's mask.

        The product goes into `out` (default: in place).

        Without `relu` it is its own adjoint: the backward pass applies it to the gradient.
        """
        out = block if out is None else out
        return elementwise.dropout(block, out, *self.mask(epoch), relu)

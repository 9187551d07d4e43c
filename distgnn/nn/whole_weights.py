"""Weights and biases of a network as global arrays, which every rank has whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.arrays.canonical import check_real
from distgnn.nn.layers import GraphConvolution
from distgnn.operators.dense import DistDense, gather


class WholeWeights:
    """The part of a network that gives and takes weights and biases as global arrays.

    Attributes:
        grid: of the network; layers: whose weights they are.
    """

    grid: Any
    layers: list[GraphConvolution]

    def get_weights(self) -> list[np.ndarray]:
        """Gather the global weight matrices as NumPy arrays on every rank, one per layer. Collective."""
        return [collect(layer.W) for layer in self.layers]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Set the weights from global arrays, alike on all ranks; ValueError for wrong shapes. Collective."""
        self._assign("weights", [layer.W for layer in self.layers], 2, weights)

    def get_biases(self) -> list[np.ndarray]:
        """Gather the global biases, 1-D, on every rank, one per layer; none without bias. Collective."""
        return [collect(b)[0] for b in self._biases()]

    def set_biases(self, biases: Sequence[np.ndarray]) -> None:
        """Set the biases as :meth:`set_weights` sets weights. Collective."""
        self._assign("biases", self._biases(), 1, biases)

    def _assign(self, what: str, ours: list[DistDense], ndim: int, given: Sequence[np.ndarray]) -> None:
        with self.grid.world.together():
            given = [np.asarray(array) for array in given]
            for array in given:
                check_real(what, array.dtype)
            if (shapes := [array.shape for array in given]) != (wanted := [Y.shape[-ndim:] for Y in ours]):
                raise ValueError(f"{what} of shapes {shapes} for layers {wanted}")
        for Y, whole in zip(ours, given, strict=True):
            (top, bottom), (left, right) = Y.row_range, Y.col_range
            Y.block[...] = self.grid.backend.asarray(whole.reshape(Y.shape)[top:bottom, left:right])

    def _biases(self) -> list[DistDense]:
        return [layer.b for layer in self.layers if layer.b is not None]


def collect(Y: DistDense) -> np.ndarray:
    """Gather a global matrix as a NumPy array on every rank. Collective."""
    whole: Any = gather(Y)  # on rank 0
    return Y.grid.world.share(whole)

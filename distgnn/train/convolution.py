"""Layers of a network on the sampled block of one minibatch, forward and backward side by side.

They are the layers of ``gcn/layers.py`` and ``gcn/sage.py``, with the same weights, on this rank alone: H are
the rows of the block's input vertices, Z those of its output vertices. A block has many more columns than
rows, so aggregating first multiplies the smaller matrix by W.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.local.elementwise import keep_positive, positive_bits, relu
from distgnn.nn.dropout import Dropout
from distgnn.nn.layers import GraphConvolution
from distgnn.nn.sage import MeanConvolution
from distgnn.sampling.block import Block

Array = Any


class SampledConvolution:
    """``Z = A H W + b`` with the values that the sampler gave the block.

    Args:
        layer: whose weights these are.
    """

    def __init__(self, layer: GraphConvolution) -> None:
        self.layer, self.on, self.workspace = layer, layer.A.grid.backend, layer.A.grid.workspace
        self.dtype = layer.A.dtype
        self.kept: Any = None

    def forward(self, block: Block, H: Array, step: int) -> Array:
        """Z (len(block.rows), fan out), in memory borrowed from the grid's workspace.

        Args:
            H: (len(block.cols), fan in); features (layer 0) or the Z of the layer before. Overwritten and,
                once used, given back.
            step: number of the minibatch in the whole run, on which dropout's masks depend.
        """
        dropout = self._dropout(block, step)
        if dropout is not None:
            dropout.apply(H, step, relu=self.layer.index > 0)
        elif self.layer.index > 0:
            relu(H)
        bits = positive_bits(H) if self.layer.index > 0 else None
        A = to_device(block, self._values(block), self.on)
        T = local.spmm(A, H, self._borrow(len(block.rows), self.layer.shape[0]))
        H = self._needed(H)
        self.kept = A, H, T, bits
        Z = self._transform(H, T)
        if self.layer.b is not None:
            Z += self.layer.b.block
        return Z

    def backward(self, G: Array) -> tuple[Array, Array | None, Array | None]:
        """Gradients of W and b, and that of the Z of the layer before (None for layer 0), from that of Z,
        which is given back to the workspace, like what `forward` kept.
        """
        (A, H, T, bits), self.kept = self.kept, None
        db = None if self.layer.b is None else G.sum(axis=0, keepdims=True, dtype="float64").astype(G.dtype)
        dW = self._weights(H, T, G)
        dH = None
        if self.layer.index > 0:
            dH = self._input(A, G)
            keep_positive(dH, bits, self.layer.dropout.scale)
        for used in (T, G) if H is None else (H, T, G):
            self.workspace.give_back(used)
        return dW, db, dH

    def _dropout(self, block: Block, step: int) -> Dropout | None:
        layer = self.layer
        if layer.dropout.rate == 0:
            return None
        columns = self.on.xp.arange(layer.shape[0])
        return Dropout(
            layer.dropout.rate, layer.dropout.seed, layer.index, self.on.asarray(block.cols), columns
        )

    def _borrow(self, rows: int, columns: int) -> Array:
        return self.workspace.borrow((rows, columns), self.dtype)

    def _values(self, block: Block) -> np.ndarray:
        return block.data.astype(self.dtype, copy=False)

    def _needed(self, H: Array) -> Array | None:
        """What of the input is needed beside its aggregate; the rest is given back."""
        self.workspace.give_back(H)
        return None

    def _transform(self, H: Array, T: Array) -> Array:
        return local.gemm(T, self.layer.W.block, self._borrow(len(T), self.layer.shape[1]))

    def _weights(self, H: Array, T: Array, G: Array) -> Array:
        return local.gemm(T, G, trans_a=True)

    def _input(self, A: CSR, G: Array) -> Array:
        return self._through(A, G, self.layer.W.block)

    def _through(self, A: CSR, G: Array, W: Array) -> Array:
        """Aᵀ (G Wᵀ)."""
        rows, width = A.shape
        with self.workspace.lend((rows, self.layer.shape[0]), self.dtype) as dT:
            local.gemm(G, W, dT, trans_b=True)
            return local.spmm(A.transposed(self.on), dT, self._borrow(width, self.layer.shape[0]))


class SampledMean(SampledConvolution):
    """``Z = [H_own | mean of H over the sampled neighbours] W + b``. The rows of a block are the first of its columns."""

    layer: MeanConvolution

    def _values(self, block: Block) -> np.ndarray:
        counts = np.diff(block.indptr)
        return np.repeat(1 / np.maximum(counts, 1).astype(self.dtype), counts)

    def _needed(self, H: Array) -> Array:
        return H

    def _transform(self, H: Array, T: Array) -> Array:
        Z = local.gemm(H[: len(T)], self.layer.own.block, self._borrow(len(T), self.layer.shape[1]))
        return local.gemm(T, self.layer.neighbours.block, Z, accumulate=True)

    def _weights(self, H: Array, T: Array, G: Array) -> Array:
        dW = self.on.empty(self.layer.weight_shape, self.dtype)
        f = self.layer.shape[0]
        local.gemm(H[: len(T)], G, dW[:f], trans_a=True)
        local.gemm(T, G, dW[f:], trans_a=True)
        return dW

    def _input(self, A: CSR, G: Array) -> Array:
        dH = self._through(A, G, self.layer.neighbours.block)
        local.gemm(G, self.layer.own.block, dH[: len(G)], accumulate=True, trans_b=True)
        return dH


def sampled(layer: GraphConvolution) -> SampledConvolution:
    """The layer on sampled blocks."""
    return SampledMean(layer) if isinstance(layer, MeanConvolution) else SampledConvolution(layer)


def to_device(block: Block, values: np.ndarray, on: Any) -> CSR:
    """The block with these values, where products are made."""
    A = CSR.empty(block.shape, block.nnz, values.dtype, on)
    for source, target in ((values, A.data), (block.indices, A.indices), (block.indptr, A.indptr)):
        on.copy_in(np.ascontiguousarray(source, target.dtype), target)
    return A

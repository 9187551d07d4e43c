"""Layers of a network on the sampled block of one minibatch, forward and backward side by side.

They are the layers of ``gcn/layers.py`` and ``gcn/sage.py``, with the same weights, on this rank alone: H are the rows of the
block's input vertices, Z those of its output vertices. A block has many more columns than rows, so aggregating first multiplies
the smaller matrix by W.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import local
from distgnn.gcn.dropout import Dropout
from distgnn.gcn.layers import GraphConvolution
from distgnn.gcn.relu import keep_positive, positive_bits, relu
from distgnn.gcn.sage import MeanConvolution
from distgnn.matrix import CSR
from distgnn.sampling.block import Block

Array = Any


class SampledConvolution:
    """``Z = A H W + b`` with the values that the sampler gave the block.

    Args:
        layer: whose weights these are.
    """

    def __init__(self, layer: GraphConvolution) -> None:
        self.layer, self.on = layer, layer.A.grid.backend
        self.dtype = layer.A.dtype
        self.kept: Any = None

    def forward(self, block: Block, H: Array, step: int) -> Array:
        """Z (len(block.rows), fan out), new.

        Args:
            H: (len(block.cols), fan in); features (layer 0) or the Z of the layer before. Overwritten.
            step: number of the minibatch in the whole run, on which dropout's masks depend.
        """
        dropout = self._dropout(block, step)
        if dropout is not None:
            dropout.apply(H, step, relu=self.layer.index > 0)
        elif self.layer.index > 0:
            relu(H)
        bits = positive_bits(H) if self.layer.index > 0 else None
        A = self._matrix(block)
        T = local.spmm(A, H)
        own = H[: len(block.rows)]
        self.kept = A, own, T, bits
        Z = self._transform(own, T)
        if self.layer.b is not None:
            Z += self.layer.b.block
        return Z

    def backward(self, G: Array) -> tuple[Array, Array | None, Array | None]:
        """Gradients of W and b, and that of the Z of the layer before (None for layer 0), from that of Z."""
        (A, own, T, bits), self.kept = self.kept, None
        db = None if self.layer.b is None else G.sum(axis=0, keepdims=True, dtype="float64").astype(G.dtype)
        dW = self._weights(own, T, G)
        if self.layer.index == 0:
            return dW, db, None
        dH = self._input(A, G)
        keep_positive(dH, bits, self.layer.dropout.scale)
        return dW, db, dH

    def _dropout(self, block: Block, step: int) -> Dropout | None:
        layer = self.layer
        if layer.dropout.rate == 0:
            return None
        columns = self.on.xp.arange(layer.shape[0])
        return Dropout(layer.dropout.rate, layer.dropout.seed, layer.index, self.on.asarray(block.cols), columns)

    def _matrix(self, block: Block) -> CSR:
        return to_device(block, self._values(block), self.on)

    def _values(self, block: Block) -> np.ndarray:
        return block.data.astype(self.dtype, copy=False)

    def _transform(self, own: Array, T: Array) -> Array:
        return local.gemm(T, self.layer.W.block)

    def _weights(self, own: Array, T: Array, G: Array) -> Array:
        return local.gemm(T, G, trans_a=True)

    def _input(self, A: CSR, G: Array) -> Array:
        return local.spmm(A.transposed(self.on), local.gemm(G, self.layer.W.block, trans_b=True))


class SampledMean(SampledConvolution):
    """``Z = [H_own | mean of H over the sampled neighbours] W + b``. The rows of a block are the first of its columns."""

    layer: MeanConvolution

    def _values(self, block: Block) -> np.ndarray:
        counts = np.diff(block.indptr)
        return np.repeat(1 / np.maximum(counts, 1).astype(self.dtype), counts)

    def _transform(self, own: Array, T: Array) -> Array:
        Z = local.gemm(own, self.layer.own.block)
        return local.gemm(T, self.layer.neighbours.block, out=Z, accumulate=True)

    def _weights(self, own: Array, T: Array, G: Array) -> Array:
        dW = self.on.empty(self.layer.weight_shape, self.dtype)
        f = self.layer.shape[0]
        local.gemm(own, G, out=dW[:f], trans_a=True)
        local.gemm(T, G, out=dW[f:], trans_a=True)
        return dW

    def _input(self, A: CSR, G: Array) -> Array:
        dH = local.spmm(A.transposed(self.on), local.gemm(G, self.layer.neighbours.block, trans_b=True))
        dH[: len(G)] += local.gemm(G, self.layer.own.block, trans_b=True)
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

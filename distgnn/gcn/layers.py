"""One graph convolution, forward and backward side by side.

Z_l = (A H_{l-1}) W_l + b_l (Plexus section 2.1, equations 1 and 2; CAGNET section III-C). The layer also owns
what is done to its input, H_{l-1} = dropout(relu(Z_{l-1})), because that is the layout it happens in; layer 0
has dropout only.
"""

from __future__ import annotations

from typing import Any

from distgnn import backend, rng
from distgnn.gcn.dropout import Dropout
from distgnn.gcn.relu import keep_positive, positive_bits, relu
from distgnn.layout import Cut, Layout
from distgnn.matrix import DistDense, DistSparse

Array = Any


class GraphConvolution:
    """Layer `index` of a network.

    Args:
        A: the operator of this layer (`A.layer(index)`), with its dense products.
        index: from 0.
        shape: (fan in, fan out) of the layer.
        seed: of weights and masks; rate: of dropout; bias: whether there is one.
        nodes: original ids of the rows of this layer's input block, int64 on its device.

    Attributes:
        W: in `A.weight_layout`; b: the bias as a matrix of one row, cut as the columns of Z are, or None.
    """

    def __init__(
        self, A: DistSparse, index: int, shape: tuple[int, int], seed: int, rate: float, bias: bool,
        nodes: Array,
    ) -> None:  # fmt: skip
        self.A, self.index, self.shape = A, index, shape
        xp = A.grid.backend.xp
        (top, bottom), (left, right) = A.weight_layout.ranges(shape)
        rows, cols = xp.arange(top, bottom), xp.arange(left, right)
        self.W = DistDense(rng.glorot(seed, index, shape, rows, cols, A.dtype), A.weight_layout, shape)
        along_columns = Layout(A.grid, Cut(), A.next_layout.cols)
        local = along_columns.local_shape((1, shape[1]))
        self.b = DistDense(xp.zeros(local, A.dtype), along_columns, (1, shape[1])) if bias else None
        self.dropout = Dropout(rate, seed, index, nodes, xp.arange(*A.input_layout.col_range(shape[0])))
        self.T: DistDense | None = None
        self.bits: Array = None

    def forward(self, handed: list[DistDense], epoch: int | None, keep: bool) -> DistDense:
        """Z of this layer. Collective.

        Args:
            handed: takes one matrix out of this list, the features (layer 0, left alone) or the previous
                layer's Z (overwritten). Handed over so that its memory is free as soon as it has been used.
            epoch: the epoch whose dropout masks apply, or None for no dropout.
            keep: keep what `backward` needs: A H, and one bit per entry of H.
        """
        H = handed.pop()
        if epoch is not None and self.dropout.rate > 0:
            out = backend.module(H.block).empty_like(H.block) if self.index == 0 else H.block
            H = H.like(self.dropout.apply(H.block, epoch, out, relu=self.index > 0))
        elif self.index > 0:
            relu(H.block)
        self.bits = positive_bits(H.block) if keep and self.index > 0 else None
        T = self.A @ H
        del H
        Z = self.A.times(T, self.W)
        if self.b is not None:
            Z.block += self.b.block
        self.T = T if keep else None
        return Z

    def backward(
        self, handed: list[DistDense], epoch: int | None, need_input: bool = True
    ) -> tuple[Array, Array | None, DistDense | None]:
        """Gradients of this layer from that of its Z, which is taken out of `handed`. Collective.

        Frees what `forward` kept.

        Returns:
            blocks of dW (like W) and db (like b), and the gradient of the layer's input: for layer 0 that of
            the features, else that of the previous layer's Z. `need_input=False` leaves it out, which is
            exact for layer 0 because the product order is (A H) W: dW needs A H and G only (Plexus section
            2.1, equation 5).
        """
        if self.T is None:
            raise RuntimeError("backward without a forward(..., keep=True) before it")
        G = handed.pop()
        dW, dT = self.A.backward(self.T, G, self.W if need_input else None)
        self.T = None
        db = None if self.b is None else self._column_sums(G)
        if dT is None:
            return dW.block, db, None
        del G
        dH = self.A.T @ dT
        del dT
        if self.index > 0:
            keep_positive(dH.block, self.bits, 1.0 if epoch is None else self.dropout.scale)
            self.bits = None
        elif epoch is not None and self.dropout.rate > 0:
            self.dropout.apply(dH.block, epoch)
        return dW.block, db, dH

    def _column_sums(self, G: DistDense) -> Array:
        """Sums over all nodes of this rank's columns: over the axes that cut the rows, never over replicas."""
        sums = G.block.sum(axis=0, keepdims=True, dtype="float64").astype(G.dtype)
        return G.grid.along(*G.layout.row_axes).allreduce(sums)

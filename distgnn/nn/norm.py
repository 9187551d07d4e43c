"""Layer norm, forward and backward, of rows whose columns may be cut over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend, blocking
from distgnn.layout import Cut, Layout
from distgnn.local import elementwise
from distgnn.operators.dense import DistDense
from distgnn.operators.later import Later, MadeLater, block_of, summed_over

Array = Any
EPSILON = 1e-5


class LayerNorm:
    """Layer norm: gain (z - mean) / sqrt(variance + 1e-5) + shift, with mean and variance of each row.

    Ba, Kiros, Hinton: Layer normalization, arXiv 1607.06450, equation 4.

    Args:
        layout: of z; width: its columns.

    Attributes:
        gain, shift: matrices of one row, cut as the columns of z; ones and zeros at first.
    """

    def __init__(self, layout: Layout, width: int, dtype: Any) -> None:
        along_columns, xp = Layout(layout.grid, Cut(), layout.cols), layout.grid.backend.xp
        local = along_columns.local_shape((1, width))
        self.gain = DistDense(xp.ones(local, dtype), along_columns, (1, width))
        self.shift = DistDense(xp.zeros(local, dtype), along_columns, (1, width))

    def forward(self, Z: DistDense, out: DistDense) -> Array:
        """Compute gain N + shift, with N the normalised rows of Z; return what `normalize` does.

        N stays in place of Z, unless ``out`` is Z. Collective. Cost: as `normalize`, none of it where no axis
        cuts the columns.
        """
        if _in_one_pass(Z):
            keep, factors = None if out is Z else Z.block, (self.gain.block, self.shift.block, EPSILON)
            with _timed(Z, 6):
                return elementwise.layer_norm(Z.block, *factors, keep, out.block)
        scales = self.normalize(Z)
        self.apply(Z, out)
        return scales

    def normalize(self, Z: DistDense) -> Array:
        """Make rows of mean 0 and variance 1, in place; return 1 / sqrt(variance + 1e-5), float64 (rows, 1).

        Collective. Cost: two all-reduces of one word per local row over the axes that cut columns.
        """
        block, xp = Z.block, backend.module(Z.block)
        across, sums = Z.grid.along(*Z.layout.col_axes), xp.zeros((2, len(Z.block), 1), np.float64)
        parts = blocking.passes(block)
        with _timed(Z, 4):
            for rows in parts:
                sums[0, rows] = block[rows].sum(axis=1, keepdims=True, dtype=np.float64)
            means = across.allreduce(sums[0], matrix="norm") / Z.shape[1]
            for rows in parts:
                block[rows] -= means[rows]
                sums[1, rows] = (block[rows] ** 2).sum(axis=1, keepdims=True, dtype=np.float64)
            scales = 1 / xp.sqrt(across.allreduce(sums[1], matrix="norm") / Z.shape[1] + EPSILON)
            for rows in parts:
                block[rows] *= scales[rows]
        return scales

    def apply(self, Z: DistDense, out: DistDense) -> None:
        """Compute gain z + shift, of rows that are normalised; ``out`` may be Z."""
        with _timed(Z, 2):
            for rows in blocking.passes(Z.block):
                backend.module(Z.block).multiply(Z.block[rows], self.gain.block, out=out.block[rows])
                out.block[rows] += self.shift.block

    def backward(
        self, Z: DistDense, scales: Array, G: DistDense, later: Later | None = None
    ) -> tuple[Any, Any]:
        """Put the gradient of what was normalised in place of that of what ``apply`` gives. Collective.

        Returns those of gain and shift. Z and ``scales`` are what ``normalize`` left.

        Cost: an all-reduce of two words per local row over the axes that cut columns, one of two words per
        local column over those that cut rows.
        """
        if _in_one_pass(Z):
            with _timed(Z, 5):
                own = elementwise.layer_norm_backward(Z.block, scales, self.gain.block, G.block)
        else:
            own = self._backward_in_parts(Z, scales, G)
        sums = summed_over(later, Z.grid.along(*Z.layout.row_axes), own, lambda own: own.astype(G.dtype))
        gain, shift = MadeLater(lambda: block_of(sums)[:1]), MadeLater(lambda: block_of(sums)[1:])
        return (gain, shift) if later is not None else (gain.block, shift.block)

    def _backward_in_parts(self, Z: DistDense, scales: Array, G: DistDense) -> Array:
        """Do so by array operations, and return this rank's gradients of gain and shift. Collective."""
        xp, width = backend.module(G.block), Z.shape[1]
        own = xp.zeros((2, Z.block.shape[1]), np.float64)
        means = xp.zeros((2, len(Z.block), 1), np.float64)
        with _timed(Z, 5):
            for rows in blocking.passes(Z.block):
                z, g = Z.block[rows], G.block[rows]
                own[0] += elementwise.column_sums(z * g)[0]
                own[1] += elementwise.column_sums(g)[0]
                g *= self.gain.block
                means[0, rows] = g.sum(axis=1, keepdims=True, dtype=np.float64)
                means[1, rows] = (z * g).sum(axis=1, keepdims=True, dtype=np.float64)
            Z.grid.along(*Z.layout.col_axes).allreduce(means, matrix="norm")
            means /= width
            for rows in blocking.passes(Z.block):
                g = G.block[rows]
                g -= means[0, rows] + Z.block[rows] * means[1, rows]
                g *= scales[rows]
        return own


def _in_one_pass(Z: DistDense) -> bool:
    """Tell whether a kernel does these rows: one of a device, which no axis cuts."""
    return Z.grid.along(*Z.layout.col_axes).size == 1 and elementwise.has_layer_norm(Z.block)


def _timed(Z: DistDense, passes: int) -> Any:
    ledger.charge("activation", "layer norm", touched=passes * Z.block.nbytes)
    return ledger.timed("activation", "layer norm", on=Z.grid.backend)

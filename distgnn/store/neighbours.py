"""The neighbours of a stored graph, without their weights: what GraphSAGE samples from and averages over."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from distgnn.layout import Range
from distgnn.matrix import BlockSource


class Neighbours(BlockSource):
    """A block source of the off-diagonal non-zeros of another, all of them 1.

    Args:
        source: whose rows and columns are in one order; its weights, and the loops of its normalisation, do not matter.
        symmetric: promise that there is an edge (j, i) for every (i, j).
    """

    def __init__(self, source: BlockSource, symmetric: bool) -> None:
        self.source, self.symmetric = source, symmetric
        self.shape, self.dtype = source.shape, np.dtype(source.dtype)

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        block = self.source.block(rows, cols)
        owners = np.repeat(np.arange(rows[0], rows[1]), np.diff(block.indptr))
        kept = (block.data != 0) & (owners != block.indices.astype(np.int64) + cols[0])
        ends = np.concatenate(([0], np.cumsum(kept)))[block.indptr].astype(block.indptr.dtype)
        indices = block.indices[kept]
        return sp.csr_array((np.ones(indices.size, self.dtype), indices, ends), shape=block.shape)

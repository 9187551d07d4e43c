"""The neighbours of a stored graph, without weights: GraphSAGE samples them and takes their mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.layout import Range
from distgnn.operators.sources import BlockSource

ROWS = 1 << 16  # rows that are filtered together


def neighbours_of(source: BlockSource, manifest: Mapping[str, Any]) -> BlockSource:
    """Return the neighbours of a graph that every rank can read, or that one rank holds and sends.

    The manifest is that of the graph's store.
    """
    facts = not manifest["directed"], round(manifest["degrees"]["mean"] * manifest["n"])
    own = getattr(source, "neighbours", None)
    return Neighbours(source, *facts) if own is None else own(*facts)


class Neighbours(BlockSource):
    """The stored entries of another block source off the diagonal, zeros among them, all replaced by 1.

    Rows and columns of that source are in one order. `symmetric` promises an edge (j, i) for every (i, j);
    nnz: the number of these entries, where it is known.
    """

    def __init__(self, source: BlockSource, symmetric: bool, nnz: int | None = None) -> None:
        self.source, self.symmetric, self.nnz = source, symmetric, nnz
        self.shape, self.dtype = source.shape, np.dtype(source.dtype)
        if hasattr(source, "splits"):
            self.splits = source.splits
        self.row_order = getattr(source, "row_order", None)
        self.col_order = getattr(source, "col_order", None)

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        block = self.source.block(rows, cols)
        kept, counts = np.empty(block.nnz, bool), np.diff(block.indptr)
        for top in range(0, len(counts), ROWS):
            entries = slice(block.indptr[top], block.indptr[min(top + ROWS, len(counts))])
            diagonal = np.arange(len(counts[top : top + ROWS])) + (top + rows[0] - cols[0])
            kept[entries] = block.indices[entries] != np.repeat(diagonal, counts[top : top + ROWS])
        before = np.zeros(kept.size + 1, block.indptr.dtype)
        np.cumsum(kept, out=before[1:])
        indices = block.indices[kept]
        parts = np.ones(indices.size, self.dtype), indices, before[block.indptr]
        return sp.csr_array(parts, shape=block.shape)

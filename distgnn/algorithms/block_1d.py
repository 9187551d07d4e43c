"""1D block-row product (CAGNET section IV-A, Algorithm 1)."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from distgnn import local
from distgnn.algorithms.dense import ReplicatedWeights
from distgnn.algorithms.panels import dense_panels
from distgnn.grid import Grid
from distgnn.layout import Cut, Layout, as_partition, block
from distgnn.matrix import CSR, BlockSource, DistDense, DistSparse


class Block1D(DistSparse):
    """``A`` and ``H`` in block rows over the axis ``rows``; the blocks of ``H`` are broadcast one after another.

    Rank ``i`` of ``P`` holds row block ``A_i`` (about n/P x n, cut into the column blocks ``A_ij``) and ``H_i`` (n/P x f). A
    directed graph's Aᵀ is held in block rows too (Table II); a symmetric one is its own adjoint.

    Cost per product and rank: n f (P-1)/P words received in P - 1 broadcasts (all of ``H`` but the own block).

    Args:
        grid: has the axis ``rows``.
        source: gives the blocks of A.
        row_parts, col_parts: partition vectors of A's rows and columns into P blocks; default even.
    """

    name = "1d"
    axes = ("rows",)

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: np.ndarray | None = None, col_parts: np.ndarray | None = None
    ) -> None:
        self._place(grid, source)
        parts = grid.shape["rows"]
        self.row_parts = as_partition(row_parts, self.shape[0], parts)
        self.col_parts = as_partition(col_parts, self.shape[1], parts)
        self.output_layout = Layout(grid, Cut(("rows",), self.row_parts), Cut())
        self.input_layout = Layout(grid, Cut(("rows",), self.col_parts), Cut())
        self.dense = ReplicatedWeights(self.output_layout)
        self.group = grid.along("rows")
        rows = self.output_layout.row_range
        self.A = self._load(lambda: [source.block(rows, block(self.col_parts, j)) for j in range(parts)])

    @cached_property
    def At(self) -> list[CSR]:
        """The blocks of this rank's block row of Aᵀ."""
        cols = self.input_layout.row_range
        stages = range(self.group.size)
        return self._load(lambda: [self.source.block(block(self.row_parts, j), cols).T for j in stages])

    def multiply(self, H: DistDense) -> DistDense:
        return self._block_row(self.A, H, self.output_layout, self.shape[0])

    def multiply_adjoint(self, G: DistDense) -> DistDense:
        return self._block_row(self.At, G, self.input_layout, self.shape[1])

    def _block_row(self, blocks: list[CSR], H: DistDense, layout: Layout, height: int) -> DistDense:
        T = self._zeros(layout, (height, H.shape[1]))
        parts = H.layout.rows.vector(self.grid, H.shape[0])
        stages = [(j, (0, int(parts[j + 1] - parts[j]))) for j in range(self.group.size)]
        for A_ij, H_j in zip(blocks, dense_panels(self.group, H.block, stages), strict=True):  # Alg. 1, lines 3-4
            local.spmm(A_ij, H_j, out=T.block, accumulate=True)  # line 5
        return T

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        return [{"rows": ranks}]

"""2D SUMMA product on any pr x pc grid (CAGNET section IV-C, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from distgnn import local
from distgnn.comm.grid import Grid
from distgnn.comm.panels import SparsePanels, broadcast
from distgnn.layout import Cut, Layout, as_partition, owner, refine
from distgnn.operators.dense import DistDense
from distgnn.operators.loading import load
from distgnn.operators.operator import DistSparse
from distgnn.operators.sources import BlockSource
from distgnn.operators.weights import ReplicatedWeights


class Summa2D(DistSparse):
    """``A`` and ``H`` in 2D blocks: process (i, j) holds A_ij (n/pr x n/pc) and H_ij (n/pr x f/pc).

    The columns of A are cut over ``cols`` and the rows of H over ``rows``: two partitions of the same range,
    which differ on a rectangular grid. The stages are the blocks of their common refinement, so that each
    stage has one owner on either side.

    Aᵀ is not distributed a second time (Table II). Its product runs the stages backwards: the transposed
    panel of A travels along the row as before, the panel of the result is summed up the column instead of a
    panel of ``H`` being sent down. For that a rank keeps its own panels transposed too, from the first such
    product on (a symmetric matrix never needs them).

    Cost per product and rank: the row's panels of A but the own ones, about nnz/pr non-zeros (an index and a
    value each, and the row pointers), and n f/pc words of ``H``, less the own block.

    Args:
        grid: has the axes ``rows`` (pr) and ``cols`` (pc).
        source: gives the blocks of A.
        row_parts, col_parts: partitions of the rows of the product and of the rows of ``H`` into pr blocks;
            default even.
        inner_parts: partition of A's columns into pc blocks; default even, equal to ``col_parts`` on a square
            grid.
    """

    name = "2d"
    axes = ("rows", "cols")

    def __init__(
        self,
        grid: Grid,
        source: BlockSource,
        row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None,
        inner_parts: np.ndarray | None = None,
    ) -> None:
        super().__init__(grid, source)
        pr, pc = grid.shape["rows"], grid.shape["cols"]
        row_parts = as_partition(row_parts, self.shape[0], pr)
        col_parts = as_partition(col_parts, self.shape[1], pr)
        inner_parts = as_partition(
            col_parts if inner_parts is None and pr == pc else inner_parts, self.shape[1], pc
        )
        self.output_layout = Layout(grid, Cut(("rows",), row_parts), Cut(("cols",)))
        self.input_layout = Layout(grid, Cut(("rows",), col_parts), Cut(("cols",)))
        self.weights = ReplicatedWeights(self.output_layout)
        self.row, self.column = grid.along("cols"), grid.along("rows")

        stages = refine(inner_parts, col_parts)
        self.A_roots = [owner(inner_parts, first) for first, _ in stages]  # Alg. 3, line 4
        self.H_stages = []  # (process row that owns the panel, its local rows): lines 5-8
        for first, last in stages:
            r = owner(col_parts, first)
            self.H_stages.append((r, (first - int(col_parts[r]), last - int(col_parts[r]))))
        mine = [k for k, root in enumerate(self.A_roots) if root == self.row.rank]
        rows = self.output_layout.row_range
        blocks = load(grid, self.source, [(rows, stages[k]) for k in mine])
        self.A = SparsePanels(grid, self.row, self.A_roots, dict(zip(mine, blocks, strict=True)))

    @cached_property
    def At(self) -> SparsePanels:
        """The panels of A, each transposed where it is."""
        mine = {k: panel.transposed(self.grid.backend) for k, panel in self.A.mine.items()}
        return SparsePanels(self.grid, self.row, self.A_roots, mine)

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        T = self._result(self.output_layout, (self.shape[0], H.shape[1]), out)
        T.block[...] = 0
        A_panels = self.A.broadcast()  # along the process row: Alg. 3, line 9
        H_panels = self._broadcast(H)  # along the process column: line 10
        for A_k, H_k in zip(A_panels, H_panels, strict=True):
            local.spmm(A_k, H_k, out=T.block, accumulate=True)  # line 11
        return T

    def _broadcast(self, H: DistDense) -> Iterator[Any]:
        """The rows of ``H`` of each stage."""
        roots, rows = [root for root, _ in self.H_stages], [slice(*rows) for _, rows in self.H_stages]
        shapes = [(part.stop - part.start, H.block.shape[1]) for part in rows]
        return broadcast(self.grid, self.column, roots, lambda stage: H.block[rows[stage]], shapes, H.dtype)

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        B = self._result(self.input_layout, (self.shape[1], G.shape[1]), out)
        for At_k, (r, (top, bottom)) in zip(self.At.broadcast(), self.H_stages, strict=True):
            own = B.block[top:bottom] if r == self.column.rank else None
            self.column.reduce(local.spmm(At_k, G.block, out=own), root=r)
        return B

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """Every pr x pc = P, the squarest first."""
        shapes = [(pr, ranks // pr) for pr in range(1, ranks + 1) if ranks % pr == 0]
        return [{"rows": pr, "cols": pc} for pr, pc in sorted(shapes, key=lambda s: (sum(s), s[0]))]

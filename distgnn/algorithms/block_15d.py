"""1.5D block-row product with c copies (CAGNET section IV-B, Algorithm 2)."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from distgnn import local
from distgnn.algorithms.dense import ReplicatedWeights
from distgnn.algorithms.panels import dense_panels
from distgnn.grid import Grid
from distgnn.layout import Cut, Layout, as_partition, block
from distgnn.matrix import CSR, BlockSource, DistDense, DistSparse


class Block15D(DistSparse):
    """``A`` and ``H`` in P/c block rows over the axis ``rows``, each held by the c ranks of a process row (axis ``reps``).

    Process column ``j`` adds up its share of the stages, s = ⌈(P/c)/c⌉ of the P/c column blocks (the last columns take what
    remains, perhaps nothing), and an all-reduce over the process row completes the sum. Rank (i, j) therefore needs only the
    column blocks of its own stages, not all of the block row.

    Cost per product and rank: its stages' blocks of ``H``, n f c/P words each, but for one it owns; then an all-reduce of n f c/P
    words over c ranks.

    Args:
        grid: has the axes ``rows`` (P/c) and ``reps`` (c).
        source, row_parts, col_parts: as for 1D, with P/c blocks.
    """

    name = "1.5d"
    axes = ("rows", "reps")

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
        self.column, self.row = grid.along("rows"), grid.along("reps")
        s = -(-parts // grid.shape["reps"])
        first = min(grid.coords["reps"] * s, parts)
        self.stages = range(first, min(first + s, parts))  # Alg. 2, lines 3-5
        rows = self.output_layout.row_range
        self.A = self._load(lambda: [source.block(rows, block(self.col_parts, q)) for q in self.stages])

    @cached_property
    def At(self) -> list[CSR]:
        """This rank's stages of its block row of Aᵀ."""
        cols = self.input_layout.row_range
        return self._load(lambda: [self.source.block(block(self.row_parts, q), cols).T for q in self.stages])

    def multiply(self, H: DistDense) -> DistDense:
        return self._block_row(self.A, H, self.output_layout, self.shape[0])

    def multiply_adjoint(self, G: DistDense) -> DistDense:
        return self._block_row(self.At, G, self.input_layout, self.shape[1])

    def _block_row(self, blocks: list[CSR], H: DistDense, layout: Layout, height: int) -> DistDense:
        Z = self._zeros(layout, (height, H.shape[1]))
        parts = H.layout.rows.vector(self.grid, H.shape[0])
        stages = [(q, (0, int(parts[q + 1] - parts[q]))) for q in self.stages]
        for A_iq, H_q in zip(blocks, dense_panels(self.column, H.block, stages), strict=True):  # Alg. 2, line 6
            local.spmm(A_iq, H_q, out=Z.block, accumulate=True)  # line 7
        return Z.like(self.row.allreduce(Z.block))  # line 8

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """Every c that divides P, the memory-light ones that still pay first: c² ≤ P from the largest down, then the rest."""
        divisors = [c for c in range(1, ranks + 1) if ranks % c == 0]
        light = [c for c in divisors if c * c <= ranks]
        heavy = [c for c in divisors if c * c > ranks]
        return [{"rows": ranks // c, "reps": c} for c in [*reversed(light), *heavy]]

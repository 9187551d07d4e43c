"""Split-3D product (CAGNET section IV-D, after the Split-3D-SpGEMM of Azad et al.)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from distgnn import local
from distgnn.comm.grid import Grid
from distgnn.comm.panels import SparsePanels, broadcast
from distgnn.layout import Cut, Layout, as_partition, block
from distgnn.operators.dense import DistDense
from distgnn.operators.loading import load
from distgnn.operators.operator import DistSparse
from distgnn.operators.sources import BlockSource
from distgnn.operators.weights import ReplicatedWeights


class Split3D(DistSparse):
    """Independent 2D products in each of l layers of q x q processes, then a reduce-scatter across the
    layers.

    Rows and columns of A are each cut into q·l pieces, piece (i, k) within block i. Process (i, j, k) holds
    rows i (all of their l pieces) and column piece (j, k) of A, n/q x n/(q l), and of ``H`` row piece (i, k)
    and column block j, n/(q l) x f/q. Layer k thus multiplies the columns (·, k) of A with the rows (·, k) of
    ``H``, and the sum over the *fiber* (i, j, ·), scattered back in row pieces, is laid out as ``H`` was.

    Aᵀ is not distributed a second time (Table II): its product gathers ``G`` along the fiber, sends the
    transposed panels of A along the row and sums the panels of the result up the column. A rank keeps its own
    panel transposed too, from the first such product on (a symmetric matrix never needs it).

    Cost per product and rank: (q-1)/q of nnz/(q·l) non-zeros per row of panels and n f/(q l) words of ``H``,
    then (l-1)/l of n f/q² words in the reduce-scatter.

    Args:
        grid: has the axes ``rows`` (q), ``cols`` (q) and ``fibers`` (l).
        source: gives the blocks of A.
        row_parts, col_parts: partitions of A's rows and columns into q·l pieces; default even.
    """

    name = "3d-split"
    axes = ("rows", "cols", "fibers")

    def __init__(
        self,
        grid: Grid,
        source: BlockSource,
        row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None,
    ) -> None:
        super().__init__(grid, source)
        q, layers = grid.shape["rows"], grid.shape["fibers"]
        row_parts = as_partition(row_parts, self.shape[0], q * layers)
        col_parts = as_partition(col_parts, self.shape[1], q * layers)
        self.output_layout = Layout(grid, Cut(("rows", "fibers"), row_parts), Cut(("cols",)))
        self.input_layout = Layout(grid, Cut(("rows", "fibers"), col_parts), Cut(("cols",)))
        self.weights = ReplicatedWeights(self.output_layout)
        self.row, self.column, self.fiber = grid.along("cols"), grid.along("rows"), grid.along("fibers")

        i, j, k = grid.coords["rows"], grid.coords["cols"], grid.coords["fibers"]
        self.pieces = row_parts[i * layers : (i + 1) * layers + 1]  # the row pieces of block i, one per layer
        # of this layer's pieces of H
        self.heights = [int(np.diff(col_parts)[s * layers + k]) for s in range(q)]
        rows = (int(self.pieces[0]), int(self.pieces[-1]))
        mine = load(grid, self.source, [(rows, block(col_parts, j * layers + k))])
        self.A = SparsePanels(grid, self.row, range(q), {j: mine[0]})

    @cached_property
    def At(self) -> SparsePanels:
        """The panels of A, each transposed where it is."""
        mine = {s: panel.transposed(self.grid.backend) for s, panel in self.A.mine.items()}
        return SparsePanels(self.grid, self.row, range(self.row.size), mine)

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        T = self._result(self.output_layout, (self.shape[0], H.shape[1]), out)
        partial = self._whole(H.block.shape[1])
        roots, shapes = range(len(self.heights)), [(height, H.block.shape[1]) for height in self.heights]
        H_panels = broadcast(self.grid, self.column, roots, lambda stage: H.block, shapes, H.dtype)
        A_panels = self.A.broadcast()  # 2D SUMMA in layer k
        for stage, (A_s, H_s) in enumerate(zip(A_panels, H_panels, strict=True)):
            local.spmm(A_s, H_s, out=partial, accumulate=stage > 0)
        self.fiber.reduce_scatter_rows(partial, self.pieces - self.pieces[0], out=T.block)
        return T

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        whole = self.fiber.allgather_rows(
            G.block, self.pieces - self.pieces[0], out=self._whole(G.block.shape[1])
        )
        B = self._result(self.input_layout, (self.shape[1], G.shape[1]), out)
        for s, At_s in enumerate(self.At.broadcast()):
            self.column.reduce(
                local.spmm(At_s, whole, out=B.block if s == self.column.rank else None), root=s
            )
        return B

    def _whole(self, width: int) -> Any:
        """Room for all row pieces of this rank's block of the product."""
        return self.grid.workspace.take(
            "whole rows", (int(self.pieces[-1] - self.pieces[0]), width), self.dtype
        )

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """Every q² l = P, the most cubic first."""
        sides = [q for q in range(1, ranks + 1) if ranks % (q * q) == 0]
        best = sorted(sides, key=lambda q: (2 * q + ranks // (q * q), q))
        return [{"rows": q, "cols": q, "fibers": ranks // (q * q)} for q in best]

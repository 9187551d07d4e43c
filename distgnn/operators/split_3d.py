"""Split-3D product (CAGNET section IV-D, after the Split-3D-SpGEMM of Azad et al.)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.layout import Cut, Layout, as_partition, block, within
from distgnn.operators.moves import Moves, Room
from distgnn.operators.operator import DistSparse
from distgnn.operators.prices import Price, gathered, reduced
from distgnn.operators.sources import BlockSource
from distgnn.operators.summa_2d import Panel, PlaneMoves, Summa
from distgnn.operators.summed import SUM, Sum
from distgnn.operators.weights import ReplicatedWeights


class Split3D(DistSparse):
    """2D products in each of l layers of q x q processes, then a reduce-scatter across the layers.

        layer 0    A(:, 0) H_0 ─┐                  ┌→ T_0
        layer 1    A(:, 1) H_1 ─┤  reduce-scatter  ├→ T_1      q = 1; for larger q
        layer 2    A(:, 2) H_2 ─┤  over the fiber  ├→ T_2      each product is SUMMA
        layer 3    A(:, 3) H_3 ─┘                  └→ T_3

    Rows and columns of A are each cut into q·l blocks, (i, k) within block i of q. Process (i, j, k) holds
    all rows of i and the columns (j, k) of A, n/q x n/(q l), and of ``H`` the rows (i, k) and column block j,
    n/(q l) x f/q. Layer k multiplies the columns (·, k) of A with the rows (·, k) of ``H``. The sum over the
    *fiber* (i, j, ·) is scattered back, so that it is laid out as ``H`` was.

    Aᵀ is not distributed a second time (Table II): its product gathers ``G`` along the fiber, and goes on as
    that of ``2d``.

    Cost per product and rank: (q-1)/q of nnz/(q·l) non-zeros per row of panels and n f/(q l) words of ``H``,
    then (l-1)/l of n f/q² words in the reduce-scatter.

    Args:
        row_parts, col_parts: partitions of A's rows and columns into q·l blocks; default even.
        block_size: columns of a panel of A at most, as of ``2d``.
    """

    name = "3d-split"
    axes = ("rows", "cols", "fibers")

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None, block_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(grid, source)
        q, layers = grid.shape["rows"], grid.shape["fibers"]
        row_parts = as_partition(row_parts, self.shape[0], q * layers)
        col_parts = as_partition(col_parts, self.shape[1], q * layers)
        self.output_layout = Layout(grid, Cut(("rows", "fibers"), row_parts, self.row_order), Cut(("cols",)))
        self.input_layout = Layout(grid, Cut(("rows", "fibers"), col_parts, self.col_order), Cut(("cols",)))
        self.weights = ReplicatedWeights(self.output_layout)
        i, k = grid.coords["rows"], grid.coords["fibers"]
        self.fiber, self.shares = grid.along("fibers"), within(row_parts, i, layers)
        stages = [Panel(block(col_parts, s * layers + k), s, s, 0) for s in range(q)]
        self.plane = Summa(grid, source, block(row_parts[::layers], i), stages, block_size)

    def _moves(self) -> Moves:
        grid, (rows, cols) = self.grid, (self.output_layout.rows, self.input_layout.rows)
        blocks = rows.vector(grid, self.shape[0])[:: self.fiber.size]
        layout = Layout(grid, Cut(("rows",), blocks, self.row_order), Cut())
        return FiberMoves(self, layout, ("cols", "fibers"), cols.vector(grid, self.shape[1]))

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """List every q² l = P, by the words received in a product: (2 (q-1) + l-1)/P w.

        That is where the non-zeros of A (index and value) have w words, as many as ``H``. On other graphs,
        another shape may be the best.
        """
        sides = [q for q in range(1, ranks + 1) if ranks % (q * q) == 0]
        best = sorted(sides, key=lambda q: (2 * q + ranks // (q * q), q))
        return [{"rows": q, "cols": q, "fibers": ranks // (q * q)} for q in best]


class FiberMoves(PlaneMoves):
    """Moves of a layer of Split-3D: rows are gathered, or summed and scattered, along the fiber."""

    def __init__(
        self, A: Split3D, row_layout: Layout[Any], axes: tuple[str, ...], columns: Any
    ) -> None:  # fmt: skip
        super().__init__(A, row_layout, axes, columns)
        self.fiber, self.shares = A.fiber, A.shares

    @contextmanager
    def rows_read(self, U: Any) -> Iterator[Any]:
        with self._whole(U.shape[1]) as rows:
            yield self.A.fiber.allgather_rows(U, self.shares, rows, "G", narrow=True)

    @contextmanager
    def rows_written(self, T: Any, by: Sum = SUM, begun: bool = False) -> Iterator[Room]:
        with self._whole(T.shape[1]) as rows:
            by.begin(rows)
            yield Room(self.grid, rows)
            if not self.sizes:
                by.nothing(rows)
            by.scatter(self.A.fiber, rows, self.shares, T)
        by.end()

    @contextmanager
    def _whole(self, width: int) -> Iterator[Any]:
        """Lend room for the rows of the layer's block."""
        with self.grid.workspace.rooms() as take:
            yield take("whole rows", (int(self.shares[-1]), width), self.dtype)

    def rows_price(self, width: int, written: bool = False) -> Price:
        if written:
            return reduced(self.A.fiber, "sums", int(self.shares[-1]) * width, scattered=True)
        return gathered(self.A.fiber, "G", np.diff(self.shares).tolist(), width)

"""Split-3D product (CAGNET section IV-D, after the Split-3D-SpGEMM of Azad et al.)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.panels import broadcast
from distgnn.layout import Cut, Layout, as_partition, block, owner, partition, refine, within
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.moves import Moves, Room
from distgnn.operators.prices import Price, gathered, reduced, whole
from distgnn.operators.sources import BlockSource
from distgnn.operators.summa_2d import Panel, PlaneMoves, Summa
from distgnn.operators.summed import SUM, Sum
from distgnn.operators.weights import ReplicatedWeights


class Split3D(Algorithm):
    """2D products in each of l layers of pr x pc processes, then a reduce-scatter across the layers.

        layer 0    A(:, 0) H_0 ─┐                  ┌→ T_0
        layer 1    A(:, 1) H_1 ─┤  reduce-scatter  ├→ T_1      1 x 1; in larger layers
        layer 2    A(:, 2) H_2 ─┤  over the fiber  ├→ T_2      each product is SUMMA
        layer 3    A(:, 3) H_3 ─┘                  └→ T_3

    Rows and columns of A are each cut into pr·l blocks, (i, k) within block i of pr. Layer k multiplies the
    columns (·, k) of A with the rows (·, k) of ``H``. Process (i, j, k) holds of ``H`` the rows (i, k) and
    column block j, n/(pr l) x f/pc, and of A all rows of i and share j of the layer's columns, n/pr x
    n/(pc l): block (j, k) where pr = pc, as in the paper, else an even share, perhaps of several blocks. The
    sum over the *fiber* (i, j, ·) is scattered back, so that it is laid out as ``H`` was.

    Aᵀ is not distributed a second time (Table II): its product gathers ``G`` along the fiber, and goes on as
    that of ``2d``.

    Cost per product and rank: (pc-1)/pc of nnz/(pr l) non-zeros in panels of A and (pr-1)/pr of n f/(pc l)
    words of ``H``, then (l-1)/l of n f/(pr pc) words in the reduce-scatter.

    Args:
        row_parts, col_parts: partitions of A's rows and columns into pr·l blocks; default even.
        block_size: columns of a panel of A at most, as of ``2d``.
    """

    name = "3d-split"
    axes = ("rows", "cols", "fibers")

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None, block_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(grid, source)
        pr, layers = grid.shape["rows"], grid.shape["fibers"]
        row_parts = self.cut("rows", as_partition(row_parts, self.shape[0], pr * layers))
        self.col_parts = col_parts = self.cut("columns", as_partition(col_parts, self.shape[1], pr * layers))
        self.output_layout = Layout(grid, Cut(("rows", "fibers"), row_parts, self.row_order), Cut(("cols",)))
        self.input_layout = Layout(grid, Cut(("rows", "fibers"), col_parts, self.col_order), Cut(("cols",)))
        self.weights = ReplicatedWeights(self.output_layout)
        i, k = grid.coords["rows"], grid.coords["fibers"]
        self.fiber, self.shares = grid.along("fibers"), within(row_parts, i, layers)
        inner = self.cut("inner", layer_shares(grid.shape, col_parts, k))
        stages = layer_stages(grid.shape, col_parts, k, inner)
        self.plane = Summa(grid, source, block(row_parts[::layers], i), stages, block_size)

    def _moves(self) -> Moves:
        blocks = self.output_layout.rows.vector(self.grid, self.shape[0])[:: self.fiber.size]
        layout = Layout(self.grid, Cut(("rows",), blocks, self.row_order), Cut())
        return FiberMoves(self, layout, ("cols", "fibers"), self.col_parts)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """List every pr x pc x l = P, by the words received in a product: (pr + pc + l - 3)/P w.

        That is where the non-zeros of A (index and value) have w words, as many as ``H``. On other graphs,
        another shape may be the best. Of equals, first come square layers, then few columns, of which the
        products with weights send less.
        """
        sides = [side for side in range(1, ranks + 1) if ranks % side == 0]
        shapes = [(pr, pc, ranks // pr // pc) for pr in sides for pc in sides if ranks // pr % pc == 0]
        shapes.sort(key=lambda shape: (sum(shape), abs(shape[0] - shape[1]), shape[1]))
        return [{"rows": pr, "cols": pc, "fibers": layers} for pr, pc, layers in shapes]


def layer_shares(sizes: Mapping[str, int], col_parts: np.ndarray, layer: int) -> np.ndarray:
    """Return where the shares of a layer's columns of A over ``cols`` begin, and where the last one ends.

    They are even, of the layer's blocks one after another; where pr = pc, these blocks.
    """
    starts, of_H = _blocks(sizes, col_parts, layer)
    pc = sizes["cols"]
    even = of_H if sizes["rows"] == pc else partition(int(of_H[-1]), pc)
    r = np.clip(np.searchsorted(of_H, even, side="right") - 1, 0, len(starts) - 1)
    return starts[r] + even - of_H[r]


def layer_stages(
    sizes: Mapping[str, int], col_parts: np.ndarray, layer: int, shares: np.ndarray | None = None
) -> list[Panel]:  # fmt: skip
    """Return the stages of a layer, from the sizes of the grid and the vector of ``H`` over rows and fibers.

    The layer's columns of A, one block after another, are cut over ``cols`` as well as in blocks; ``shares``:
    as of :func:`layer_shares`, which is the default.
    """
    starts, of_H = _blocks(sizes, col_parts, layer)
    shares = layer_shares(sizes, col_parts, layer) if shares is None else shares
    blocks = np.clip(np.searchsorted(starts, shares, side="right") - 1, 0, len(starts) - 1)
    of_A, stages = of_H[blocks] + np.minimum(shares - starts[blocks], np.diff(of_H)[blocks]), []
    for first, last in refine(of_A, of_H):
        r = owner(of_H, first)
        top = first - int(of_H[r])
        columns = int(starts[r]) + top, int(starts[r]) + top + last - first
        stages.append(Panel(columns, owner(of_A, first), r, top))
    return stages


def _blocks(sizes: Mapping[str, int], col_parts: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the blocks of a layer begin among all columns, and among the layer's own."""
    layers = sizes["fibers"]
    own = np.cumsum(np.diff(col_parts)[layer::layers])
    return col_parts[layer:-1:layers], np.concatenate([[0], own])


class FiberMoves(PlaneMoves):
    """Moves of a layer of Split-3D: rows are gathered, or summed and scattered, along the fiber."""

    fiber: Comm

    def __init__(
        self, A: Split3D, row_layout: Layout[Any], axes: tuple[str, ...], columns: Any
    ) -> None:  # fmt: skip
        super().__init__(A, row_layout, axes, columns)
        self.fiber, self.shares = A.fiber, A.shares
        self.square = A.grid.shape["rows"] == A.grid.shape["cols"]
        if not self.square:  # columns of blocks that lie apart: the rows of H, from those that have them
            self.column_layout = Layout(A.grid, A.input_layout.rows, Cut())

    @contextmanager
    def rows_read(self, U: Any) -> Iterator[Any]:
        if self.fiber.size == 1:
            yield U
            return
        with self._whole(U.shape[1]) as rows:
            yield self.A.fiber.allgather_rows(U, self.shares, rows, "G", narrow=True)

    @contextmanager
    def rows_written(self, T: Any, by: Sum = SUM, begun: bool = False) -> Iterator[Room]:
        if self.fiber.size == 1:
            with super().rows_written(T, by, begun) as room:
                yield room
            return
        with self._whole(T.shape[1]) as rows:
            by.begin(rows)
            yield Room(self.grid, rows)
            if not self.sizes:
                by.nothing(rows)
            by.scatter(self.A.fiber, rows, self.shares, T)
        by.end()

    @contextmanager
    def whole_columns(self, v: DistDense) -> Iterator[Iterator[Any]]:
        if self.square:
            with super().whole_columns(v) as columns:
                yield columns
            return
        whole, panels = recut(v, self.column_layout).block, [self.plane.panels[k] for k in self.mine]
        roots, shapes = [p.r for p in panels], [(p.width, v.shape[1]) for p in panels]
        how = self.plane.column, "H", roots, lambda k: whole[panels[k].rows], shapes, whole.dtype
        with broadcast(self.grid, *how) as columns:
            yield columns

    def _whole(self, width: int) -> AbstractContextManager[Any]:
        """Lend room for the rows of the layer's block."""
        return self.grid.workspace.lend((int(self.shares[-1]), width), self.dtype)

    def whole_columns_price(self, heads: int) -> Price:
        panels, column = (self.plane.panels[k] for k in self.mine), self.plane.column
        away = [panel.width * heads for panel in panels if panel.r != column.rank and not self.square]
        return super().whole_columns_price(heads) + whole(column, "H", away)

    def rows_price(self, width: int, written: bool = False) -> Price:
        if written:
            return reduced(self.A.fiber, "sums", int(self.shares[-1]) * width, scattered=True)
        return gathered(self.A.fiber, "G", np.diff(self.shares).tolist(), width)

"""2D SUMMA product on any pr x pc grid (CAGNET section IV-C, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.panels import SparsePanels, broadcast, summed
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout, Range, as_partition, owner, partition, refine
from distgnn.local import edges as entries
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edges import Numbers
from distgnn.operators.kept import cached_property
from distgnn.operators.loading import cut_columns, load
from distgnn.operators.moves import Moves
from distgnn.operators.prices import Price, whole
from distgnn.operators.sources import BlockSource
from distgnn.operators.weights import ReplicatedWeights


class Summa2D(Algorithm):
    """``A`` and ``H`` in 2D blocks: process (i, j) holds A_ij (n/pr x n/pc) and H_ij (n/pr x f/pc).

        stage 0     A_00 ─bcast→ A_00       H_00   H_01       T_00 = A_00 H_00     T_01 = A_00 H_01
        on 2 x 2    A_10 ─bcast→ A_10        ↓bcast ↓bcast    T_10 = A_10 H_00     T_11 = A_10 H_01
        stage 1     A_i1 go left, H_1j go up                  T_ij += A_i1 H_1j

    The columns of A are cut over ``cols`` and the rows of H over ``rows``: two partitions of the same range,
    which differ on a rectangular grid. The stages are the blocks of their common refinement, so that each has
    one owner on either side. Stages may be cut into narrower panels.

    Algorithm 3, with the moves of :class:`PlaneMoves` and a kernel:

        for q of the panels, those of all stages:                  line 3
            A_q = BROADCAST(A_ir, P(i, :))                         line 9: forward
            H_q = BROADCAST(H_rj, P(:, j))                         line 10: columns_read
            T_ij = T_ij + A_q H_q                                  line 11: local.spmm

    Aᵀ is not distributed a second time (Table II). Its product sends the transposed panels of A, which a rank
    keeps from the first such product on, along the row, and sums panels of the result up the column.

    Cost per product and rank: the row's panels of A but the own ones, about nnz/pr non-zeros (an index and a
    value each, and each panel's row pointers), and n f/pc words of ``H``, less the own block; a message for
    each. Extra memory: two panels of each.

    Args:
        row_parts, col_parts: partitions of the rows of the product and of ``H`` into pr blocks; default even.
        inner_parts: partition of A's columns into pc blocks; default even, equal to ``col_parts`` on a square
            grid.
        block_size: columns of a panel of A at most (b of Algorithm 3); default: whole stages. Narrow panels
            take less memory, but each costs a pass over the product, so that whole stages are fastest.
    """

    name = "2d"
    axes = ("rows", "cols")

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None, inner_parts: np.ndarray | None = None,
        block_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(grid, source)
        pr, pc = grid.shape["rows"], grid.shape["cols"]
        row_parts = self.cut("rows", as_partition(row_parts, self.shape[0], pr))
        col_parts = self.cut("columns", as_partition(col_parts, self.shape[1], pr))
        inner_parts = col_parts if inner_parts is None and pr == pc else inner_parts
        inner_parts = self.cut("inner", as_partition(inner_parts, self.shape[1], pc))
        self.output_layout = Layout(grid, Cut(("rows",), row_parts, self.row_order), Cut(("cols",)))
        self.input_layout = Layout(grid, Cut(("rows",), col_parts, self.col_order), Cut(("cols",)))
        self.weights = ReplicatedWeights(self.output_layout)
        stages = []
        for columns in refine(inner_parts, col_parts):
            c, r = owner(inner_parts, columns[0]), owner(col_parts, columns[0])
            stages.append(Panel(columns, c, r, columns[0] - int(col_parts[r])))
        self.inner_parts = inner_parts
        self.plane = Summa(grid, source, self.output_layout.row_range, stages, block_size)

    def _moves(self) -> Moves:
        rows = Layout(self.grid, self.output_layout.rows, Cut())
        return PlaneMoves(self, rows, ("cols",), self.inner_parts)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """List every pr x pc = P, the squarest first.

        It receives the fewest words where the non-zeros of A (index and value) have as many as ``H``. On
        other graphs, another shape may.
        """
        shapes = [(pr, ranks // pr) for pr in range(1, ranks + 1) if ranks % pr == 0]
        return [{"rows": pr, "cols": pc} for pr, pc in sorted(shapes, key=lambda s: (sum(s), s[0]))]


class Panel(NamedTuple):
    """Columns of A and rows of ``H`` that are multiplied at a time (Algorithm 3, lines 4-8)."""

    columns: Range  # of all of A
    c: int  # the process column that has them
    r: int  # the process row that has these rows of H
    top: int  # the first of them in its block

    @property
    def width(self) -> int:
        """Columns of A, rows of ``H``."""
        return self.columns[1] - self.columns[0]

    @property
    def rows(self) -> slice:
        """The rows of ``H`` within their block."""
        return slice(self.top, self.top + self.width)

    def cut(self, width: int) -> list[Panel]:
        """Cut the panel into panels of this width at most, about equal; one at least."""
        bounds = partition(self.width, max(-(-self.width // max(width, 1)), 1)).tolist()
        first = self.columns[0]
        return [Panel((first + a, first + b), self.c, self.r, self.top + a) for a, b in pairwise(bounds)]


class Summa:
    """The products of a plane of processes: the first phase of Algorithm 3.

    Args:
        rows: those of this rank.
        stages: blocks of columns with one owner on either side, the same on all ranks of the plane.
        block_size: columns of a panel at most; None for whole stages.
    """

    def __init__(
        self, grid: Grid, source: BlockSource, rows: Range, stages: Sequence[Panel], block_size: int | None
    ) -> None:
        if block_size is not None and block_size < 1:
            raise ArgumentError("block_size", block_size, "must be positive")
        self.grid, self.row, self.column = grid, grid.along("cols"), grid.along("rows")
        mine = [stage for stage in stages if stage.c == self.row.rank]
        blocks = load(grid, source, [(rows, stage.columns) for stage in mine])
        cut = {stage: stage.cut(block_size or stage.width) for stage in stages}
        held: dict[Panel, CSR] = {}
        for stage in reversed(mine):
            bounds = [0, *(panel.columns[1] - stage.columns[0] for panel in cut[stage])]
            held |= zip(cut[stage], cut_columns(blocks.pop(), bounds, grid.backend), strict=True)
        # first panels of all stages, then second: several owners send; descending, see relay.py
        turns = zip_longest(*reversed(cut.values()))
        self.panels = [panel for turn in turns for panel in turn if panel is not None]
        own = {k: held[panel] for k, panel in enumerate(self.panels) if panel in held}
        shapes = [(rows[1] - rows[0], panel.width) for panel in self.panels]
        self.A = SparsePanels(grid, self.row, [panel.c for panel in self.panels], own, shapes)

    @cached_property
    def At(self) -> SparsePanels:
        """The panels of A, each transposed where it is."""
        with self.grid.world.together():
            own = {k: panel.transposed(self.grid.backend) for k, panel in self.A.mine.items()}
        shapes = [shape[::-1] for shape, *_ in self.A.headers]
        return SparsePanels(self.grid, self.row, self.A.roots, own, shapes)

    def _broadcast(self, H: Any) -> AbstractContextManager[Iterator[Any]]:
        """Give the panels of ``H``, each along its process column."""
        roots, shapes = [p.r for p in self.panels], [(p.width, H.shape[1]) for p in self.panels]
        own = lambda k: H[self.panels[k].rows]  # noqa: E731
        return broadcast(self.grid, self.column, "H", roots, own, shapes, H.dtype)

    def _summed(self, F: Any) -> AbstractContextManager[Iterator[Any]]:
        """Give room for the panels of ``F``, each summed along its process column."""
        roots, shapes = [p.r for p in self.panels], [(p.width, F.shape[1]) for p in self.panels]
        own = lambda k: F[self.panels[k].rows]  # noqa: E731
        return summed(self.grid, self.column, roots, own, shapes, F.dtype)


class PlaneMoves(Moves):
    """Moves of a plane of processes: blocks and their entries travel along a row.

    Words: columns, those of ``A @ H``, either way; entries, nnz heads/pr, either way.

    Args:
        axes: that cut A's columns, the columns of a plane first; columns: the partition vector of that cut.
    """

    def __init__(
        self, A: Any, row_layout: Layout[Any], axes: tuple[str, ...], columns: Any
    ) -> None:  # fmt: skip
        self.plane, self.mine = A.plane, sorted(A.plane.A.mine)
        blocks, cut = [A.plane.A.mine[k] for k in self.mine], Cut(axes, columns, A.col_order)
        super().__init__(A, blocks, A.grid.along(*axes), row_layout, Layout(A.grid, cut, Cut()))
        self.numbers = dict(zip(self.mine, self.places, strict=True))
        self.sizes = [nnz for _, nnz, _, _ in self.plane.A.headers]

    def forward(self) -> AbstractContextManager[Iterator[CSR]]:
        return self.plane.A.broadcast()

    def prepare(self, adjoint: bool) -> None:
        _ = self.plane.At if adjoint else None

    @contextmanager
    def back(self) -> Iterator[Iterator[tuple[int, CSR]]]:
        with self.plane.At.broadcast() as panels:
            yield enumerate(panels)

    def ranges(self) -> list[Range]:
        return [panel.columns for panel in self.plane.panels]

    def windows(self) -> list[tuple[Range, Range]]:
        every = super().windows()
        return [every[k] for k in self.mine]

    def columns_read(self, V: Any) -> AbstractContextManager[Iterator[Any]]:
        return self.plane._broadcast(V)

    def columns_written(self, F: Any) -> AbstractContextManager[Iterator[Any]]:
        return self.plane._summed(F)

    @contextmanager
    def whole_columns(self, v: DistDense) -> Iterator[Iterator[Any]]:
        own = recut(v, self.column_layout)
        first, ranges = own.row_range[0], (self.plane.panels[k].columns for k in self.mine)
        yield (own.block[start - first : stop - first] for start, stop in ranges)

    @contextmanager
    def entries_read(self, E: Any, transposed: bool = False) -> Iterator[Iterator[Numbers]]:
        def own(k: int) -> Any:
            numbers = E.numbers(self.numbers[k]).values
            return entries.permuted(self.plane.A.mine[k], numbers) if transposed else numbers

        how = self.plane.A.roots, own, [(nnz, E.heads) for nnz in self.sizes], self.dtype
        with broadcast(self.grid, self.plane.row, "A", *how) as panels:
            yield map(Numbers, panels)

    def entries_written(self, E: Any) -> AbstractContextManager[Iterator[Any]]:
        shapes = [(nnz, E.heads) for nnz in self.sizes]
        own = lambda k: E.data[self.numbers[k]]  # noqa: E731
        return summed(self.grid, self.plane.row, self.plane.A.roots, own, shapes, E.dtype)

    def blocks_price(self, back: bool = False) -> Price:
        row, A = self.plane.row, self.plane.A
        away = [header[:2] for root, header in zip(A.roots, A.headers, strict=True) if root != row.rank]
        return whole(row, "A", [CSR.count(shape[::-1] if back else shape, nnz) for shape, nnz in away])

    def columns_price(self, width: int, written: bool = False) -> Price:
        column = self.plane.column
        away = [panel.width * width for panel in self.plane.panels if panel.r != column.rank]
        return whole(column, "sums" if written else "H", away)

    def entries_price(self, heads: int, written: bool = False) -> Price:
        row, sizes = self.plane.row, zip(self.plane.A.roots, self.sizes, strict=True)
        away = [nnz * heads for root, nnz in sizes if root != row.rank]
        return whole(row, "sums" if written else "A", away)

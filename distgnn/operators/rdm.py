"""Block rows whose features are cut by columns while A multiplies.

RDM, redistribution of dense matrices (Kurt et al., IPDPS 2023), and NeutronTP's tensor parallelism (VLDB
2025, arXiv 2412.20379).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.canonical import canonical
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import Cut, Layout, nested, within
from distgnn.local.crossing import Crossing, crossing
from distgnn.operators.block_rows import BlockRows
from distgnn.operators.by_columns import by_columns
from distgnn.operators.covers import CoveredRows
from distgnn.operators.kept import cached_property
from distgnn.operators.loading import Holders
from distgnn.operators.moves import Moves, Step, Steps
from distgnn.operators.needed_rows import NeededRows
from distgnn.operators.row_moves import NeededRowMoves, row_moves
from distgnn.operators.sources import BlockSource, blocks
from distgnn.operators.weights import ReplicatedWeights

Array = Any


class CrossingRows:
    """The entries of A that a rank multiplies by itself, and the rows that travel for the others.

    Args:
        row: the process row; divided: A as it is divided among its ranks.

    Attributes:
        near: the entries of which this rank has row and column.
        rows, columns: where its rows of the product and of H lie that travel, int64 on the device.
        of_rows, of_columns: how many travel, by rank.

    Extra memory: the rows that travel, of H and of the product.
    """

    def __init__(self, grid: Grid, row: Comm, divided: Crossing, dtype: Any) -> None:
        self.grid, self.row, on = grid, row, grid.backend
        self.holders = Holders(grid, ("near", grid.rank))
        (self.near,) = self.holders.make("near", lambda on: [CSR.from_scipy(divided.near, on, dtype)])
        by_rank = divided.rows, divided.columns
        self.rows, self.columns = (on.asarray(own[row.rank], np.int64) for own in by_rank)
        self.of_rows, self.of_columns = ([own.size for own in ranks] for ranks in by_rank)

    @cached_property
    def near_transposed(self) -> CSR:
        """The transpose of ``near``. Collective."""
        (made,) = self.holders.transposed([self.near])
        return made

    def heights(self, adjoint: bool) -> tuple[list[int], list[int]]:
        """List the rows of X, and of Y, that travel from each rank."""
        return (self.of_rows, self.of_columns) if adjoint else (self.of_columns, self.of_rows)

    @contextmanager
    def parts(self, X: Array, Y: Array, adjoint: bool) -> Iterator[Iterator[tuple[Array, Array]]]:
        """Give some columns at a time of the rows that travel, of X and of what is added to Y at the end.

        Collective over the process row. Columns begin to travel when the context is entered.
        """
        there, back = (self.rows, self.columns) if adjoint else (self.columns, self.rows)
        heights, matrix = self.heights(adjoint), "G" if adjoint else "H"
        with self.grid.workspace.lending() as borrow:
            sent = borrow((there.size, X.shape[1]), X.dtype)
            came = borrow((back.size, X.shape[1]), X.dtype)
            local.gather_rows(X, there, sent)
            with by_columns(self.grid, self.row, sent, came, heights, matrix, "alltoallv") as parts:
                yield parts
            local.scatter_add(came, back, Y)


class CrossingMoves(NeededRowMoves):
    """Moves of a matrix whose entries are multiplied where they are, or once their rows have crossed."""

    def __init__(self, A: Any, pairs: NeededRows, crossing: CrossingRows) -> None:
        super().__init__(A, pairs)
        self.crossing = crossing

    def prepare(self, adjoint: bool) -> None:
        super().prepare(adjoint)
        _ = self.crossing.near_transposed if adjoint else None

    def _in_parts(self, X: Array, Y: Array, adjoint: bool, steps: Callable[[Array, Array], Steps]) -> Steps:
        with self.crossing.parts(X, Y, adjoint) as parts:
            near = self.crossing.near_transposed if adjoint else self.crossing.near
            yield Step(-1, near, self.grid.rounded(X), None, Y, (0, len(Y)))
            for X_k, Y_k in parts:
                yield from steps(X_k, Y_k)


class Rdm(BlockRows):
    """``H`` in P block rows on a grid of r x c ranks, and ``A`` in r block rows.

    The c ranks of a process row hold the same block row of A. While A multiplies, each has c times the rows
    of ``H`` and a c-th of its columns.

        process row i   H is cut      all-to-all        1D over `rows`         all-to-all
        (i, 0)          H_i0 (rows)   H_i, left half    T_i, left half         T_i0 (rows)
        (i, 1)          H_i1 (rows)   H_i, right half   T_i, right half        T_i1 (rows)

    With r = 1 every rank holds all of A, and only the all-to-alls send: the papers' algorithm. With c = 1 it
    is `1d`. The adjoint is the same with Aᵀ. Dense products send nothing but the sum of dW.

    Columns travel in parts: the next one comes, and the last one leaves, while one is multiplied.

    Cost per product and rank, in words received: 2 n f/P (c-1)/c in two all-to-alls over ``cols``, and n f/c
    (r-1)/r over ``rows`` in broadcasts; sparsity-aware, f/c words for each needed row instead. Exactly, where
    a rank has m of its process row's M rows and w of the f columns, the first all-to-all brings (M - m) w
    words, the second m (f - w). For each part, 2 (c - 1) messages and those of `1d`.

    Sparsity-aware with r = 1, a rank multiplies the entries of A of which it has row and column while columns
    travel, and only rows travel that have other entries: above, m and M count columns of A with an entry in
    another rank's row, and in the second all-to-all rows with one in another rank's column. Covers are the
    same there.

    Extra memory: n f/P for X by columns, and for its product; of several parts, each but the first of the
    product lies where one of X was. What is sent and received of them takes a few pieces of 256 KiB on a
    host, n f/P (c-1)/c numbers each on a GPU.

    Args:
        row_parts, col_parts: partition vectors of A's rows and columns into r blocks, each of which the c
            ranks of a process row share evenly; default even.
        sparsity_aware: as of `1d`, over ``rows``.
    """

    name = "rdm"
    axes = ("rows", "cols")
    column_axis = "cols"
    crossing: CrossingRows | None = None  # sparsity-aware with r = 1

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: Any = None, col_parts: Any = None,
        sparsity_aware: bool | str = False,
    ) -> None:  # fmt: skip
        super().__init__(grid, source, row_parts, col_parts, sparsity_aware)
        self.row, shares = grid.along("cols"), grid.shape["cols"]
        cuts = (self.row_parts, self.row_order), (self.col_parts, self.col_order)
        nests = (self.cut(f"nested {k}", nested(parts, shares)) for k, (parts, _) in enumerate(cuts))
        self.output_layout, self.input_layout = (
            Layout(grid, Cut(("rows", "cols"), own, order), Cut())
            for own, (_, order) in zip(nests, cuts, strict=True)
        )
        self.inner_layouts = tuple(
            Layout(grid, Cut(("rows",), parts, order), Cut(("cols",))) for parts, order in reversed(cuts)
        )
        self.weights = ReplicatedWeights(self.output_layout)

    def _moves(self) -> Moves:
        if self.crossing is None:
            return super()._moves()
        return CrossingMoves(self, self.A, self.crossing)  # type: ignore[arg-type]

    def parts(self, X: Array, Y: Array, adjoint: bool) -> AbstractContextManager[Any]:
        """Give some columns of the process row's rows at a time: from rows to columns, and back."""
        return by_columns(self.grid, self.row, X, Y, self.heights(adjoint), "G" if adjoint else "H")

    def heights(self, adjoint: bool) -> tuple[list[int], list[int]]:
        """List the rows of X, and of Y, that each rank of the process row has."""
        sides = zip((self.input_layout, self.output_layout), self.shape[::-1], strict=True)
        vectors = (layout.rows.vector(self.grid, n) for layout, n in sides)
        of_H, of_T = (np.diff(within(ends, self.column.rank, self.row.size)).tolist() for ends in vectors)
        return (of_T, of_H) if adjoint else (of_H, of_T)

    def _needed_rows(self) -> NeededRows | CoveredRows:
        grid, row = self.grid, self.grid.along("cols")
        if grid.shape["rows"] > 1 or row.size == 1:
            return super()._needed_rows()
        (given,), holders = blocks(self.source, self._windows(), grid), self.holders()
        with grid.world.together():
            A = canonical(given, self.dtype)
            cuts = nested(self.row_parts, row.size), nested(self.col_parts, row.size)
            divided = crossing(A, *cuts, row.rank)
        grid.nonzeros += A.nnz
        self.crossing = CrossingRows(grid, row, divided, self.dtype)
        width = np.array([divided.far.shape[1]])
        return NeededRows(holders, self.column, {0: divided.far}, width, self.dtype, None)

    def _edge_pattern(self) -> Moves:
        moves = super()._edge_pattern()
        return moves if self.crossing is None else row_moves(self, self._whole.A)

    @cached_property
    def _whole(self) -> Rdm:
        """The matrix by whole blocks, which has all entries of a row together. Collective the first time."""
        return Rdm(self.grid, self.source, self.row_parts, self.col_parts)

    @staticmethod
    def grids(ranks: int) -> list[dict[str, int]]:
        """List every r x c = P, by the words that a rank receives in a product of whole blocks.

        These are 2 (c-1)/c + r - 1 times n f/P. Of equals first the one with the fewest copies of A.
        """
        shapes = [(r, ranks // r) for r in range(1, ranks + 1) if ranks % r == 0]
        shapes.sort(key=lambda s: (2 * s[0] * (s[1] - 1) + ranks * (s[0] - 1), s[1]))
        return [{"rows": r, "cols": c} for r, c in shapes]

"""Rows that cross between the ranks of a process row, which alone are cut by columns (see ``rdm.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.local.crossing import Crossing
from distgnn.operators.by_columns import by_columns
from distgnn.operators.kept import cached_property
from distgnn.operators.loading import Holders
from distgnn.operators.moves import Step, Steps
from distgnn.operators.needed_rows import NeededRows
from distgnn.operators.row_moves import NeededRowMoves
from distgnn.operators.summed import Sum

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

    @contextmanager
    def parts(self, X: Array, Y: Array, adjoint: bool) -> Iterator[Iterator[tuple[Array, Array]]]:
        """Give some columns at a time of the rows that travel, of X and of what is added to Y at the end.

        Collective over the process row. Columns begin to travel when the context is entered.
        """
        there, back = (self.rows, self.columns) if adjoint else (self.columns, self.rows)
        heights = (self.of_rows, self.of_columns) if adjoint else (self.of_columns, self.of_rows)
        matrix = "G" if adjoint else "H"
        with self.grid.workspace.rooms() as take:
            sent = take("rows that travel", (there.size, X.shape[1]), X.dtype)
            came = take("rows that travelled", (back.size, X.shape[1]), X.dtype)
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

    def _onto_rows(self, T: Array, H: Array, E: Any, by: Sum, wire: str | None) -> Steps:
        with self.crossing.parts(H, T, adjoint=False) as parts:
            yield Step(-1, self.crossing.near, local.rounded(H, wire), None, T, (0, len(T)))
            for X, Y in parts:
                yield from self._rows_of_blocks(Y, X, None, by, wire)

    def _onto_columns(self, F: Array, G: Array, E: Any, wire: str | None) -> Steps:
        with self.crossing.parts(G, F, adjoint=True) as parts:
            yield Step(-1, self.crossing.near_transposed, local.rounded(G, wire), None, F, (0, len(F)))
            for X, Y in parts:
                yield from self._columns_of_blocks(Y, X, None, wire)

"""Rows that cross between the ranks of a process row, which alone are cut by columns (see ``rdm.py``)."""

from __future__ import annotations

from collections.abc import Callable
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

Array = Any
Product = Callable[[Array, Array], None]


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

    def prepare(self) -> None:
        """Make what the adjoint multiplies by. Collective."""
        _ = self.near_transposed

    @cached_property
    def near_transposed(self) -> CSR:
        """The transpose of ``near``. Collective."""
        (made,) = self.holders.transposed([self.near])
        return made

    def multiply(self, X: Array, Y: Array, product: Product, matrix: str, adjoint: bool) -> None:
        """Compute ``Y = A X``, or ``Aᵀ X``, where ``product`` multiplies columns of the rows that travel.

        Collective over the process row.
        """
        there, back = (self.rows, self.columns) if adjoint else (self.columns, self.rows)
        heights = (self.of_rows, self.of_columns) if adjoint else (self.of_columns, self.of_rows)
        with self.grid.workspace.rooms() as take:
            sent = take("rows that travel", (there.size, X.shape[1]), X.dtype)
            came = take("rows that travelled", (back.size, X.shape[1]), X.dtype)
            local.gather_rows(X, there, sent)
            with by_columns(self.grid, self.row, sent, came, heights, matrix, "alltoallv") as parts:
                near = self.near_transposed if adjoint else self.near
                local.spmm(near, self.grid.rounded(X), out=Y)
                for X_k, Y_k in parts:
                    product(X_k, Y_k)
            local.scatter_add(came, back, Y)

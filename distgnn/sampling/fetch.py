"""Feature fetching: the rows of a distributed matrix that a rank's minibatch reads (matrix-sampling paper,
section 6).

Features are cut in P/c block rows, each held by the c ranks of a process row, so that every process column
has all of them and nothing is asked of any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import local
from distgnn.comm.exchange import Exchange
from distgnn.operators.dense import DistDense


class Features:
    """Rows of features by node number, wherever they are held.

    Args:
        H: (n, f) in block rows over the axis ``rows`` of a grid, with copies along its other axes, as 1d and
            1.5d hold it.

    Raises:
        ValueError: it is cut otherwise.

    Cost of a call of :meth:`fetch`, in words received: D f + D', where D distinct ids are other ranks' and
    those of the process column ask this rank for D' rows. The row numbers and the rows are one all-to-allv
    each, with at most P/c - 1 messages.

    What falls as c grows: of D₀ distinct ids spread evenly over the nodes, D = D₀ (1 - c/P) are other ranks'.
    The exchange of a process column, between P/c ranks, therefore moves D₀ f (P/c - 1) words: number of
    partners and words both fall as 1/c, less what is local. One rank's share of it, D₀ f (1 - c/P), falls
    only by what becomes local.
    """

    def __init__(self, H: DistDense) -> None:
        grid = H.grid
        if H.layout.row_axes != ("rows",) or grid.count(*H.layout.col_axes) != 1:
            cut = f"({', '.join(H.layout.row_axes)}) x ({', '.join(H.layout.col_axes)})"
            raise ValueError(
                f"features are fetched from block rows over the axis rows; these are cut over {cut}"
            )
        self.backend, self.column, self.workspace = grid.backend, grid.along("rows"), grid.workspace
        self.block, self.shape, self.dtype = H.block, H.shape, H.dtype
        self.parts = H.layout.rows.vector(grid, H.shape[0])

    def fetch(self, ids: Any) -> Any:
        """Rows ``ids`` of the features: (len(ids), f), new, on the backend of the grid. Collective over the
        process column.

        Args:
            ids: integers in 0..n-1, in any order, with repeats, each rank its own, possibly none.

        Raises:
            ValueError: ids that are no list of integers, or out of range. On all ranks of the process column.
        """
        rows = self.borrow(ids)
        self.workspace.forget(rows)
        return rows

    def borrow(self, ids: Any) -> Any:
        """:meth:`fetch` into memory of the grid's workspace, to be given back there."""
        with self.column.together():
            ids = self._checked(ids)
        if self.column.size == 1:
            return local.gather_rows(self.block, self.backend.asarray(ids), self._room(ids))
        distinct, places = np.unique(ids, return_inverse=True)
        rows = self._fetch(distinct)
        if places.size == distinct.size and bool((places[1:] > places[:-1]).all()):
            return rows
        ordered = local.gather_rows(rows, self.backend.asarray(places), self._room(ids))
        self.workspace.give_back(rows)
        return ordered

    def _room(self, ids: np.ndarray) -> Any:
        return self.workspace.borrow((ids.size, self.shape[1]), self.dtype)

    def _fetch(self, ids: np.ndarray) -> Any:
        """Rows of rising ids: those of each rank follow each other where they end up."""
        comm, on = self.column, self.backend
        bounds = np.searchsorted(ids, self.parts)
        wanted = [on.asarray(ids[bounds[q] : bounds[q + 1]] - self.parts[q]) for q in range(comm.size)]
        rows = self._room(ids)
        others = [(comm.rank + step) % comm.size for step in range(1, comm.size)]
        counts = comm.swap_objects([asked.size for asked in wanted])
        asked = {r: on.empty((counts[r],), np.int64) for r in others}
        with Exchange(comm, list(asked.items())) as exchange:
            for q in reversed(others):
                exchange.send(wanted[q], q)
            exchange.wait(others)
        with Exchange(comm, [(q, rows[bounds[q] : bounds[q + 1]]) for q in others]) as exchange:
            for r in reversed(others):  # who waits for this rank first is sent to first
                exchange.send(local.gather_rows(self.block, asked[r]), r)
            local.gather_rows(self.block, wanted[comm.rank], rows[bounds[comm.rank] : bounds[comm.rank + 1]])
            exchange.wait(others)
        return rows

    def _checked(self, ids: Any) -> np.ndarray:
        """int64 on the host."""
        ids = self.backend.to_host(ids) if hasattr(ids, "get") else np.asarray(ids)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(
                f"ids of rows to fetch must be a list of integers, got {ids.dtype} of shape {ids.shape}"
            )
        if ids.size and not (0 <= ids.min() and ids.max() < self.shape[0]):
            wrong = ids[(ids < 0) | (ids >= self.shape[0])][0]
            raise ValueError(f"cannot fetch row {wrong}: there are {self.shape[0]}")
        return ids.astype(np.int64, copy=False)

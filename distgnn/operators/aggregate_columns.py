"""Codes of the columns that a rank's blocks of A read, which rise with the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.comm.grid import Grid
from distgnn.layout import Cut, Range
from distgnn.local.aggregate import Codes, code_type
from distgnn.operators.moves import Moves

Array = Any


class Columns:
    """The columns that this rank reads, which have codes in the order of their nodes.

    Where consecutive nodes are in consecutive columns, the code of a node is its number. Else codes are
    numbers below that of the columns, and three integers for each column are held.

    Args:
        nodes: of the columns of each block, int64, or ranges.
        dtype: of the numbers beside which codes stand.

    Attributes:
        codes: of each block.
    """

    def __init__(self, grid: Grid, nodes: Sequence[np.ndarray | range], dtype: Any) -> None:
        self.grid, self.dtype = grid, code_type(dtype)
        self.nodes: Array = None
        self.codes: list[Codes] = []
        if all(isinstance(ids, range) for ids in nodes):
            self.codes = [Codes(ids.start) for ids in nodes if isinstance(ids, range)]
            return
        ids = np.concatenate([np.asarray(block, np.int64) for block in nodes])
        places = np.argsort(ids, kind="stable")
        codes = np.empty_like(places)
        codes[places] = np.arange(places.size)
        asarray = lambda x: grid.backend.asarray(np.ascontiguousarray(x, self.dtype))  # noqa: E731
        self.nodes, whole = asarray(ids[places]), asarray(places)
        start = 0
        for block in nodes:
            own = asarray(codes[start : start + len(block)])
            self.codes.append(Codes(0, own, whole, start))
            start += len(block)
        ledger.holds(self, "adjacency", 3 * ids.size * self.dtype.itemsize)

    @classmethod
    def of(cls, grid: Grid, cut: Cut, ranges: Sequence[Range], dtype: Any) -> Columns:
        """Make those of blocks of consecutive columns, at these positions. Collective."""
        with grid.world.together():  # the order of a store is a file
            nodes = [range(*ends) if cut.order is None else cut.ids(*ends) for ends in ranges]
        return cls(grid, nodes, dtype)

    def nodes_of(self, C: Array) -> Array:
        """Return the nodes that have these codes, -1 where there is none."""
        if self.nodes is None:
            return C
        return self._looked_up(self.nodes, C)

    def codes_of(self, nodes: Array) -> Array:
        """Return the codes of nodes, -1 of those that this rank does not read and where there is none."""
        if self.nodes is None:
            return nodes
        xp = self.grid.backend.xp
        codes = xp.minimum(xp.searchsorted(self.nodes, nodes), max(len(self.nodes) - 1, 0)).astype(self.dtype)
        return xp.where(self._looked_up(self.nodes, codes) == nodes, codes, self.dtype.type(-1))

    def _looked_up(self, table: Array, C: Array) -> Array:
        xp = self.grid.backend.xp
        if not len(table):
            return xp.full(C.shape, -1, self.dtype)
        return xp.where(C < 0, self.dtype.type(-1), table[xp.maximum(C, 0)])


def columns_of(moves: Moves) -> Columns:
    """Return the columns that the blocks of these moves read. Collective."""
    cut, grid, given = moves.A.input_layout.rows, moves.grid, moves.needed()
    if not grid.shape:  # a minibatch's block, which this rank has alone
        return Columns(grid, [range(*ends) for ends in moves.ranges()], moves.dtype)
    if given is None:
        return Columns.of(grid, cut, moves.ranges(), moves.dtype)
    with grid.world.together():
        taken = lambda ids, rows: ids if rows is None else ids[grid.backend.to_host(rows)]  # noqa: E731
        nodes = [np.concatenate([taken(cut.ids(*ends), rows) for ends, rows in block]) for block in given]
    return Columns(grid, nodes, moves.dtype)

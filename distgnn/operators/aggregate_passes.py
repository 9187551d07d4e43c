"""Reductions of a semiring: what becomes of the rows that blocks of A make, on this rank and over ranks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import Cut, Range
from distgnn.local import aggregate as local
from distgnn.local.aggregate import Codes, Semiring, code_type
from distgnn.operators import aggregate_sums, summed
from distgnn.operators.moves import Moves, Step

Array = Any


class ColumnCodes:
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
    def of(cls, grid: Grid, cut: Cut, ranges: Sequence[Range], dtype: Any) -> ColumnCodes:
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


def columns_of(moves: Moves) -> ColumnCodes:
    """Return the columns that the blocks of these moves read. Collective."""
    cut, grid, given = moves.A.input_layout.rows, moves.grid, moves.needed()
    if not grid.shape:  # a minibatch's block, which this rank has alone
        return ColumnCodes(grid, [range(*ends) for ends in moves.ranges()], moves.dtype)
    if given is None:
        return ColumnCodes.of(grid, cut, moves.ranges(), moves.dtype)
    with grid.world.together():
        taken = lambda ids, rows: ids if rows is None else ids[grid.backend.to_host(rows)]  # noqa: E731
        nodes = [np.concatenate([taken(cut.ids(*ends), rows) for ends, rows in block]) for block in given]
    return ColumnCodes(grid, nodes, moves.dtype)


class Adding(summed.Sum):
    """Sums of what a semiring combines. Methods are those of :class:`Picking`."""

    def __init__(self, how: Semiring) -> None:
        self.how, self.held = how, list[Array]()

    def product(self, step: Step) -> None:
        local.add(step.A, step.B, self.how, step.out, step.add)

    def gathered(self, group: Comm, shares: np.ndarray) -> None:
        pass

    def back(self, step: Step) -> None:
        local.add_back(step.A, step.B, self.how, step.out)


class Picking(summed.Sum):
    """The best of what a semiring combines, and the codes of the columns where they are.

    Attributes:
        held: codes by call of :meth:`begin`, what the way back needs.
    """

    def __init__(self, how: Semiring, columns: ColumnCodes, held: Any = ()) -> None:
        self.how, self.columns, self.held = how, columns, list(held)
        self.on = columns.grid.backend
        self.C: Array = None

    def begin(self, T: Array) -> None:
        self.C = self.on.empty(T.shape, self.columns.dtype)

    def product(self, step: Step) -> None:
        """Take what a block makes of H into rows of T."""
        C, codes = self.C[slice(*step.rows)], self.columns.codes[step.k]
        local.best(step.A, step.B, codes, self.how, step.out, C, step.add)

    def nothing(self, T: Array) -> None:
        T[...], self.C[...] = np.inf if self.how.least else -np.inf, -1

    def turns(self, grid: Grid, group: Comm, out: Array, multiple: int = 1) -> Generator[Range, None, None]:
        T, nodes = out, self.on.empty(self.C.shape, self.C.dtype)
        blocks = summed.row_blocks(grid, group.size, len(out), out[:1].nbytes)
        for rows in aggregate_sums.of_all(grid, group, T, nodes, self.how, blocks):
            yield rows
            nodes[slice(*rows)] = self.columns.nodes_of(self.C[slice(*rows)])
        local.fill(T, nodes, self.how)
        if self.columns.nodes is None:
            self.C = nodes
        else:  # the codes where this rank's are the best
            mine = self.columns.nodes_of(self.C) == nodes
            self.C = self.on.xp.where(mine, self.C, self.C.dtype.type(-1))

    def scatter(self, group: Comm, partial: Array, shares: np.ndarray, T: Array) -> None:
        nodes = self.columns.nodes_of(self.C)
        T[...], self.C = aggregate_sums.of_rows(group, partial, nodes, shares, self.how)
        local.fill(T, self.C, self.how)

    def complete(self, T: Array) -> None:
        local.fill(T, self.C, self.how)

    def end(self) -> None:
        self.held.append(self.C)

    def gathered(self, group: Comm, shares: np.ndarray) -> None:
        """Bring back what :meth:`scatter` kept, for all rows. Collective."""
        self.held = [self.columns.codes_of(group.allgather_rows(self.held[0], shares, matrix="G"))]

    def back(self, step: Step) -> None:
        """Give a block's columns what of G comes from them."""
        codes = self.columns.codes[step.k].rows(*step.rows)
        local.best_back(step.A, step.B, self.held[step.part], codes, self.how, step.out)


Pass = Adding | Picking

"""Reductions of a semiring: what becomes of the rows that blocks of A make, on this rank and over ranks."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import Range
from distgnn.local import aggregate as local
from distgnn.local.aggregate import Semiring
from distgnn.operators import aggregate_sums, summed
from distgnn.operators.aggregate_columns import Columns
from distgnn.operators.moves import Step

Array = Any


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

    def __init__(self, how: Semiring, columns: Columns, held: Any = ()) -> None:
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
        T, nodes, blocks = out, self.on.empty(self.C.shape, self.C.dtype), summed.row_blocks(grid, group, out)
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

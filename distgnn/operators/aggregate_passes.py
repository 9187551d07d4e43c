"""Work of an algorithm's loops on a block of A: pick the best neighbours' numbers, or add up."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.local import aggregate as local
from distgnn.local.aggregate import Semiring
from distgnn.operators import aggregate_sums, summed
from distgnn.operators.aggregate_columns import Columns

Array = Any


class Adding:
    """Sums of what a semiring combines. Methods are those of :class:`Picking`."""

    def __init__(self, how: Semiring) -> None:
        self.how = how
        self.held: list[Array] = []

    def begin(self, T: Array) -> None:
        pass

    def product(self, k: int, A: CSR, H: Array, T: Array, merge: bool) -> None:
        local.add(A, H, self.how, T, merge)

    def nothing(self, T: Array) -> None:
        T[...] = 0

    def last(self, grid: Grid, group: Comm, k: int, A: CSR | None, H: Array, T: Array, merge: bool) -> None:
        def compute(rows: Any) -> None:
            if A is not None:
                local.add(A.rows(*rows), H, self.how, T[slice(*rows)], merge)

        summed.add_up(grid, group, T, compute)

    def scattered(self, group: Comm, partial: Array, shares: np.ndarray, T: Array) -> None:
        group.reduce_scatter_rows(partial, shares, T, "sums", narrow=True)

    def complete(self, T: Array) -> None:
        pass

    def end(self) -> None:
        pass

    def gathered(self, group: Comm, shares: np.ndarray) -> None:
        pass

    def back(self, k: int, At: CSR, G: Array, F: Array) -> None:
        local.add_back(At, G, self.how, F)


class Picking:
    """The best of what a semiring combines, and the codes of the columns where they are.

    Attributes:
        held: codes by call of :meth:`begin`, what the way back needs.
    """

    def __init__(self, how: Semiring, columns: Columns, held: Any = ()) -> None:
        self.how, self.columns, self.held = how, columns, list(held)
        self.on = columns.grid.backend
        self.C: Array = None

    def begin(self, T: Array) -> None:
        """Begin with a block of the product."""
        self.C = self.on.empty(T.shape, self.columns.dtype)

    def product(self, k: int, A: CSR, H: Array, T: Array, merge: bool) -> None:
        """Take what block k makes of H into T; with ``merge``, beside what is there."""
        local.best(A, H, self.columns.codes[k], self.how, T, self.C, merge)

    def nothing(self, T: Array) -> None:
        """Begin with what a rank without blocks has."""
        T[...], self.C[...] = np.inf if self.how.least else -np.inf, -1

    def last(self, grid: Grid, group: Comm, k: int, A: CSR | None, H: Array, T: Array, merge: bool) -> None:
        """Take the last block, None where there is none, and the best of the group."""
        nodes = self.on.empty(self.C.shape, self.C.dtype)

        def compute(rows: Any) -> None:
            own = slice(*rows)
            if A is not None:
                codes = self.columns.codes[k]
                local.best(A.rows(*rows), H, codes, self.how, T[own], self.C[own], merge)
            nodes[own] = self.columns.nodes_of(self.C[own])

        aggregate_sums.of_all(grid, group, T, nodes, self.how, summed.row_blocks(grid, group, T), compute)
        local.fill(T, nodes, self.how)
        if self.columns.nodes is None:
            self.C = nodes
        else:  # the codes where this rank's are the best
            mine = self.columns.nodes_of(self.C) == nodes
            self.C = self.on.xp.where(mine, self.C, self.C.dtype.type(-1))

    def scattered(self, group: Comm, partial: Array, shares: np.ndarray, T: Array) -> None:
        """Take the best of the group in this rank's share of the rows into T, and keep their nodes."""
        nodes = self.columns.nodes_of(self.C)
        T[...], self.C = aggregate_sums.of_rows(group, partial, nodes, shares, self.how)
        local.fill(T, self.C, self.how)

    def complete(self, T: Array) -> None:
        """Fill in the rows without entries of a block of which this rank has all entries."""
        local.fill(T, self.C, self.how)

    def end(self) -> None:
        """End with a block of the product."""
        self.held.append(self.C)

    def gathered(self, group: Comm, shares: np.ndarray) -> None:
        """Bring back what :meth:`scattered` kept, for all rows. Collective."""
        nodes = group.allgather_rows(self.held[0], shares, matrix="G")
        self.held = [self.columns.codes_of(nodes)]

    def back(self, k: int, At: CSR, G: Array, F: Array) -> None:
        """Give block k's columns what of G comes from them, in F."""
        local.best_back(At, G, self.held[0], self.columns.codes[k], self.how, F)


Pass = Adding | Picking

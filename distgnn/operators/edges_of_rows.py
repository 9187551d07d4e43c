"""Edges of block rows (1D, 1.5D, and RDM, which is 1D on columns): every entry where its row is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.comm.panels import summed
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout
from distgnn.local import edges as entries
from distgnn.operators import summed as sums
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_pattern import EdgePattern
from distgnn.operators.edges import DistEdges, Masked
from distgnn.operators.kept import cached_property
from distgnn.operators.relayout import relayout

Array = Any


class BlockRowEdges(EdgePattern):
    """The entries of block rows of A, which a rank has for its own stages.

    Words of a product with f columns, either way: those of ``A @ H``. Of :meth:`rows_of`: those of ``A @ v``,
    without the sum over ``reps`` of 1.5D. Of dot products: those of :meth:`rows_of` with f columns; of RDM
    H and U are redistributed, and an all-reduce over ``cols`` adds up nnz heads/r words.

    Args:
        A: the operator; held: another of the same matrix, whose blocks have the edges; default: A.
    """

    def __init__(self, A: Any, held: Any = None) -> None:
        if A.sparsity_aware == "cover":
            problem = "edges lie where their rows do, which covers leave; take True, or False"
            raise ArgumentError("sparsity_aware", "cover", problem)
        grid = A.grid
        self.pairs = pairs = A.A if held is None else held.A
        self.whole = not (A if held is None else held).sparsity_aware
        own = [] if self.whole or pairs.diagonal is None else [pairs.diagonal]
        given = pairs.blocks if self.whole else [*own, *(block for block, _, _ in pairs.groups)]
        reps = ("reps",) if "reps" in grid.shape else ()
        row_layout = Layout(grid, Cut(("rows",), A.row_parts, A.row_order), Cut())
        super().__init__(A, given, grid.along(*reps), row_layout)
        self.column_layout = Layout(grid, Cut(("rows",), A.col_parts, A.col_order), Cut())
        self.inner = A.inner_layouts or (A.input_layout, A.output_layout)
        self.reps = grid.along(*reps) if reps else None
        self.features = grid.along(*(("cols",) if "cols" in grid.shape else ()))
        self.primary = self.features.rank == 0

    @contextmanager
    def rows_of(self, v: DistDense) -> Iterator[Iterator[Array]]:
        with self.pairs.rows_of(recut(v, self.column_layout).block) as pairs:
            yield (rows for _, rows in pairs)

    @contextmanager
    def whole_rows(self, U: DistDense, V: DistDense) -> Iterator[tuple[Array, Array] | None]:
        if self.grid.size > 1:
            yield None
            return
        with self.pairs.rows_of(V.block) as pairs:
            ((_, V_j),) = pairs
            yield U.block, V_j

    def multiply(self, E: DistEdges | Masked, H: DistDense, T: DistDense) -> None:
        H = recut(H, self.inner[0])
        Z = T if T.layout.same(self.inner[1], T.shape) else DistDense.empty(self.inner[1], T.shape, T.dtype)
        bounds = self.bounds(E.heads, H)
        with self.pairs.rows_of(H.block) as pairs:
            for k, ((_, H_j), block) in enumerate(zip(pairs, self.blocks, strict=True)):
                self.product(k, block, E, H_j, Z.block, bounds, add=k > 0)
        if not self.blocks:
            Z.block[...] = 0
        if self.reps is not None:
            sums.add_up(self.grid, self.reps, Z.block)
        self._back(Z, T)

    def multiply_adjoint(self, E: DistEdges | Masked, G: DistDense, F: DistDense) -> None:
        G = recut(G, self.inner[1])
        C = F if F.layout.same(self.inner[0], F.shape) else DistDense.empty(self.inner[0], F.shape, F.dtype)
        (self._summed_panels if self.whole else self._summed_rows)(E, G, C)
        if self.reps is not None:  # the one process column with the stage has the sum
            s = -(-self.grid.shape["rows"] // self.grid.shape["reps"])
            self.reps.bcast(C.block, self.grid.coords["rows"] // s, matrix="sums")
        self._back(C, F)

    def _summed_rows(self, E: DistEdges | Masked, G: DistDense, F: DistDense) -> None:
        """Add up needed rows: the groups of A in reverse, then the diagonal block."""
        bounds, order = self.bounds(E.heads, G), list(range(len(self.blocks)))
        first = [0] if self.pairs.diagonal is not None else []
        with self.pairs.sums_in(F.block) as pairs:
            for k, (At, C) in zip([*order[len(first) :][::-1], *first], pairs, strict=True):
                self.product(k, At, E, G.block, C, bounds, transposed=True)

    def _summed_panels(self, E: DistEdges | Masked, G: DistDense, F: DistDense) -> None:
        """Add up panels on the ranks that have them, in an order that is the same on all ranks."""
        A, bounds, transposed = self.pairs, self.bounds(E.heads, G), self.transposed
        shapes = [(cut.stop - cut.start, F.block.shape[1]) for cut in A.rows]
        own = lambda stage: F.block[A.rows[stage]]  # noqa: E731
        with summed(self.grid, A.comm, A.roots, own, shapes, F.dtype) as panels:
            for k, C in zip(np.argsort(A.turns).tolist(), panels, strict=True):
                self.product(k, transposed[k], E, G.block, C, bounds, transposed=True)

    @cached_property
    def transposed(self) -> list[CSR]:
        """The blocks, transposed where they are, once per node. Collective."""
        if self.A.T is self.A and self.grid.shape["rows"] == 1:  # all of a symmetric matrix
            return self.blocks
        return self.A.holders().transposed(self.blocks)

    def dots(self, U: DistDense, V: DistDense, E: DistEdges) -> None:
        U, V = recut(U, self.inner[1]), recut(V, self.inner[0])
        bounds = self.bounds(E.heads, V)
        with self.pairs.rows_of(V.block) as pairs:
            for (_, V_j), block, place in zip(pairs, self.blocks, self.places, strict=True):
                entries.dots(block, U.block, V_j, bounds, E.data[place])
        self.features.allreduce(E.data, matrix="sums")

    def _back(self, made: DistDense, wanted: DistDense) -> None:
        if made is not wanted:
            relayout(made, wanted, "T")

"""Products over semirings: sums, means, maxima and minima over neighbours, with their adjoints.

Y_i = ⊕_j (a_ij ⊗ H_j) over the stored entries (i, j) of A, in each column of H. The names of ⊕ are PyG's and
DGL's; ⊗ is GraphBLAS's times, plus, or its `second`, here pattern: what networks that do not weigh their
edges take, whatever values A has.

    Y = A.aggregate(H, "max")                               # GraphSAGE-pool
    D = A.aggregate(D, "min", "plus")                       # a step of Bellman and Ford

    Y, picked = A.aggregate(H, "max", keep=True)            # forward, with what the way back needs
    dH = A.aggregate_back(G, picked)                        # back, from G, the gradient of Y
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.comm.checks import compare
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout
from distgnn.local.aggregate import COMBINATIONS, REDUCTIONS, Semiring
from distgnn.operators.aggregate_passes import Adding, ColumnCodes, Pass, Picking, columns_of
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_passes import row_sums
from distgnn.operators.kept import cached_property
from distgnn.operators.moves import Moves

Array = Any


class Picked:
    """Record of which neighbours' numbers were picked, kept by ``A.aggregate(H, …, keep=True)``.

    Of sums and means nothing is kept.

    Attributes:
        A: the operator; how: the :class:`Semiring`; shape: of the result.
    """

    def __init__(self, A: Any, how: Semiring, shape: tuple[int, int], held: list[Array]) -> None:
        self.A, self.how, self.shape, self.held = A, how, shape, held
        ledger.holds(self, "layers", sum(codes.nbytes for codes in held))

    def __repr__(self) -> str:
        return f"<Picked by {self.how.reduce} and {self.how.combine} of {self.A!r}>"

    @property
    def grid(self) -> Any:
        """The grid of the operator."""
        return self.A.grid

    def as_operand(self) -> str:
        """Return what ranks compare of an operand."""
        return f"{self.how.reduce} and {self.how.combine} of {self.A.as_operand()}, {self.shape}"

    def nodes(self) -> DistDense:
        """Return the node whose number was picked for each entry of the result, -1 in rows without entries.

        int64, m x f in ``A.output_layout``. Collective. Cost: an all-reduce of m f words over ``reps`` in
        1.5D and over the axis that cuts A's columns in 3D; those of a change of layout in RDM; 0 in others.

        ArgumentError, on every rank: of sums and means.
        """
        if not self.how.picks:
            raise ArgumentError("reduce", self.how.reduce, "takes from all neighbours; max and min pick one")
        compare("nodes picked", picked=self)
        N = DistDense.empty(self.A.output_layout, self.shape, np.int64)
        self.A.semirings.nodes_picked(self.held, N)
        return N


class SemiringProducts:
    """Products over semirings by an algorithm, without checks of operands. All methods are collective."""

    def __init__(self, A: Algorithm) -> None:
        self.A = A

    @property
    def pattern(self) -> Moves:
        """The moves of the stored entries."""
        return self.A.pattern

    @cached_property
    def columns(self) -> ColumnCodes:
        """The columns that this rank's blocks read. Collective the first time."""
        return columns_of(self.pattern)

    @cached_property
    def shares(self) -> Array:
        """1 over the number of entries of each row of this rank's block of the product. Collective, once."""
        pattern, A = self.pattern, self.A
        counts = row_sums(pattern, A.grid.backend.xp.ones((pattern.size, 1), A.dtype))
        wanted = Layout(A.grid, A.output_layout.rows, Cut())
        counts = recut(DistDense(counts, pattern.row_layout, (A.shape[0], 1)), wanted)
        return 1 / A.grid.backend.xp.maximum(counts.block, A.dtype.type(1))

    def semiring(self, reduce: str, combine: str) -> Semiring:
        """Return the semiring of these names. ArgumentError: none, or one that the algorithm can't have."""
        for name, value, allowed in (("reduce", reduce, REDUCTIONS), ("combine", combine, COMBINATIONS)):
            if value not in allowed:
                raise ArgumentError(name, value, f"expected {', '.join(allowed)}")
        how, A = Semiring(reduce, combine), self.A
        if A.sparsity_aware == "cover" and (reduce, combine) != ("sum", "times"):
            problem = "takes the entries of a row together, which covers leave; take True, or False"
            raise ArgumentError("sparsity_aware", "cover", f"{reduce} and {combine} {problem}")
        if how.picks and A.dtype.itemsize < 8 and max(A.shape) >= 1 << 31:
            problem = "max and min number nodes with 32 bits beside float32; take float64"
            raise ArgumentError("A", repr(A), problem)
        return how

    def forward(self, how: Semiring, H: DistDense, T: DistDense) -> list[Array]:
        """Compute the product, T, and return what the way back needs of each block."""
        work = self._pass(how)
        if work is None:
            self.A.multiply(H.block, T.block)
        else:
            with self.pattern.onto_rows(T.block, H.block, by=work) as steps:
                for step in steps:
                    work.product(step)
        if how.reduce == "mean":
            T.block *= self.shares
        return work.held if work is not None else []

    def back(self, how: Semiring, held: list[Array], G: DistDense, F: DistDense) -> None:
        """Compute F, the gradient of what was multiplied, from G, that of the product."""
        if how.reduce == "mean":
            G = G.like(G.block * self.shares)
        work, moves = self._pass(how, held), self.pattern
        if work is None:
            self.A.multiply_adjoint(G.block, F.block)
            return
        if moves.fiber is not None:
            work.gathered(moves.fiber, moves.shares)
        with moves.onto_columns(F.block, G.block) as steps:
            for step in steps:
                work.back(step)

    def nodes_picked(self, held: list[Array], N: DistDense) -> None:
        """Put the nodes that were picked into N."""
        moves, xp = self.pattern, self.A.grid.backend.xp
        if moves.fiber is not None:
            N.block[...] = held[0]
            return
        own = [self.columns.nodes_of(C).astype(np.int64) for C in held]
        if not moves.left.same(N.layout, N.shape):
            inner = DistDense(xp.concatenate(own, axis=1), moves.left, N.shape)
            N.block = inner.redistribute(N.layout).block
            return
        N.block[...] = own[0] if moves.group is None else moves.group.allreduce(own[0], "max", matrix="nodes")

    def _pass(self, how: Semiring, held: Any = ()) -> Pass | None:
        """Return what is done with blocks; None: they are multiplied."""
        if how.picks:
            return Picking(how, self.columns, held)
        return None if how.combine == "times" else Adding(how)

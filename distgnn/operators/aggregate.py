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
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_operators import EdgeOperators, check_operand
from distgnn.operators.edge_passes import row_sums
from distgnn.operators.kept import cached_property

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
        self.A._nodes_picked(self.held, N)
        return N


class Aggregates(EdgeOperators):
    """Operator with products over semirings. All methods are collective."""

    def aggregate(
        self, H: DistDense, reduce: str = "sum", combine: str = "pattern", keep: bool = False
    ) -> Any:
        """Reduce over the stored entries of each row what they make of their rows of H, in each column.

        max and min: NaN is picked before all numbers, and of equal numbers that of the smallest node, on
        every algorithm, grid and order of nodes. Rows without entries get 0, and with max or min and plus
        the number that changes nothing, -inf or inf.

        Args:
            H: n x f in ``input_layout``, of A's dtype.
            reduce: sum, mean (the sum over the number of stored entries), max or min.
            combine: what an entry of value a makes of a number h: times (a h), plus (a + h), pattern (h).
            keep: also return what :meth:`aggregate_back` needs, a :class:`Picked`: for max and min one
                integer for each entry of the result.

        Returns:
            m x f in ``output_layout``; with ``keep``, this and the Picked.

        Cost: the words and messages of ``A @ H``; sparsity-aware `rdm` with one process row sends whole
        columns, and makes a copy of A the first time. Where ``A @ H`` has sums over ranks (1.5D, Split-3D,
        3D), max and min send a node with each of their numbers, twice the words of the sums. mean: the
        first time, an all-reduce of m/rows numbers over the ranks that cut A's columns.

        Raises:
            ArgumentError: another reduction or combination; covers, but for sum of times; float32 beside 2³¹
                nodes or more. ValueError: shape, layout or dtype don't fit. On every rank.
        """
        how = self._semiring(reduce, combine)
        check_operand(self, H, "H", 1, self.input_layout)
        made = compare(f"A.aggregate(H, {reduce}, {combine})", A=self, H=H)
        T = DistDense.empty(self.output_layout, (self.shape[0], H.shape[1]), self.dtype)
        work = self._pass(how)
        if work is None:
            self.multiply(H, T)
        else:
            self._aggregated(work, H, T)
        if reduce == "mean":
            T.block *= self._shares
        T.origin = made
        held = work.held if work is not None else []
        return (T, Picked(self, how, T.shape, held)) if keep else T

    def aggregate_back(self, G: DistDense, picked: Any) -> DistDense:
        """Compute the gradient of H from G, that of the result, m x f in ``output_layout``.

        Of max and min each entry of G goes to the entry of H that was picked, of sum to all of the row's
        neighbours, of mean likewise, divided by their number; with times, multiplied by the values of A.

        Args:
            picked: of ``aggregate(…, keep=True)``.

        Returns:
            n x f in ``input_layout``.

        Cost: the words and messages of ``A.T @ G`` where rows that are needed, or panels in 2D and 3D,
        travel backwards. With whole blocks sums travel instead of G: as many words in 1D, in 1.5D no more
        over all ranks together. In Split-3D, max and min also gather a node for each entry of G that they
        gather.

        Raises:
            ArgumentError: what is not from this operator, or was not kept. ValueError: as of
                :meth:`aggregate`. On every rank.
        """
        if not isinstance(picked, Picked):
            problem = "expected what A.aggregate(H, …, keep=True) returns beside the product"
            raise ArgumentError("picked", type(picked).__name__, problem)
        if picked.A is not self:
            raise ArgumentError("picked", repr(picked), f"is of another operator than {self!r}")
        check_operand(self, G, "G", 0, self.output_layout)
        if G.shape != picked.shape:
            raise ValueError(f"{self.name}: G is {G.shape}, the product was {picked.shape}")
        made = compare("A.aggregate_back(G, picked)", A=self, G=G, picked=picked)
        F = DistDense.empty(self.input_layout, (self.shape[1], G.shape[1]), self.dtype)
        if picked.how.reduce == "mean":
            G = G.like(G.block * self._shares)
        work = self._pass(picked.how, picked.held)
        if work is None:
            self.multiply_adjoint(G, F)
        else:
            self._aggregated_back(work, G, F)
        F.origin = made
        return F

    @cached_property
    def _columns(self) -> ColumnCodes:
        """The columns that this rank's blocks read. Collective the first time."""
        return columns_of(self.pattern)

    def _aggregated(self, by: Pass, H: DistDense, T: DistDense) -> None:
        with self.pattern.onto_rows(T.block, H.block, by=by) as steps:
            for step in steps:
                by.product(step)

    def _aggregated_back(self, by: Pass, G: DistDense, F: DistDense) -> None:
        moves = self.pattern
        if moves.fiber is not None:
            by.gathered(moves.fiber, moves.shares)
        with moves.onto_columns(F.block, G.block) as steps:
            for step in steps:
                by.back(step)

    def _nodes_picked(self, held: list[Array], N: DistDense) -> None:
        moves, xp = self.pattern, self.grid.backend.xp
        if moves.fiber is not None:
            N.block[...] = held[0]
            return
        own = [self._columns.nodes_of(C).astype(np.int64) for C in held]
        if not moves.left.same(N.layout, N.shape):
            inner = DistDense(xp.concatenate(own, axis=1), moves.left, N.shape)
            N.block = inner.redistribute(N.layout).block
            return
        N.block[...] = own[0] if moves.group is None else moves.group.allreduce(own[0], "max", matrix="nodes")

    @cached_property
    def _shares(self) -> Array:
        """1 over the number of entries of each row of this rank's block of the product. Collective, once."""
        pattern, m = self.pattern, self.shape[0]
        counts = row_sums(pattern, self.grid.backend.xp.ones((pattern.size, 1), self.dtype))
        wanted = Layout(self.grid, self.output_layout.rows, Cut())
        counts = recut(DistDense(counts, pattern.row_layout, (m, 1)), wanted)
        return 1 / self.grid.backend.xp.maximum(counts.block, self.dtype.type(1))

    def _semiring(self, reduce: str, combine: str) -> Semiring:
        for name, value, allowed in (("reduce", reduce, REDUCTIONS), ("combine", combine, COMBINATIONS)):
            if value not in allowed:
                raise ArgumentError(name, value, f"expected {', '.join(allowed)}")
        how = Semiring(reduce, combine)
        if getattr(self, "sparsity_aware", False) == "cover" and (reduce, combine) != ("sum", "times"):
            problem = "takes the entries of a row together, which covers leave; take True, or False"
            raise ArgumentError("sparsity_aware", "cover", f"{reduce} and {combine} {problem}")
        if how.picks and self.dtype.itemsize < 8 and max(self.shape) >= 1 << 31:
            problem = "max and min number nodes with 32 bits beside float32; take float64"
            raise ArgumentError("A", repr(self), problem)
        return how

    def _pass(self, how: Semiring, held: Any = ()) -> Pass | None:
        """Return what is done with blocks; None: they are multiplied."""
        if how.picks:
            return Picking(how, self._columns, held)
        return None if how.combine == "times" else Adding(how)

"""The softmax of sums of both ends: what graph attention weighs neighbours by."""

from __future__ import annotations

from typing import Any

from distgnn import ledger
from distgnn.errors import ArgumentError
from distgnn.local import edges as entries
from distgnn.operators import edge_passes
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_products import attention_back
from distgnn.operators.edges import DistEdges, Through
from distgnn.operators.moves import Moves

Array = Any


class SoftmaxEdges(DistEdges):
    """softmax(leaky_relu(u_i + v_j)) over each row; ``A.edge_softmax`` makes them.

    Attributes:
        signs: a bit for each number, set where u_i + v_j is above 0: all that the way back needs of the sums.
        slope: of the leaky ReLU.
    """

    __slots__ = ("signs", "slope")

    def __init__(self, pattern: Moves, data: Array, signs: Array, slope: float) -> None:
        super().__init__(pattern, data)
        self.signs, self.slope = signs, slope
        ledger.holds(self, "edges", signs.nbytes)

    @classmethod
    def of_sums(cls, pattern: Moves, u: DistDense, v: DistDense, slope: float) -> SoftmaxEdges:
        """Compute them. Collective."""
        data = pattern.grid.backend.empty((pattern.size, u.shape[1]), pattern.dtype)
        P = cls(pattern, data, entries.signs_for(data.size, pattern.grid.backend), slope)
        edge_passes.softmax(pattern, data, (u, v), slope, P.signs)
        return P

    def back(self, gradient: DistEdges, overwrite: bool) -> tuple[DistDense, DistDense]:
        """Return the gradients of u and v; see ``A.edge_softmax_back``. Collective."""
        if gradient is self:
            raise ArgumentError("gradient", repr(gradient), "expected other edges than P")
        data = self._operand(gradient) if overwrite else self._operand(gradient).copy()
        d, totals = gradient if overwrite else self.like(data), self._totals()
        edge_passes.softmax_back(self.pattern, self.data, data, self.slope, self.signs, totals)
        return self._of_ends(d, totals)

    def back_of_product(
        self, G: DistDense, H: DistDense, through: Through | None
    ) -> tuple[DistDense, DistDense]:
        """Return the gradients of u and v; see ``A.attention_back``. Collective."""
        totals = self._totals()
        d = attention_back(self, G, H, through, totals, self.slope, self.signs)
        gradients = self._of_ends(d, totals)
        self.data = self.data[:0].copy()
        return gradients

    def _totals(self) -> Array:
        return self.pattern.grid.backend.zeros((self.pattern.height, self.heads), self.dtype)

    def _of_ends(self, d: DistEdges, totals: Array) -> tuple[DistDense, DistDense]:
        """Return the sums of d by row, of which this rank's are there, and by column. Collective."""
        pattern, A = self.pattern, self.pattern.A
        pattern.across.allreduce(totals, matrix="sums")
        rows = DistDense(totals, pattern.row_layout, (A.shape[0], self.heads))
        return recut(rows, A.output_layout), d.column_sums()

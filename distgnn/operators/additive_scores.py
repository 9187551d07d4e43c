"""Additive attention on stored entries, a · leaky_relu(L_i + R_j), on every algorithm (Brody et al., 2022).

Rows of R travel as for ``A @ R``; where features are cut, scores are summed over their axis. With s = 1 where
an entry's sum is positive, else the slope, and d the gradient of the scores, the way back is

    M_ic = Σ_j d_ij s_ijc,  N_jc = Σ_i d_ij s_ijc,  dL = a M,  dR = a N,  da = Σ_i L_ic M_ic + Σ_j R_jc N_jc

for which one bit of each s is kept, and no rows travel again but the partial sums of N.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.local import additive, elementwise
from distgnn.local import edges as entries
from distgnn.operators.compared import compare
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_products import head_bounds
from distgnn.operators.edges import DistEdges
from distgnn.operators.moves import Moves

Array = Any


class AdditiveScores(DistEdges):
    """Scores a · leaky_relu(L_i + R_j) of the stored entries; ``A.additive_scores`` makes them.

    They hold L and R as A takes them, and beside their numbers a bit for each entry and column.
    """

    __slots__ = ("a", "left", "right", "signs", "slope")

    def __init__(
        self, moves: Moves, left: DistDense, right: DistDense, a: Array, heads: int, slope: float
    ) -> None:
        on = moves.grid.backend
        super().__init__(moves, on.empty((moves.size, heads), moves.dtype))
        self.left, self.right, self.a, self.slope = left, right, a, slope
        width = additive.sign_bytes(right.block.shape[1])
        self.signs = [on.empty((size, width), np.uint8) for size in moves.sizes]
        ledger.holds(self, "edges", sum(signs.nbytes for signs in self.signs))
        own, bounds = a[slice(*right.col_range)], self._bounds()
        with moves.onto_entries(self, left.block, right.block) as steps:
            for step, rows in steps:
                signs = self.signs[step.k]
                additive.scores(step.A, rows, step.B, own, bounds, slope, step.out, signs)

    def back(self, gradient: DistEdges) -> tuple[DistDense, DistDense, Array]:
        """Return the gradients of L, R and a from that of these scores. Collective.

        dL is cut as L was given, dR as R; da is an array (f) of the grid's backend, on every rank.

        Cost: of :meth:`multiply_adjoint` with f columns, and where a product's panels of A travel, those
        twice; two all-reduces of f words; where L and R are redistributed, so are dL and dR.
        """
        compare("scores, back", E=self, gradient=gradient)
        moves, numbers, bounds = self.pattern, self.like(self._operand(gradient)), self._bounds()
        M, N = (DistDense.empty(X.layout, X.shape, X.dtype) for X in (self.left, self.right))
        how = self.slope, bounds
        with moves.onto_rows(M.block, E=numbers) as steps:
            for step in steps:
                ((_, A_k, d_k, _),) = step.E.pieces(step.A)
                signs = self.signs[step.k][A_k.first_entry : A_k.first_entry + A_k.nnz]
                additive.slope_sums(A_k, d_k, signs, *how, step.out, step.add)
        with moves.onto_columns(N.block, E=numbers) as steps:
            for step in steps:
                ((_, At_k, d_k, order),) = step.E.pieces(step.A)
                d_k = d_k if order is None else entries.gathered(d_k, order)
                order = _inverse(entries.transposition(At_k)) if order is None else order
                additive.slope_sums(At_k, d_k, self.signs[step.k], *how, step.out, order=order)
        da = self._gradient_of_a(self.left, M) + self._gradient_of_a(self.right, N)
        for X in (M, N):
            X.block *= self.a[slice(*X.col_range)]
        A = self.pattern.A
        return recut(M, A.output_layout), recut(N, A.input_layout), da

    def _bounds(self) -> list[int]:
        """Return where each head begins and ends in this rank's columns."""
        return head_bounds(self.heads, self.right)

    def _gradient_of_a(self, X: DistDense, sums_of_X: DistDense) -> Array:
        """Sum X times its sums by column, over all rows. Collective."""
        grid = self.pattern.grid
        da = grid.backend.zeros((1, X.shape[1]), self.dtype)
        da[:, slice(*X.col_range)] = elementwise.column_sums(X.block * sums_of_X.block)
        grid.along(*X.layout.row_axes, *X.layout.col_axes).allreduce(da, matrix="gradients")
        return da[0]


def additive_scores(
    moves: Moves, L: DistDense, R: DistDense, a: Array, heads: int, slope: float
) -> AdditiveScores:
    """Compute the scores, with L and R cut as a product takes them. Collective."""
    return AdditiveScores(moves, recut(L, moves.left), recut(R, moves.right), a, heads, slope)


def _inverse(order: Array) -> Array:
    """Return where each place stands in an order of them."""
    inverse = order.copy()
    inverse[order] = backend.of(order).xp.arange(len(order), dtype=order.dtype)
    return inverse

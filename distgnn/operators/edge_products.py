"""Operations on stored entries that move dense matrices: products with other values, dot products, scores.

Additive scores are a · leaky_relu(L_i + R_j) (Brody et al., 2022). Rows of R travel as for ``A @ R``; where
features are cut, scores are summed over their axis. With s = 1 where an entry's sum is positive, else the
slope, and d the gradient of the scores, the way back is

    M_ic = Σ_j d_ij s_ijc,  N_jc = Σ_i d_ij s_ijc,  dL = a M,  dR = a N,  da = Σ_i L_ic M_ic + Σ_j R_jc N_jc

for which one bit of each s is kept, and no rows travel again but the partial sums of N.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.comm.checks import compare
from distgnn.errors import ArgumentError
from distgnn.local import additive
from distgnn.local import edges as entries
from distgnn.local import heads as in_heads
from distgnn.operators import edge_passes
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_passes import head_bounds, softmax_back
from distgnn.operators.edges import DistEdges, Through, row_blocks
from distgnn.operators.moves import Moves, told

Array = Any


def dots(moves: Moves, U: DistDense, V: DistDense, heads: int) -> DistEdges:
    """Compute the dot products of rows of U and V, by head. Collective."""
    E, U, V = empty(moves, heads), recut(U, moves.left), recut(V, moves.right)
    bounds = head_bounds(heads, V)
    with moves.onto_entries(E, U.block, V.block) as steps:
        for step, rows in steps:
            entries.dots(step.A, rows, step.B, bounds, step.out)
    return E


def end_sums(moves: Moves, u: DistDense, v: DistDense) -> DistEdges:
    """Compute u_i + v_j of each entry. Collective."""
    E, rows = empty(moves, u.shape[1]), recut(u, moves.row_layout).block
    with told(moves.grid), moves.whole_columns(v) as columns:
        for block, place, read in zip(moves.blocks, moves.places, columns, strict=True):
            entries.end_sums(block, rows, read, E.data[place])
    return E


def attention_back(
    P: DistEdges, U: DistDense, V: DistDense, through: Through | None, totals: Array = None,
    slope: float = 1, signs: Array = None,
) -> DistEdges:  # fmt: skip
    """Compute the gradient of the scores of a softmax P, where that of P are dot products. Collective.

    In place of the numbers of P, some rows after another, where one rank has all of A in one block.

    Args:
        U, V: of :func:`dots`; through: changes some of their products, and is told which entries they are of;
            others: as of :func:`~distgnn.operators.edge_passes.softmax_back`.
    """
    moves = P.pattern
    if not moves.piecewise:
        D = dots(moves, U, V, P.heads)
        if through is not None:
            through(D.data, slice(0, moves.size))
        softmax_back(moves, P.data, D.data, slope, signs, totals)
        return D
    U, V = recut(U, moves.left), recut(V, moves.right)
    bounds = head_bounds(P.heads, V)
    with moves.columns_read(V.block) as columns:
        (read,) = columns
        for own, part, A in row_blocks(moves.blocks[0], P.heads):
            D_part, P_part = moves.grid.backend.empty((A.nnz, P.heads), P.dtype), P.data[part]
            entries.dots(A, U.block[own], read, bounds, D_part)
            if through is not None:
                through(D_part, part)
            of_rows = None if totals is None else totals[own]
            options: Any = {"slope": slope, "signs": signs, "first": part.start * P.heads}
            entries.softmax_back(A, P_part, D_part, None, of_rows, **options)
            if A is moves.blocks[0]:
                P.data = D_part
            else:
                P_part[...] = D_part
    return P


def empty(moves: Moves, heads: int) -> DistEdges:
    """Make edges of any numbers."""
    return DistEdges(moves, moves.grid.backend.empty((moves.size, heads), moves.dtype))


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
        A = self.pattern.A
        return recut(M, A.output_layout), recut(N, A.input_layout), da

    def _bounds(self) -> list[int]:
        """Return where each head begins and ends in this rank's columns."""
        return head_bounds(self.heads, self.right)

    def _gradient_of_a(self, X: DistDense, sums_of_X: DistDense) -> Array:
        """Sum X times its sums by column, over all rows; then multiply these sums by a. Collective."""
        grid, own = self.pattern.grid, slice(*X.col_range)
        da = in_heads.scaled_dots(X.block, sums_of_X.block, self.a[own])
        if da.shape[1] < X.shape[1]:
            da, part = grid.backend.zeros((1, X.shape[1]), self.dtype), da
            da[:, own] = part
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
        self.data = self.pattern.grid.backend.empty((0, self.heads), self.dtype)
        return gradients

    def _totals(self) -> Array:
        return self.pattern.grid.backend.zeros((self.pattern.height, self.heads), self.dtype)

    def _of_ends(self, d: DistEdges, totals: Array) -> tuple[DistDense, DistDense]:
        """Return the sums of d by row, of which this rank's are there, and by column. Collective."""
        pattern, A = self.pattern, self.pattern.A
        pattern.across.allreduce(totals, matrix="sums")
        rows = DistDense(totals, pattern.row_layout, (A.shape[0], self.heads))
        return recut(rows, A.output_layout), d.column_sums()

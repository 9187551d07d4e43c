"""Products of a matrix whose entries have other values, and what makes such values: one loop for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.local import edges as entries
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edge_passes import softmax_back
from distgnn.operators.edges import DistEdges, Masked, Through
from distgnn.operators.moves import Moves, Steps
from distgnn.operators.numbers import row_blocks
from distgnn.operators.relayout import relayout

Array = Any


def multiply(moves: Moves, E: DistEdges | Masked, H: DistDense, T: DistDense) -> None:
    """Compute ``T = A H`` with the numbers of E in place of A's. Collective."""
    H, Z = recut(H, moves.right), _like(T, moves.left)
    bounds = head_bounds(E.heads, H)
    with moves.onto_rows(Z.block, H.block, E) as steps:
        _multiply(steps, bounds)
    if Z is not T:
        relayout(Z, T, "T")


def multiply_adjoint(moves: Moves, E: DistEdges | Masked, G: DistDense, F: DistDense) -> None:
    """Compute ``F = Aᵀ G`` with the numbers of E in place of A's. Collective."""
    G, C = recut(G, moves.left), _like(F, moves.right)
    bounds = head_bounds(E.heads, G)
    with moves.onto_columns(C.block, G.block, E) as steps:
        _multiply(steps, bounds)
    if C is not F:
        relayout(C, F, "T")


def _multiply(steps: Steps, bounds: Sequence[int]) -> None:
    for step in steps:
        for rows, A, values, order in step.E.pieces(step.A):
            entries.multiply(A, values, step.B, bounds, step.out[rows], step.add, order)


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
    with moves.whole_columns(v) as columns:
        for block, place, read in zip(moves.blocks, moves.places, columns, strict=True):
            entries.end_sums(block, rows, read, E.data[place])
    return E


def attention_back(
    P: DistEdges, U: DistDense, V: DistDense, through: Through | None, totals: Array = None,
    slope: float = 1, signs: Array = None,
) -> DistEdges:  # fmt: skip
    """Compute the gradient of the scores of a softmax P, where that of P are dot products. Collective.

    In the memory of P, some rows after another, where one rank has all of A in one block.

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
    bounds, sums = head_bounds(P.heads, V), moves.grid.backend.zeros((moves.height, P.heads), P.dtype)
    with moves.columns_read(V.block) as columns:
        (read,) = columns
        for own, part, A in row_blocks(moves.blocks[0], P.heads):
            D_part, P_part = moves.grid.backend.empty((A.nnz, P.heads), P.dtype), P.data[part]
            entries.dots(A, U.block[own], read, bounds, D_part)
            if through is not None:
                through(D_part, part)
            of_rows = sums[own], None if totals is None else totals[own]
            options: Any = {"slope": slope, "signs": signs, "first": part.start * P.heads}
            entries.softmax_back(A, P_part, D_part, *of_rows, **options)
            P_part[...] = D_part
    return P


def head_bounds(heads: int, X: DistDense) -> list[int]:
    """Return where the columns of each head begin and end in this rank's block of X."""
    first, last = X.col_range
    ends = np.arange(heads + 1) * (X.shape[1] // heads)
    return (np.clip(ends, first, last) - first).tolist()


def empty(moves: Moves, heads: int) -> DistEdges:
    """Make edges of any numbers."""
    return DistEdges(moves, moves.grid.backend.empty((moves.size, heads), moves.dtype))


def _like(X: DistDense, layout: Any) -> DistDense:
    """Return X, or a matrix of its shape in this layout where X is cut otherwise."""
    return X if X.layout.same(layout, X.shape) else DistDense.empty(layout, X.shape, X.dtype)

"""Passes over the numbers of a rank's stored entries: sums by row, the softmax over rows, products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import repeat
from typing import Any

import numpy as np

from distgnn.local import edges as entries
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.moves import Moves, Step, told
from distgnn.operators.relayout import relayout

Array = Any


def row_sums(moves: Moves, data: Array) -> Array:
    """Sum the numbers of each of this rank's rows, over all ranks that have some. Collective."""
    sums = moves.grid.backend.zeros((moves.height, data.shape[1]), data.dtype)
    with told(moves.grid):
        for block, place in zip(moves.blocks, moves.places, strict=True):
            entries.row_sums(block, data[place], sums)
    return moves.across.allreduce(sums, matrix="sums")


def of_rows(moves: Moves, numbers: Array) -> Array:
    """Give each entry the numbers of its row."""
    data = moves.grid.backend.empty((moves.size, numbers.shape[1]), numbers.dtype)
    for block, place in zip(moves.blocks, moves.places, strict=True):
        entries.of_rows(block, numbers, data[place])
    return data


def softmax(
    moves: Moves, data: Array, ends: tuple[DistDense, DistDense] | None = None, slope: float = 1,
    signs: Array = None,
) -> None:  # fmt: skip
    """Compute a softmax over rows in place, of these numbers or of leaky_relu(u_i + v_j). Collective.

    One pass where this rank has all entries of its rows, in one block; else three.

    Args:
        ends: u and v; slope: of the leaky ReLU; signs: of :func:`~distgnn.local.edges.signs_for`, set where a
            score is above 0, or None.
    """
    heads, on, whole = data.shape[1], moves.grid.backend, _whole_rows(moves)
    maxima = sums = None
    if not whole:
        shape = moves.height, heads
        maxima, sums = on.empty(shape, moves.dtype), on.zeros(shape, moves.dtype)
        maxima[...] = -np.inf
    first = entries.SCORES | (entries.POWERS | entries.SHARES if whole else 0)
    rows = recut(ends[0], moves.row_layout).block if ends else None
    nothing = nullcontext(repeat(None, len(moves.blocks)))
    with told(moves.grid), moves.whole_columns(ends[1]) if ends else nothing as columns:
        for block, place, read in zip(moves.blocks, moves.places, columns, strict=True):
            bits = {"signs": signs, "first": place.start * heads}
            beside = (rows, read) if ends else None
            entries.softmax(block, data[place], maxima, sums, first, ends=beside, slope=slope, **bits)
    if whole:
        return
    moves.across.allreduce(maxima, "max", matrix="sums")
    _each(moves, entries.softmax, entries.POWERS, (data,), maxima, sums)
    moves.across.allreduce(sums, matrix="sums")
    _each(moves, entries.softmax, entries.SHARES, (data,), maxima, sums)


def softmax_back(
    moves: Moves, P: Array, data: Array, slope: float = 1, signs: Array = None, totals: Array = None
) -> None:
    """Compute, in place, the gradient of the scores of a softmax P from that of P. Collective.

    Args:
        slope, signs: as of :func:`softmax`; totals: where the sums of each row are added, (its rows, heads),
            those of this rank's entries alone; or None.
    """
    both, options = (P, data), {"slope": slope, "signs": signs}
    if _whole_rows(moves):
        phases = entries.SUMS | entries.GRADIENT
        _each(moves, entries.softmax_back, phases, both, None, totals, **options)
        return
    sums = moves.grid.backend.zeros((moves.height, data.shape[1]), moves.dtype)
    _each(moves, entries.softmax_back, entries.SUMS, both, sums, None)
    moves.across.allreduce(sums, matrix="sums")
    _each(moves, entries.softmax_back, entries.GRADIENT, both, sums, totals, **options)


def _whole_rows(moves: Moves) -> bool:
    """Return whether this rank has all entries of its rows, in one block."""
    return len(moves.blocks) == 1 and moves.across.size == 1


def _each(
    moves: Moves, run: Any, phases: int, numbers: Sequence[Array], sums: Array, others: Array, **options: Any
) -> None:
    """Run phases on every block."""
    with told(moves.grid):
        for block, place in zip(moves.blocks, moves.places, strict=True):
            own = [array[place] for array in numbers]
            run(block, *own, sums, others, phases, first=place.start * own[0].shape[1], **options)


def multiply(moves: Moves, E: Any, H: DistDense, T: DistDense) -> None:
    """Compute ``T = A H`` with the numbers of E in place of A's. Collective."""
    H, Z = recut(H, moves.right), _like(T, moves.left)
    bounds = head_bounds(E.heads, H)
    with moves.onto_rows(Z.block, H.block, E) as steps:
        _multiply(steps, bounds)
    if Z is not T:
        relayout(Z, T, "T")


def multiply_adjoint(moves: Moves, E: Any, G: DistDense, F: DistDense) -> None:
    """Compute ``F = Aᵀ G`` with the numbers of E in place of A's. Collective."""
    G, C = recut(G, moves.left), _like(F, moves.right)
    bounds = head_bounds(E.heads, G)
    with moves.onto_columns(C.block, G.block, E) as steps:
        _multiply(steps, bounds)
    if C is not F:
        relayout(C, F, "T")


def _multiply(steps: Iterable[Step], bounds: Sequence[int]) -> None:
    for step in steps:
        for rows, A, values, order in step.E.pieces(step.A):
            entries.multiply(A, values, step.B, bounds, step.out[rows], step.add, order)


def head_bounds(heads: int, X: DistDense) -> list[int]:
    """Return where the columns of each head begin and end in this rank's block of X."""
    first, last = X.col_range
    ends = np.arange(heads + 1) * (X.shape[1] // heads)
    return (np.clip(ends, first, last) - first).tolist()


def _like(X: DistDense, layout: Any) -> DistDense:
    """Return X, or a matrix of its shape in this layout where X is cut otherwise."""
    return X if X.layout.same(layout, X.shape) else DistDense.empty(layout, X.shape, X.dtype)

"""Distinct columns drawn from every row of a sparse matrix of weights: SAMPLE(P, b, s) (section 4.1.2).

The scheme is *successive sampling*: columns are drawn one by one, with probabilities proportional to weight
among the columns of the row not drawn yet. A draw is a binary search in the row's prefix sum (inverse
transform sampling). A column that was drawn already is rejected. Once the drawn weight is more than half of
the prefix sum's total, the sum is made again without it: at most every second draw is rejected. Rows need no
normalisation: the random number is multiplied by the row's total.

The k-th number of a row is the k-th output of a SplitMix64 generator whose state starts as the row's key.
``kernels/host/sample.c`` and ``kernels/sample.cu`` (for CuPy's arrays) find the same columns, to the bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.kernels import Kernel, Kernels, KernelTable
from distgnn.local import array_draw, cuda, host
from distgnn.local.csr_rows import owners, row_pointers
from distgnn.local.stack import Stack

Array = Any


class Draws(NamedTuple):
    """The entries drawn from the rows of a matrix.

    Attributes:
        positions: int64, ascending: which of the matrix's stored entries.
        counts: int64 (m): how many of every row.
        remaining: float64 (m, s + 1), a row's weight left before each draw and after the last, 0 where all
            columns were taken; s is at most what the longest row has. None where it was not asked for.
        bounds: int64 (m + 1): where the positions of each row begin; ends: the same on the host. None of
            selected rows.
    """

    positions: Array
    counts: Array
    remaining: Array | None
    bounds: Array = None
    ends: Array = None


def draw(
    indptr: Array, weights: Array, count: int, keys: Array, remaining: bool = False, ends: Any = None,
    sums: Array = None,
) -> Draws:  # fmt: skip
    """Draw from the rows of a CSR matrix with these row pointers and weights (float64).

    A GPU is waited for once, or twice where `ends`, its row pointers on the host, are not given.

    Time: one pass over the entries and O(count · log(length)) per row. Rows of very unequal weights take up
    to `count` passes.

    Raises:
        ValueError: a weight that is negative, infinite or not a number, or a negative `count`.
    """
    if count < 0:
        raise ValueError(f"cannot draw {count} columns from a row")
    xp, ends = backend.module(keys), indptr if ends is None else ends
    indptr = xp.ascontiguousarray(indptr, np.int64)
    count = min(count, longest(ends[1:] - ends[:-1]))
    picked = xp.empty(len(weights), np.uint8)
    left = xp.empty((len(keys), count + 1)) if remaining else None
    return KERNELS.kernel("draw", keys)(indptr, weights, count, keys, picked, left, sums)


def draw_selected(indptr: Array, selected: Array, count: int, keys: Array) -> Draws:
    """Draw from the rows ``A[selected]`` with all weights 1, as positions in A: nothing is copied.

    Args:
        indptr: int64, of A; selected: int64 (m), rows of A; keys: uint64 (m).

    Time: O(count) per row longer than twice `count`; on a GPU O(count² / 32) per row longer than `count`.
    """
    return KERNELS.kernel("draw_selected", keys)(indptr, selected, count, keys)


def inclusion(weights: Array, drawn: Draws, keys: Array) -> Array:
    """Return p (float64), one per drawn column: Σ_drawn x / p estimates a sum over the columns without bias.

    Successive sampling has no closed form for this probability. But it is the order in which independent
    exponential clocks ring whose rates are the weights (Efraimidis and Spirakis, Inf. Process. Lett. 97,
    2006), and the time between two rings is exponential with the remaining weight as its rate. So the time τ
    at which the first column *not* drawn rings can be added afterwards. Given all other clocks, a drawn
    column rings before the s-th other one with probability p = 1 - exp(-w τ), and where it is drawn that
    one's time is τ: so E[drawn / p] = 1 for every column (rank conditioning: Cohen and Kaplan, PODC 2007),
    and E[drawn_u drawn_v / (p_u p_v)] = 1 for u ≠ v, s ≥ 2. Where s p_v is small, 1 / p is about the
    1 / (s p_v) of Zou et al. (NeurIPS 2019), who draw with replacement; where a row has no more than s
    columns, p is 1 and the sum exact. The variance is finite for s ≥ 2.

    Args:
        weights: float64, of the drawn columns; `drawn` with what remained; keys as given to :func:`draw`.
    """
    if drawn.remaining is None:
        raise ValueError("inclusion: needs what remained; draw with remaining=True")
    return KERNELS.kernel("inclusion", keys)(weights, drawn, keys)


def stack_keys(vertices: Stack, keys: Array) -> Array:
    """Make the key of every vertex, uint64, from those of the minibatches."""
    return KERNELS.kernel("stack_keys", keys)(vertices, keys)


def longest(lengths: Array) -> int:
    """Return the largest of some row lengths, 0 of none: no row has more to draw."""
    return int(lengths.max()) if lengths.size else 0


def _draw_on_host(
    mark: Kernel, indptr: Array, weights: Array, count: int, keys: Array, picked: Array, left: Array | None,
    sums: Array,
) -> Draws:  # fmt: skip
    _refuse(mark(indptr, weights, count, keys, picked, left))
    positions = np.flatnonzero(picked.view(bool))
    bounds = np.searchsorted(positions, indptr)
    return Draws(positions, np.diff(bounds), left, bounds, bounds)


def _mark_compiled(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, left: Array | None
) -> int:
    prefix = np.empty(longest(np.diff(indptr)))
    return host.built().sample_rows(indptr, weights, keys, picked, left, prefix, count=count)


def _draw_on_gpu(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, left: Array | None, sums: Array
) -> Draws:
    on = backend.of(keys)
    bad = cuda.draw_weighted(indptr, weights, count, keys, picked, left, sums)
    places = row_pointers(picked)
    bounds = places[indptr]
    on_host = on.to_host(on.xp.concatenate((bounds, bad)))  # one wait for all
    ends, wrong = on_host[: len(indptr)], on_host[len(indptr) :]
    _refuse(int(wrong.argmax()) if wrong.any() else -1)
    return Draws(cuda.compact(places, int(ends[-1])), bounds[1:] - bounds[:-1], left, bounds, ends)


def _refuse(row: int) -> None:
    if row >= 0:
        raise ValueError(f"row {row} has weights that are negative or not finite, or whose sum is not finite")


def _selected_compiled(indptr: Array, selected: Array, count: int, keys: Array) -> Draws:
    lengths = indptr[selected + 1] - indptr[selected]
    most = longest(lengths)
    count = min(count, most)
    positions = np.empty(int(np.minimum(lengths, count).sum()), np.int64)
    counts = np.empty(len(selected), np.int64)
    room = np.zeros(most, np.uint8), np.empty(most), positions, counts
    total = host.built().sample_selected_rows(indptr, int(indptr[-1]), selected, keys, *room, count=count)
    return Draws(positions[:total], counts, None)


def _selected_numpy(indptr: Array, selected: Array, count: int, keys: Array) -> Draws:
    first, lengths = indptr[selected], indptr[selected + 1] - indptr[selected]
    bounds = row_pointers(lengths)
    drawn = draw(bounds, np.ones(int(bounds[-1])), count, keys)
    return drawn._replace(positions=drawn.positions + np.repeat(first - bounds[:-1], drawn.counts))


def _selected_on_gpu(indptr: Array, selected: Array, count: int, keys: Array) -> Draws:
    """Draw on a GPU, and wait for how many were drawn."""
    return Draws(*cuda.sample_ones(indptr, selected, count, keys), None)


def _inclusion_on_host(weights: Array, drawn: Draws, keys: Array) -> Array:
    return -np.expm1(-weights * array_draw.ring_times(drawn.remaining, keys)[owners(drawn.counts)])


def _inclusion_on_gpu(weights: Array, drawn: Draws, keys: Array) -> Array:
    return cuda.inclusion(weights, drawn.bounds, drawn.remaining, keys)


def _keys_on_host(vertices: Stack, keys: Array) -> Array:
    return array_draw.row_keys(keys[vertices.owners], vertices.ids)


def _keys_on_gpu(vertices: Stack, keys: Array) -> Array:
    return cuda.row_keys(vertices.arrays, keys)


KERNELS = KernelTable(
    numpy=[
        Kernels({
            "draw": partial(_draw_on_host, _mark_compiled), "draw_selected": _selected_compiled,
        }, usable=host.usable),
        Kernels({
            "draw": partial(_draw_on_host, array_draw.mark), "draw_selected": _selected_numpy,
            "inclusion": _inclusion_on_host, "stack_keys": _keys_on_host,
        }),
    ],
    cupy=[
        Kernels({
            "draw": _draw_on_gpu, "draw_selected": _selected_on_gpu, "inclusion": _inclusion_on_gpu,
            "stack_keys": _keys_on_gpu,
        })
    ],
)  # fmt: skip

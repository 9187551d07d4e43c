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

from typing import Any, NamedTuple

import numpy as np

from distgnn import rng
from distgnn.arrays import backend
from distgnn.arrays.canonical import canonical
from distgnn.local import cuda, host
from distgnn.local.csr_rows import owners, row_pointers

Array = Any
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draws(NamedTuple):
    """What was drawn from the rows of a matrix.

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


def sample_rows(P: Any, count: int, keys: Array) -> Any:
    """`count` distinct columns of every row of P, all columns of positive weight where there are no more.

    Args:
        P: (m, n) sparse, of SciPy or CuPy; row i is a distribution up to a factor. Columns of weight 0 are
            never drawn.
        keys: uint64 (m), of :func:`row_keys`: samples don't depend on where rows stand. CuPy's if P is.

    Returns:
        (m, n) CSR, of SciPy or CuPy as P, with the drawn entries of P.

    Raises:
        ValueError: a weight that is negative, infinite or not a number, or a negative `count`.
    """
    P = P.tocsr() if _on_gpu(keys) else canonical(P)
    if _on_gpu(keys) and not P.has_sorted_indices:
        P = P.copy()
        P.sort_indices()
    drawn = draw(P.indptr, P.data.astype(np.float64), count, keys)
    entries = P.data[drawn.positions], P.indices[drawn.positions], row_pointers(drawn.counts)
    return type(P)(entries, shape=P.shape)


def row_keys(keys: Array, vertices: Array) -> Array:
    """uint64 (m): keys of the rows of m vertices, from theirs of (seed, epoch, minibatch, layer)."""
    return rng.splitmix64(rng.splitmix64(vertices.astype(np.uint64)) ^ keys)


def draw(
    indptr: Array, weights: Array, count: int, keys: Array, remaining: bool = False, ends: Any = None,
    sums: Array = None,
) -> Draws:  # fmt: skip
    """Draw from the rows of a CSR matrix with these row pointers and weights (float64). A GPU is waited for
    once, or twice where `ends`, its row pointers on the host, are not given.

    Time: one pass over the entries and O(count · log(length)) per row. Rows of very unequal weights take up
    to `count` passes. Raises as :func:`sample_rows`.
    """
    if count < 0:
        raise ValueError(f"cannot draw {count} columns from a row")
    xp, ends = backend.module(keys), indptr if ends is None else ends
    indptr = xp.ascontiguousarray(indptr, np.int64)
    count = min(count, longest(ends[1:] - ends[:-1]))
    picked = xp.empty(len(weights), np.uint8)
    left = xp.empty((len(keys), count + 1)) if remaining else None
    if _on_gpu(keys):
        return _draw_on_gpu(indptr, weights, count, keys, picked, left, sums)
    kernel = _draw_compiled if host.module() is not None else _draw_numpy
    _refuse(kernel(indptr, weights, count, keys, picked, left))
    positions = np.flatnonzero(picked.view(bool))
    bounds = np.searchsorted(positions, indptr)
    return Draws(positions, np.diff(bounds), left, bounds, bounds)


def _draw_on_gpu(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, left: Array | None, sums: Array
) -> Draws:
    on = backend.of(keys)
    bad = cuda.draw_weighted(indptr, weights, count, keys, picked, left, sums)
    places = row_pointers(picked)
    bounds = places[indptr]
    told = on.to_host(on.xp.concatenate((bounds, bad)))  # one wait for all
    ends, wrong = told[: len(indptr)], told[len(indptr) :]
    _refuse(int(wrong.argmax()) if wrong.any() else -1)
    return Draws(cuda.compact(places, int(ends[-1])), bounds[1:] - bounds[:-1], left, bounds, ends)


def _refuse(row: int) -> None:
    if row >= 0:
        raise ValueError(f"row {row} has weights that are negative or not finite, or whose sum is not finite")


def draw_selected(indptr: Array, selected: Array, count: int, keys: Array) -> Draws:
    """:func:`draw` from the rows ``A[selected]`` with all weights 1, as positions in A: nothing is copied.

    Args:
        indptr: int64, of A; selected: int64 (m), rows of A; keys: uint64 (m).

    Time: O(count) per row longer than twice `count`; on a GPU O(count² / 32) per row longer than `count`.
    """
    if _on_gpu(keys):
        return Draws(*cuda.sample_ones(indptr, selected, count, keys), None)  # waits for how many
    first, lengths = indptr[selected], indptr[selected + 1] - indptr[selected]
    if (kernels := host.module()) is None:
        bounds = row_pointers(lengths)
        drawn = draw(bounds, np.ones(int(bounds[-1])), count, keys)
        return drawn._replace(positions=drawn.positions + np.repeat(first - bounds[:-1], drawn.counts))
    most = longest(lengths)
    count = min(count, most)
    positions = np.empty(int(np.minimum(lengths, count).sum()), np.int64)
    counts = np.empty(len(selected), np.int64)
    room = np.zeros(most, np.uint8), np.empty(most), positions, counts
    total = kernels.sample_selected_rows(indptr, int(indptr[-1]), selected, keys, *room, count=count)
    return Draws(positions[:total], counts, None)


def longest(lengths: Array) -> int:
    """The largest of some row lengths, 0 of none: no row has more to draw."""
    return int(lengths.max()) if lengths.size else 0


def _on_gpu(keys: Any) -> bool:
    return not isinstance(keys, np.ndarray)


def _draw_compiled(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, left: Array | None
) -> int:
    prefix = np.empty(longest(np.diff(indptr)))
    return host.built().sample_rows(indptr, weights, keys, picked, left, prefix, count=count)


def _draw_numpy(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, left: Array | None
) -> int:
    """The kernel in NumPy, row by row; returns the first bad row, or -1."""
    for row, key in enumerate(keys.tolist()):
        entries = slice(int(indptr[row]), int(indptr[row + 1]))
        own = weights[entries]
        if not np.isfinite(own).all() or (own < 0).any():
            return row
        before = np.zeros(count + 1) if left is None else left[row]
        if np.count_nonzero(own) <= count:
            picked[entries], before[:] = own > 0, 0
        elif not _draw_row(own, count, key, picked[entries], before):
            return row
    return -1


def _draw_row(weights: Array, count: int, state: int, picked: Array, left: Array) -> bool:
    """Draw from one row into `picked` and `left`; False where the sum of its weights is not finite."""
    picked[:] = 0
    with np.errstate(over="ignore"):
        prefix = np.cumsum(weights)
    total, drawn = float(prefix[-1]), 0.0
    if np.isinf(total):
        return False
    for j in range(count + 1):
        # at most every second draw is a repeat, and what remains is known to the last bits
        if drawn > total / 2:
            prefix = np.cumsum(np.where(picked, 0.0, weights))
            total, drawn = float(prefix[-1]), 0.0
        left[j] = total - drawn
        while j < count:
            state, uniform = _next_uniform(state)
            i = int(np.searchsorted(prefix, uniform * total, side="right"))
            if i < len(weights) and not picked[i]:
                picked[i] = 1
                drawn += float(weights[i])
                break
    return True


def _next_uniform(state: int) -> tuple[int, float]:
    """The next state of a SplitMix64 generator, and its output as a float64 in [0, 1)."""
    word = rng.splitmix64(np.array([state], np.uint64))[0]
    return (state + int(_GOLDEN)) & (1 << 64) - 1, float(word >> np.uint64(11)) * 2.0**-53


def inclusion(weights: Array, drawn: Draws, keys: Array) -> Array:
    """p (float64), one per drawn column: Σ_drawn x / p estimates a sum over the columns without bias.

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
    if _on_gpu(keys):
        return cuda.inclusion(weights, drawn.bounds, drawn.remaining, keys)
    return -np.expm1(-weights * ring_times(drawn.remaining, keys)[owners(drawn.counts)])


def ring_times(remaining: Array, keys: Array) -> Array:
    """τ of every row, as told above."""
    steps = np.arange(remaining.shape[1], dtype=np.uint64) * _GOLDEN
    # Another hash of the keys than the draws' states; half a step off zero: no clock rings at once or never.
    words = rng.splitmix64(rng.splitmix64(~keys)[:, None] + steps[None, :])
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    with np.errstate(divide="ignore"):
        return (-np.log1p(-uniform) / remaining).sum(axis=1)

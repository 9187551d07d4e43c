"""Distinct entries drawn from rows of a sparse matrix: those of :mod:`distgnn.sampling.rows`, to the bit."""

from __future__ import annotations

import numpy as np

from distgnn.local.csr_rows import row_pointers
from distgnn.local.cuda.extract import row_lengths
from distgnn.local.cuda.launch import WARP, Array, blocks_for, check, launch, library

FILE = "sample.cu"


def sample_weighted(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, remaining: Array = None
) -> int:
    """Draw like :func:`draw_weighted`; return the first bad row, or -1, for which it waits."""
    bad = draw_weighted(indptr, weights, count, keys, picked, remaining)
    return int(bad.argmax()) if bool(bad.any()) else -1


def draw_weighted(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, remaining: Array = None,
    sums: Array = None,
) -> Array:  # fmt: skip
    """Draw by weight, as ``kernels/sample.cu`` says, into `picked` and `remaining` (or None).

    Args:
        sums: float64, the prefix sums of every row, added up from its beginning, where they are known and all
            weights are positive: then no pass over a row is made. Left as scratch.

    Returns uint8, one per row: 1 where a weight is negative or not finite, or the sum is not finite. Without
    `sums` takes 8 bytes per entry.
    """
    xp, m = library(keys), keys.size
    check("sample_weighted", (m + 1,), np.int64, indptr=indptr)
    check("sample_weighted", weights.shape[:1], np.float64, weights=weights)
    check("sample_weighted", (m,), np.uint64, keys=keys)
    check("sample_weighted", weights.shape, np.uint8, picked=picked)
    check("sample_weighted", (m, count + 1), np.float64, remaining=remaining)
    check("sample_weighted", weights.shape, np.float64, sums=sums)
    prefix, bad = xp.empty(weights.shape, np.float64) if sums is None else sums, xp.empty(m, np.uint8)
    if sums is not None:
        picked[...] = 0
    sizes = np.int64(m), np.int64(count)
    arrays = indptr, weights, keys, picked, remaining, prefix, np.int32(sums is not None), bad
    launch(xp, FILE, "sample_weighted", blocks_for(m * WARP), *sizes, *arrays)
    return bad


def inclusion(weights: Array, bounds: Array, remaining: Array, keys: Array) -> Array:
    """Compute the probabilities of :func:`distgnn.local.draw.inclusion`.

    weights: float64, of what was drawn; bounds: int64 (m + 1), where that of each row begins; remaining (m, s
    + 1), of :func:`draw_weighted`.
    """
    xp, m = library(keys), keys.size
    check("inclusion", weights.shape[:1], np.float64, weights=weights)
    check("inclusion", (m + 1,), np.int64, bounds=bounds)
    check("inclusion", (m, *remaining.shape[1:]), np.float64, remaining=remaining)
    tau, p = xp.empty(m, np.float64), xp.empty(weights.shape, np.float64)
    steps = np.int64(m), np.int64(remaining.shape[1])
    launch(xp, FILE, "ring_times", blocks_for(m * WARP), *steps, keys, remaining, tau)
    sizes = np.int64(weights.size), np.int64(m)
    launch(xp, FILE, "inclusion", blocks_for(weights.size), *sizes, bounds, weights, tau, p)
    return p


def sample_ones(indptr: Array, selected: Array, count: int, keys: Array) -> tuple[Array, Array]:
    """Draw from rows of ones, without a pass over them, as ``kernels/sample.cu`` says.

    Returns int64 positions of the entries drawn, ascending in every row, and int64 (m), how many of every
    row.

    Args:
        selected: int64 (m), rows of the matrix, not checked. keys: uint64 (m).

    Time: O(count² / 32) per row that is longer than `count`. Waits for the sum of the counts.
    """
    xp, m = library(keys), keys.size
    check("sample_ones", selected.shape, np.uint64, keys=keys)
    counts = xp.minimum(row_lengths(indptr, selected), count)
    offsets = row_pointers(counts)
    total = int(offsets[-1])
    order, positions = xp.empty(total, np.int64), xp.empty(total, np.int64)
    sizes = np.int64(m), np.int64(count)
    arrays = indptr, selected, keys, offsets, order, positions
    launch(xp, FILE, "sample_ones", blocks_for(m * WARP), *sizes, *arrays)
    return positions, counts

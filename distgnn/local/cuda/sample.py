"""Distinct entries drawn from rows of a sparse matrix: those of :mod:`distgnn.sampling.rows`, to the bit."""

from __future__ import annotations

import numpy as np

from distgnn.local.csr_rows import row_pointers
from distgnn.local.cuda.launch import WARP, Array, blocks_for, check, launch, library

FILE = "sample.cu"


def sample_weighted(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, remaining: Array = None
) -> int:
    """Draw by weight, as ``kernels/sample.cu`` says, into `picked` and `remaining` (or None).

    Returns -1, or the first row with a weight that is negative or not finite, or a sum that is not finite.
    Takes 8 bytes per entry, and waits for the kernel.
    """
    xp, m = library(keys), keys.size
    check("sample_weighted", (m + 1,), np.int64, indptr=indptr)
    check("sample_weighted", weights.shape[:1], np.float64, weights=weights)
    check("sample_weighted", (m,), np.uint64, keys=keys)
    check("sample_weighted", weights.shape, np.uint8, picked=picked)
    check("sample_weighted", (m, count + 1), np.float64, remaining=remaining)
    prefix, bad = xp.empty(weights.shape, np.float64), xp.empty(m, np.uint8)
    sizes = np.int64(m), np.int64(count)
    arrays = indptr, weights, keys, picked, remaining, prefix, bad
    launch(xp, FILE, "sample_weighted", blocks_for(m * WARP), *sizes, *arrays)
    return int(bad.argmax()) if bool(bad.any()) else -1


def sample_ones(indptr: Array, selected: Array, count: int, keys: Array) -> tuple[Array, Array]:
    """Draw from rows of ones, without a pass over them, as ``kernels/sample.cu`` says: int64 positions of the
    entries drawn, ascending in every row, and int64 (m), how many of every row.

    Args:
        selected: int64 (m), rows of the matrix, not checked. keys: uint64 (m).

    Time: O(count² / 32) per row that is longer than `count`. Waits for the sum of the counts.
    """
    xp, m = library(keys), keys.size
    check("sample_ones", indptr.shape[:1], np.int64, indptr=indptr)
    check("sample_ones", selected.shape[:1], np.int64, selected=selected)
    check("sample_ones", selected.shape, np.uint64, keys=keys)
    counts = xp.minimum(indptr[selected + 1] - indptr[selected], count)
    offsets = row_pointers(counts)
    order, positions = (xp.empty(int(offsets[-1]), np.int64) for _ in range(2))
    sizes = np.int64(m), np.int64(count)
    arrays = indptr, selected, keys, offsets, order, positions
    launch(xp, FILE, "sample_ones", blocks_for(m * WARP), *sizes, *arrays)
    return positions, counts

"""Distinct entries drawn from rows of a sparse matrix: those of :mod:`distgnn.sampling.rows`, to the bit."""

from __future__ import annotations

import numpy as np

from distgnn.local.csr_rows import row_pointers
from distgnn.local.cuda.launch import WARP, Array, blocks_for, check, launch, library

FILE = "sample.cu"


def sample_weighted(
    indptr: Array, weights: Array, count: int, keys: Array, picked: Array, remaining: Array = None
) -> int:
    """Draw `count` entries of every row by weight, or all of positive weight where there are no more.

    Args:
        indptr: int64 (m + 1), from 0 to nnz; weights: float64 (nnz); keys: uint64 (m).
        picked: uint8 (nnz), receives 1 where an entry was drawn, else 0.
        remaining: float64 (m, count + 1), receives what :class:`distgnn.sampling.rows.Draws` says, or None.

    Returns:
        -1, or the first row with a weight that is negative or not finite, or a sum that is not finite.

    Memory: 8 bytes per entry. Waits for the kernel.
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
    """Draw `count` entries of rows of ones, or all where there are no more, without a pass over the rows.

    Args:
        indptr: int64, of a matrix; selected: int64 (m), its rows, not checked; None: all. keys: uint64 (m).

    Returns:
        positions: int64, the entries drawn, ascending in every row; counts: int64 (m), how many of every row.

    Time: O(count² / 32) per row that is longer than `count`. Waits for the sum of the counts.
    """
    xp, m = library(keys), keys.size
    lengths = indptr[1:] - indptr[:-1] if selected is None else indptr[selected + 1] - indptr[selected]
    check("sample_ones", indptr.shape[:1], np.int64, indptr=indptr)
    check("sample_ones", (m,), np.int64, rows=lengths, selected=selected)
    check("sample_ones", (m,), np.uint64, keys=keys)
    counts = xp.minimum(lengths, count)
    offsets = row_pointers(counts)
    order, positions = (xp.empty(int(offsets[-1]), np.int64) for _ in range(2))
    sizes = np.int64(m), np.int64(count)
    arrays = indptr, selected, keys, offsets, order, positions
    launch(xp, FILE, "sample_ones", blocks_for(m * WARP), *sizes, *arrays)
    return positions, counts

"""Distinct entries drawn from the rows of a sparse matrix, a warp per row, as :mod:`distgnn.sampling.rows`
defines them, to the bit. What is drawn depends on the rows and keys alone.
"""

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
        remaining: float64 (m, count + 1), receives what :class:`distgnn.sampling.rows.Draws` says; None: not
            asked for.

    Returns:
        -1, or the first row with a weight that is negative or not finite, or a sum that is not finite.

    Memory: 8 bytes per entry besides. Waits for the kernel, whose answer is read.
    """
    xp, m = library(keys), keys.size
    for name, array, shape, dtype in (
        ("indptr", indptr, (m + 1,), np.int64),
        ("weights", weights, weights.shape[:1], np.float64),
        ("keys", keys, (m,), np.uint64),
        ("picked", picked, weights.shape, np.uint8),
        ("remaining", remaining, (m, count + 1), np.float64),
    ):
        check(f"sample_weighted: {name}", array, shape, dtype)
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
    for name, array, shape, dtype in (
        ("indptr", indptr, indptr.shape[:1], np.int64),
        ("rows", lengths, (m,), np.int64),
        ("selected", selected, (m,), np.int64),
        ("keys", keys, (m,), np.uint64),
    ):
        check(f"sample_ones: {name}", array, shape, dtype)
    counts = xp.minimum(lengths, count)
    offsets = row_pointers(counts)
    order, positions = (xp.empty(int(offsets[-1]), np.int64) for _ in range(2))
    sizes = np.int64(m), np.int64(count)
    arrays = indptr, selected, keys, offsets, order, positions
    launch(xp, FILE, "sample_ones", blocks_for(m * WARP), *sizes, *arrays)
    return positions, counts

"""Rows picked out of, or added into, a dense matrix."""

from __future__ import annotations

import numpy as np

from distgnn.local.cuda.launch import (
    WARP,
    Array,
    address,
    blocks_for,
    c_type,
    check,
    launch,
    library,
    power_of_two,
)

FILE = "rows.cu"


def gather_rows(X: Array, rows: Array, out: Array) -> Array:
    """``out[i] = X[rows[i]]``; X (m, f) and out (k, f) of 4 or 8 bytes per element, rows int64 (k)."""
    check("gather_rows: X", X, X.shape, X.dtype)
    check("gather_rows: rows", rows, rows.shape, np.int64)
    check("gather_rows: out", out, (rows.size, X.shape[1]), X.dtype)
    # The widest unit that both matrices are made of.
    nbytes = X.shape[1] * X.dtype.itemsize
    unit, width = next(
        (name, nbytes // size)
        for name, size in (("uint4", 16), ("uint2", 8), ("unsigned", 4))
        if nbytes % size == 0 and address(X) % size == 0 and address(out) % size == 0
    )
    if nbytes:
        lanes = _lanes(width)
        sizes = np.int64(rows.size), rows, X, np.int32(width), out
        launch(library(X), FILE, f"gather_rows<{unit},{lanes}>", blocks_for(rows.size * lanes), *sizes)
    return out


def scatter_add(X: Array, rows: Array, out: Array) -> Array:
    """``out[rows[i]] += X[i]``; X (k, f) and out (m, f) of float32 or float64, rows int64 (k), distinct."""
    f = out.shape[1]
    check("scatter_add: X", X, (rows.size, f), out.dtype)
    check("scatter_add: rows", rows, rows.shape, np.int64)
    check("scatter_add: out", out, out.shape, out.dtype)
    if X.size:
        lanes = _lanes(f)
        sizes = np.int64(rows.size), rows, X, np.int32(f), out
        launch(library(X), FILE, f"add_rows<{c_type(X)},{lanes}>", blocks_for(rows.size * lanes), *sizes)
    return out


def _lanes(width: int) -> int:
    return min(WARP, power_of_two(2 * width - 1))

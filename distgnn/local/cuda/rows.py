"""Rows picked out of, or added into, a dense matrix."""

from __future__ import annotations

import numpy as np

from distgnn.local.cuda.launch import Array, address, blocks_for, c_type, check, lanes_for, launch, library

FILE = "rows.cu"


def gather_rows(X: Array, rows: Array, out: Array) -> Array:
    """Compute ``out[i] = X[rows[i]]``; X (m, f), out (k, f) of 4 or 8 bytes per element, rows int64 (k)."""
    check("gather_rows", X.shape, X.dtype, X=X)
    check("gather_rows", rows.shape, np.int64, rows=rows)
    check("gather_rows", (rows.size, X.shape[1]), X.dtype, out=out)
    # The widest unit that both matrices are made of.
    nbytes = X.shape[1] * X.dtype.itemsize
    unit, width = next(
        (name, nbytes // size)
        for name, size in (("uint4", 16), ("uint2", 8), ("unsigned", 4))
        if nbytes % size == 0 and address(X) % size == 0 and address(out) % size == 0
    )
    if nbytes:
        lanes = lanes_for(width)
        sizes = np.int64(rows.size), rows, X, np.int32(width), out
        launch(library(X), FILE, f"gather_rows<{unit},{lanes}>", blocks_for(rows.size * lanes), *sizes)
    return out


def scatter_add(X: Array, rows: Array, out: Array) -> Array:
    """Compute ``out[rows[i]] += X[i]``, and return ``out``.

    X (k, f) and out (m, f) of float32 or float64, rows int64 (k), distinct.
    """
    f = out.shape[1]
    check("scatter_add", (rows.size, f), out.dtype, X=X)
    check("scatter_add", rows.shape, np.int64, rows=rows)
    check("scatter_add", out.shape, out.dtype, out=out)
    if X.size:
        lanes = lanes_for(f)
        sizes = np.int64(rows.size), rows, X, np.int32(f), out
        launch(library(X), FILE, f"add_rows<{c_type(X)},{lanes}>", blocks_for(rows.size * lanes), *sizes)
    return out

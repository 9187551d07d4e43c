"""Rows picked out of, or added into, a dense matrix: packing for exchanges that send only the rows needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.local.cuda.csr import spmm
from distgnn.local.cuda.launch import Array, address, blocks_for, c_type, check, launch, library, power_of_two

FILE = "rows.cu"
WARP = 32


def gather_rows(X: Array, rows: Array, out: Array = None) -> Array:
    """``out[i] = X[rows[i]]``.

    Args:
        X: (m, f) C-contiguous, elements of 2, 4 or 8 bytes; rows: int32 or int64 (k), in 0..m-1, in any
            order, repeated or not.
        out: (k, f) like X; made when missing.

    Returns:
        ``out``.
    """
    xp = library(X)
    f = X.shape[1]
    if out is None:
        out = xp.empty((rows.size, f), X.dtype)
    check("gather_rows: X", X, X.shape, X.dtype)
    check("gather_rows: out", out, (rows.size, f), X.dtype)
    # The widest unit that both matrices are made of.
    nbytes = f * X.dtype.itemsize
    unit, width = next(
        (name, nbytes // size)
        for name, size in (("uint4", 16), ("uint2", 8), ("unsigned", 4), ("unsigned short", 2))
        if nbytes % size == 0 and address(X) % size == 0 and address(out) % size == 0
    )
    if nbytes:
        lanes = _lanes(width)
        name = f"gather_rows<{unit},{c_type(rows)},{lanes}>"
        launch(
            xp, FILE, name, blocks_for(rows.size * lanes), np.int64(rows.size), rows, X, np.int32(width), out
        )
    return out


def add_rows(X: Array, rows: Array, out: Array) -> Array:
    """``out[rows[i]] += X[i]`` for rows of which none is repeated. Returns ``out``."""
    f = X.shape[1]
    if X.size:
        lanes = _lanes(f)
        name = f"add_rows<{c_type(X)},{c_type(rows)},{lanes}>"
        blocks = blocks_for(rows.size * lanes)
        launch(library(X), FILE, name, blocks, np.int64(rows.size), rows, X, np.int32(f), out)
    return out


class ScatterAdd:
    """Adds rows into the rows of another matrix, in an order that is fixed: the sums have the same bits in
    every run.

    Built once for a list of target rows and used for any number of matrices.

    Args:
        rows: int32 or int64 (k), in 0..m-1; repeated rows are summed in the order in which they are listed.
        m: rows of the target.
        dtype: float32 or float64, of the matrices.
    """

    def __init__(self, rows: Array, m: int, dtype: Any) -> None:
        xp = library(rows)
        self.rows, self.m, self.dtype = rows, m, np.dtype(dtype)
        counts = xp.bincount(rows, minlength=m) if rows.size else xp.zeros(m, np.int64)
        self.matrix: CSR | None = None
        if rows.size and int(counts.max()) > 1:
            # Row i of this matrix lists what is added to row i; SpMM with weights of one does the sums.
            shape, k = (m, rows.size), rows.size
            buffer = xp.empty(CSR.nbytes(shape, k, np.int32, dtype), np.uint8)
            self.matrix = CSR(shape, k, np.int32, self.dtype, buffer)
            self.matrix.data[...] = 1
            self.matrix.indices[...] = xp.argsort(rows, kind="stable")
            self.matrix.indptr[0] = 0
            self.matrix.indptr[1:] = xp.cumsum(counts)

    def __call__(self, X: Array, out: Array) -> Array:
        """``out[rows[i]] += X[i]`` for all i; X (k, f), out (m, f), C-contiguous. Returns ``out``."""
        f = out.shape[1]
        check("scatter add: X", X, (self.rows.size, f), self.dtype)
        check("scatter add: out", out, (self.m, f), self.dtype)
        if self.matrix is not None:
            return spmm(self.matrix, X, out, accumulate=True, weights="unit")
        return add_rows(X, self.rows, out)


def _lanes(width: int) -> int:
    return min(WARP, power_of_two(2 * width - 1))

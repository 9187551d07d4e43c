"""Rows picked out of, or added into, a dense block: what exchanges pack and unpack."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.local import cuda, host

Array = Any


def gather_rows(X: Array, rows: Array, out: Array = None) -> Array:
    """``out[i] = X[rows[i]]``: X (m, f) C-contiguous; rows int64 (k), in any order, on the same device;
    ``out`` (k, f) like X, made when missing. Returns ``out``.
    """
    on = backend.of(X)
    out = on.empty((rows.size, X.shape[1]), X.dtype) if out is None else out
    ledger.charge("spmm", "gather rows", touched=rows.nbytes + 2 * out.nbytes)
    with ledger.timed("spmm", "gather rows", synchronize=on.synchronize):
        if not on.numbers:
            pass
        elif on.on_device:
            cuda.gather_rows(X, rows, out)
        elif host.module() is not None:
            host.built().gather(X, rows, out)
        elif out.size:
            np.take(X, rows, axis=0, out=out, mode="clip")
    return out


def scatter_add(X: Array, rows: Array, out: Array) -> Array:
    """``out[rows[i]] += X[i]``, the adjoint of :func:`gather_rows`: X (k, f) C-contiguous; rows int64 (k),
    distinct, in any order, on the same device; ``out`` (m, f) like X. Returns ``out``.
    """
    on = backend.of(X)
    ledger.charge("spmm", "scatter rows", touched=rows.nbytes + 3 * X.nbytes)
    with ledger.timed("spmm", "scatter rows", synchronize=on.synchronize):
        if not on.numbers:
            pass
        elif on.on_device:
            cuda.scatter_add(X, rows, out)
        elif host.module() is not None and X.dtype.char in "fd":
            host.built().scatter_add(X, rows, out, isa=host.isa())
        else:
            out[rows] += X
    return out

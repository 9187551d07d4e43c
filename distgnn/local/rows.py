"""Rows picked out of, or added into, a dense block: what exchanges pack and unpack."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.arrays.kernels import Kernels, KernelTable
from distgnn.local import cuda, host

Array = Any


def gather_rows(X: Array, rows: Array, out: Array = None) -> Array:
    """Compute ``out[i] = X[rows[i]]``, and return ``out``.

    X (m, f) C-contiguous; rows int64 (k), in any order, on the same device; ``out`` (k, f) like X, made when
    missing.
    """
    on = backend.of(X)
    out = on.empty((rows.size, X.shape[1]), X.dtype) if out is None else out
    ledger.charge("spmm", "gather rows", touched=rows.nbytes + 2 * out.nbytes)
    with ledger.timed("spmm", "gather rows", on=on):
        KERNELS.kernel("gather_rows", X)(X, rows, out)
    return out


def scatter_add(X: Array, rows: Array, out: Array) -> Array:
    """Compute ``out[rows[i]] += X[i]``, the adjoint of :func:`gather_rows`, and return ``out``.

    X (k, f) C-contiguous; rows int64 (k), distinct, in any order, on the same device; ``out`` (m, f) like X.
    """
    ledger.charge("spmm", "scatter rows", touched=rows.nbytes + 3 * X.nbytes)
    with ledger.timed("spmm", "scatter rows", on=backend.of(X)):
        KERNELS.kernel("scatter_add", X)(X, rows, out)
    return out


def _gather_compiled(X: Array, rows: Array, out: Array) -> None:
    if X.shape[1] == 1 and X.size:  # single numbers
        np.take(X.reshape(-1), rows, out=out.reshape(-1), mode="clip")
        return
    host.built().gather(X, rows, out)


def _gather_numpy(X: Array, rows: Array, out: Array) -> None:
    if out.size:
        np.take(X, rows, axis=0, out=out, mode="clip")


def _scatter_compiled(X: Array, rows: Array, out: Array) -> None:
    host.built().scatter_add(X, rows, out, isa=host.isa())


def _scatter_numpy(X: Array, rows: Array, out: Array) -> None:
    out[rows] += X


KERNELS = KernelTable(
    numpy=[
        Kernels({"gather_rows": _gather_compiled}, usable=host.usable),
        Kernels({"scatter_add": _scatter_compiled}, "fd", host.usable),
        Kernels({"gather_rows": _gather_numpy, "scatter_add": _scatter_numpy}),
    ],
    cupy=[Kernels({"gather_rows": cuda.gather_rows, "scatter_add": cuda.scatter_add})],
)

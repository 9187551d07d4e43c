"""Products over semirings on a GPU equal those of NumPy; the best, and their codes, to the bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import aggregate, cuda
from loops import each

from .semirings import before, cases


def on_gpu(gpu, A, index=np.int32):
    arrays = {name: gpu.asarray(getattr(A, name)) for name in ("indptr", "indices", "data")}
    arrays = {name: x if name == "data" else x.astype(index) for name, x in arrays.items()}
    return SimpleNamespace(shape=A.shape, nnz=A.nnz, dtype=A.dtype, pattern={}, **arrays)


@each("dtype", [np.float32, np.float64])
@each("f", [1, 2, 5, 8, 16, 40])
def test_best_and_back(gpu, dtype, f):
    host = backend.get("numpy")
    G = np.random.default_rng(2).standard_normal((23, f)).astype(dtype)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-13, "atol": 1e-13}
    for how, codes, matrix, B in cases(dtype, f):
        A = CSR.from_scipy(matrix, host, dtype)
        index = np.int64 if f == 40 else np.int32
        there = codes._replace(table=None if codes.table is None else gpu.asarray(codes.table))
        for merge in (False, True):
            T, C = before(how, (23, f), dtype)
            U, D = gpu.asarray(T), gpu.asarray(C)
            cuda.best(on_gpu(gpu, A, index), gpu.asarray(B), there, how, U, D, merge)
            aggregate._best(A, B, codes, how, T, C, merge)
            np.testing.assert_array_equal(gpu.to_host(U), T)
            np.testing.assert_array_equal(gpu.to_host(D), C)
        out, expected, At = gpu.nan(B.shape, dtype), np.empty(B.shape, dtype), A.transposed(host)
        cuda.best_back(on_gpu(gpu, At, index), gpu.asarray(G), D, there, how, out)
        aggregate._best_back(At, G, C, codes, how, expected)
        np.testing.assert_allclose(gpu.to_host(out), expected, **close)


def test_other_arrays_are_refused(gpu):
    how, codes, matrix, B = next(cases(np.float32, 4))
    A = on_gpu(gpu, CSR.from_scipy(matrix, backend.get("numpy"), np.float32))
    G = np.ones((23, 4), np.float32)
    T, C = gpu.asarray(G), gpu.asarray(G.astype(np.int32))
    with pytest.raises(ValueError, match="C must be a C-contiguous int32 array"):
        cuda.best(A, gpu.asarray(B), codes, how, T, T, False)
    with pytest.raises(ValueError, match="B must be"):
        cuda.best(A, gpu.asarray(B.T.copy()), codes, how, T, C, False)

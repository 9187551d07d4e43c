"""Compiled products over semirings equal those of NumPy to the bit, which equal loops over single entries."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import aggregate, host
from loops import each

from .semirings import before, cases

pytestmark = pytest.mark.skipif(not host.usable(), reason="the host kernels are not built")
ISAS = range(len(host.built().isas())) if host.usable() else ()


def of_entries(A, B, codes, how, T, C, merge):
    """Sort what there is for each number: NaN first, then by size, then by code."""
    sign = 1 if how.least else -1
    for i, k in np.ndindex(T.shape):
        found = [(T[i, k], C[i, k])] if merge and C[i, k] >= 0 else []
        for p in range(A.indptr[i], A.indptr[i + 1]):
            j, b = A.indices[p], B[A.indices[p], k]
            with np.errstate(invalid="ignore"):
                x = {"times": A.data[p] * b, "plus": A.data[p] + b, "pattern": b}[how.combine]
            found.append((x, codes.first + j if codes.table is None else codes.table[j]))
        found.sort(key=lambda one: (not np.isnan(one[0]), 0 if np.isnan(one[0]) else sign * one[0], one[1]))
        T[i, k], C[i, k] = found[0] if found else (sign * np.inf, -1)


@each("dtype", [np.float32, np.float64])
@each("f", [1, 3, 8])
def test_numpy(dtype, f):
    for how, codes, matrix, B in cases(dtype, f):
        A = CSR.from_scipy(matrix, backend.get("numpy"), dtype)
        for merge in (False, True):
            (T, C), (U, D) = (before(how, (A.shape[0], f), dtype) for _ in range(2))
            aggregate._best(A, B, codes, how, T, C, merge)
            of_entries(A, B, codes, how, U, D, merge)
            np.testing.assert_array_equal(T, U)
            np.testing.assert_array_equal(C, D)


@pytest.mark.parametrize("isa", ISAS)
@each("dtype", [np.float32, np.float64])
@each("f", [*range(1, 35), 63, 64, 65, 130])
def test_compiled(isa, dtype, f, monkeypatch):
    monkeypatch.setattr(host, "isa", lambda: isa)
    for number, (how, codes, matrix, B) in enumerate(cases(dtype, f)):
        A = CSR.from_scipy(matrix, backend.get("numpy"), dtype)
        if number % 2:
            A.indptr, A.indices = A.indptr.astype(np.int64), A.indices.astype(np.int64)
        for merge in (False, True):
            (T, C), (U, D) = (before(how, (A.shape[0], f), dtype) for _ in range(2))
            aggregate._best_compiled(A, B, codes, how, T, C, merge)
            aggregate._best(A, B, codes, how, U, D, merge)
            np.testing.assert_array_equal(T, U)
            np.testing.assert_array_equal(C, D)


@each("dtype", [np.float32, np.float64])
@each("f", [1, 7, 33])
def test_back(dtype, f):
    G = np.random.default_rng(2).standard_normal((23, f)).astype(dtype)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-13, "atol": 1e-13}
    for how, codes, matrix, B in cases(dtype, f):
        A = CSR.from_scipy(matrix, backend.get("numpy"), dtype)
        T, C = np.empty((23, f), dtype), np.empty((23, f), aggregate.code_type(dtype))
        aggregate._best(A, B, codes, how, T, C, False)
        C[5] = 1000 if codes.places is None else -1  # of another rank's column
        expected = np.zeros(B.shape)
        for i, k in np.argwhere((C >= 0) & (C < 1000)):
            j = C[i, k] - codes.first if codes.places is None else codes.places[C[i, k]]
            expected[j, k] += G[i, k] * (matrix[i, j] if how.combine == "times" else 1)
        for kernel in (aggregate._best_back, aggregate._best_back_compiled):
            out = np.full(B.shape, np.nan, dtype)
            kernel(A.transposed(backend.get("numpy")), G, C, codes, how, out)
            np.testing.assert_allclose(out, expected, **close)


def test_threads_change_nothing(monkeypatch):
    r = np.random.default_rng(4)
    how, codes, matrix, B = next(cases(np.float32, 20))
    A = CSR.from_scipy(matrix[r.integers(0, 23, 1500)], backend.get("numpy"), np.float32)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(host, "threads", lambda threads=threads: threads)
        T, C = np.empty((1500, 20), np.float32), np.empty((1500, 20), np.int32)
        aggregate._best_compiled(A, B, codes, how, T, C, False)
        found.append((T, C))
    np.testing.assert_array_equal(*[C for _, C in found])
    np.testing.assert_array_equal(*[T for T, _ in found])


def test_what_c_cannot_walk_is_refused():
    ends, indices, X = np.array([0, 1, 2]), np.array([0, 1]), np.ones((2, 4))
    T, C, values = np.ones((2, 4)), np.ones((2, 4), np.int64), np.ones(2)
    best, back = host.built().best, host.built().best_back
    refused = [
        (ValueError, best, (ends + 1, indices, values, X, None, T, C)),
        (ValueError, best, (ends, indices, values[:1], X, None, T, C)),
        (ValueError, best, (ends, indices, values, X, C[0], T, C)),
        (ValueError, best, (ends, indices, values, X, None, T[:1], C)),
        (ValueError, best, (ends, indices, values, X, None, X, C)),
        (ValueError, best, (ends, indices, values, X, None, T, T.view(np.int64))),
        (TypeError, best, (ends, indices, values, X, None, T, C.astype(np.int32))),
        (TypeError, best, (ends, indices, values, X.astype(np.float32), None, T, C)),
        (ValueError, back, (ends[:-1], indices, values, X, C, None, T)),
        (ValueError, back, (ends, indices, values, X, C[:1], None, T)),
        (ValueError, back, (ends, indices, values, X, C, None, X)),
        (TypeError, back, (ends, indices, values, X, C, ends.astype(np.int32), T)),
    ]
    for error, call, arguments in refused:
        with pytest.raises(error):
            call(*arguments)

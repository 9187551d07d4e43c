"""Compiled passes over entries equal those of NumPy, for every instruction set, type and number of heads."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import array_edges, edges, host

pytestmark = pytest.mark.skipif(not host.usable(), reason="the host kernels are not built")
ISAS = range(len(host.built().isas())) if host.usable() else ()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("bounds", [[0, 1], [0, 8, 16, 24], [0, 3, 3, 40], [0, 0, 0], [0, 5, 10, 100]])
def test_dots(isa, dtype, index, bounds):
    r = np.random.default_rng(len(bounds))
    A = sp.random_array((30, 50), density=0.2, rng=r, format="csr", dtype=np.float64)
    indptr, indices = A.indptr.astype(index), A.indices.astype(index)
    U, V = (r.standard_normal((rows, bounds[-1] + 3)).astype(dtype)[:, : bounds[-1]] for rows in A.shape)
    out = np.full((A.nnz, len(bounds) - 1), np.nan, dtype)
    host.built().edge_dots(indptr, indices, U, V, np.array(bounds), out, isa=isa)
    rows = np.repeat(np.arange(30), np.diff(A.indptr))
    products = U[rows].astype(np.float64) * V[A.indices]
    expected = [products[:, a:b].sum(axis=1) for a, b in zip(bounds, bounds[1:], strict=False)]
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(out, np.transpose(expected), **close)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("add", [False, True])
def test_products_by_head(dtype, add):
    r = np.random.default_rng(3)
    matrix = sp.random_array((40, 30), density=0.2, rng=r, format="csr", dtype=np.float64)
    A = CSR.from_scipy(matrix, backend.get("numpy"), dtype)
    values, B = r.standard_normal((A.nnz, 3)).astype(dtype), r.standard_normal((30, 14)).astype(dtype)
    start, bounds = r.standard_normal((40, 14)).astype(dtype), [0, 5, 5, 14]
    compiled, plain = start.copy(), start.copy()
    edges.multiply(A, values, B, bounds, compiled, add)
    array_edges.multiply(A, values, B, bounds, plain, add, None)
    np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-5)


def test_what_c_cannot_walk_is_refused():
    ends, indices, bounds = np.array([0, 1, 2]), np.array([0, 1]), np.array([0, 4])
    X = np.ones((2, 4))
    call = host.built().edge_dots
    refused = [
        (ValueError, (ends, indices, X, X, np.array([0, 5]), np.ones((2, 1)))),
        (ValueError, (ends, indices, X, X, np.array([2, 1]), np.ones((2, 1)))),
        (ValueError, (ends, indices, X, X, bounds, np.ones((2, 2)))),
        (ValueError, (ends + 1, indices, X, X, bounds, np.ones((2, 1)))),
        (ValueError, (ends, indices, X[:1], X, bounds, np.ones((2, 1)))),
        (TypeError, (ends, indices, X, X.astype(np.float32), bounds, np.ones((2, 1)))),
        (ValueError, (ends, indices, X, X, bounds, X[:, :1])),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            call(*arguments)

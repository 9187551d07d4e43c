"""Products on the stand-in for CuPy: ways of the kernels that small matrices do not take, and cuSPARSE."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import local
from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.local import cuda
from distgnn.local.cuda import csr, launch

pytestmark = pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)


def matrix(dtype=np.float32):
    """Half of the rows are empty, and one is a hundred times as long as the others."""
    random = np.random.default_rng(0)
    A = sp.random_array((300, 1000), density=0.01, rng=random).toarray()
    A[:150], A[7] = 0, random.standard_normal(1000)
    return sp.csr_array(A, dtype=dtype)


@pytest.mark.parametrize("tuned", ["0", "1"])
@pytest.mark.parametrize("width", [1, 5, 16, 130])
def test_long_rows_and_empty_ones(stand_in, width, tuned, monkeypatch):
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", tuned)
    on, A, random = backend.get("cupy"), matrix(), np.random.default_rng(1)
    B = random.standard_normal((1000, width)).astype(np.float32)
    block, placed = CSR.from_scipy(A, on), on.asarray(B)
    for _ in range(9):  # all variants have their turn
        np.testing.assert_allclose(local.spmm(block, placed).get(), A @ B, rtol=1e-4, atol=1e-4)
    added = local.spmm(block, placed, out=on.asarray(A @ B), accumulate=True)
    np.testing.assert_allclose(added.get(), 2 * (A @ B), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cusparse(stand_in, dtype):
    on, A, random = backend.get("cupy"), matrix(dtype), np.random.default_rng(1)
    block = CSR.from_scipy(A, on)
    for algorithm in (None, *cuda.cusparse.ALGORITHMS):
        B = random.standard_normal((1000, 4)).astype(dtype)
        out = on.asarray(np.ones((300, 4), dtype))
        cuda.spmm_cusparse(block, on.asarray(B), out, True, algorithm)
        np.testing.assert_allclose(out.get(), A @ B + 1, rtol=1e-4, atol=1e-4)


def test_what_kernels_do_not_take(stand_in):
    on = backend.get("cupy")
    whole = CSR.empty((3, 3), 0, np.int64, on)
    with pytest.raises(ValueError, match="must be float32 or float64"):
        cuda.spmm(whole, on.zeros((3, 2), np.int64), on.zeros((3, 2), np.int64))
    with pytest.raises(ValueError, match="no kernel takes int8"):
        launch.c_type(on.zeros((3,), np.int8))
    with pytest.raises(TypeError, match="must be an array or a NumPy scalar"):
        launch.launch(on.xp, "rows.cu", "add_rows<float,1>", 1, 3)


def test_indices_at_odd_addresses_are_copied(stand_in):
    on = backend.get("cupy")
    odd = on.zeros((20,), np.uint8)[4:12].view(np.int64)
    assert launch.address(csr._aligned(odd)) % 8 == 0

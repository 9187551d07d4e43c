"""Products on one rank against SciPy, and the dispatch."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn import local
from distgnn.gallery import awkward
from distgnn.matrix import CSR


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("f", [0, 1, 5, 16, 33])
def test_spmm(backend, dtype, f):
    rng = np.random.default_rng(0)
    for name, A in awkward().items():
        B = rng.standard_normal((A.shape[1], f)).astype(dtype)
        C = rng.standard_normal((A.shape[0], f)).astype(dtype)
        block, on_device = CSR.from_scipy(A, backend, dtype), backend.asarray(B)
        tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == np.float64 else {"rtol": 3e-5, "atol": 3e-5}
        poisoned = backend.asarray(np.full_like(C, np.nan))
        for got, expected in (
            (local.spmm(block, on_device), A @ B),
            (local.spmm(block, on_device, out=poisoned), A @ B),
            (local.spmm(block, on_device, out=backend.asarray(C.copy()), accumulate=True), A @ B + C),
            (local.spmm(block, on_device, accumulate=True), A @ B),
        ):
            np.testing.assert_allclose(backend.to_host(got), expected, err_msg=name, **tolerance)
            assert got.dtype == dtype


def test_spmm_refuses_what_does_not_fit(backend):
    A = CSR.from_scipy(awkward()["prime"], backend)
    n = A.shape[0]
    good = backend.zeros((n, 4), np.float64)
    for B, out, complaint in (
        (backend.zeros((n + 1, 4), np.float64), None, "don't multiply"),
        (backend.zeros((n, 4), np.float32), None, "float32"),
        (backend.zeros((4, n), np.float64).T, None, "C-contiguous"),
        (good, backend.zeros((n, 5), np.float64), "out has shape"),
        (good, backend.zeros((n, 4), np.float32), "out must be"),
        (good, backend.zeros((4, n), np.float64).T, "out must be"),
    ):
        with pytest.raises(ValueError, match=complaint):
            local.spmm(A, B, out=out)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm(backend, trans_a, trans_b):
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((7, 5)), rng.standard_normal((5, 3))
    C = rng.standard_normal((7, 3))
    left = backend.asarray(A.T if trans_a else A)
    right = backend.asarray(B.T if trans_b else B)
    options = {"trans_a": trans_a, "trans_b": trans_b}
    for got, expected in (
        (local.gemm(left, right, **options), A @ B),
        (local.gemm(left, right, out=backend.asarray(C.copy()), **options), A @ B),
        (local.gemm(left, right, out=backend.asarray(C.copy()), accumulate=True, **options), A @ B + C),
    ):
        np.testing.assert_allclose(backend.to_host(got), expected, rtol=1e-12)


def test_flops_are_counted(backend):
    A = awkward()["prime"]
    with dg.Ledger() as ledger:
        local.spmm(CSR.from_scipy(A, backend), backend.zeros((A.shape[1], 4), np.float64))
        local.gemm(backend.zeros((7, 5), np.float64), backend.zeros((5, 3), np.float64))
    assert {e["phase"]: e["flops"] for e in ledger.entries()} == {"spmm": 2 * A.nnz * 4, "gemm": 2 * 7 * 5 * 3}


def test_an_unknown_kernel_is_named(backend, monkeypatch):
    monkeypatch.setenv("DISTGNN_SPMM", "magic")
    local._spmm_kernel.cache_clear()
    try:
        with pytest.raises(dg.UserError, match=r"DISTGNN_SPMM=magic.*auto"):
            local.spmm(CSR.from_scipy(awkward()["prime"], backend), backend.zeros((31, 2), np.float64))
    finally:
        local._spmm_kernel.cache_clear()


def test_backends():
    assert dg.backend.get("numpy").name == "numpy"
    with pytest.raises(dg.UserError, match="no such backend"):
        dg.backend.get("abacus")
    if "cupy" not in dg.backend.available():
        assert dg.backend.get("auto").name == "numpy"
        with pytest.raises(dg.UserError, match="cuda12"):
            dg.backend.get("cupy")


@pytest.mark.parametrize("make", ["empty", "zeros"])
def test_host_arrays_start_at_a_cache_line(make):
    for shape in ((0, 3), (3, 5), (7,), (2, 3, 4), (1000, 16)):
        for dtype in (np.float32, np.float64, np.int8):
            x = getattr(dg.backend.get("numpy"), make)(shape, dtype)
            assert x.shape == shape and x.dtype == dtype and x.flags.c_contiguous and x.flags.writeable
            assert x.size == 0 or x.ctypes.data % 64 == 0
            assert make == "empty" or not x.any()

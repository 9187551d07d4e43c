"""Products on one rank against SciPy, and the dispatch."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from awkward_shapes import awkward
from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.local import csr_rows, host


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
    assert {e["phase"]: e["flops"] for e in ledger.entries()} == {
        "spmm": 2 * A.nnz * 4,
        "gemm": 2 * 7 * 5 * 3,
    }


def sparse(matrix, backend):
    """Move a matrix to the backend's device."""
    return (
        matrix
        if not backend.on_device
        else importlib.import_module("cupyx.scipy.sparse").csr_matrix(sp.csr_matrix(matrix))
    )


def on_host(matrix):
    return sp.csr_array(matrix if sp.issparse(matrix) else matrix.get())


def one_per_row(k, n, values=(1.0,), seed=0):
    """Make a matrix with at most one entry per row; some rows are empty."""
    rng = np.random.default_rng(seed)
    filled = rng.random(k) < 0.7
    pointers = np.concatenate([[0], np.cumsum(filled)])
    return sp.csr_array(
        (rng.choice(values, filled.sum()), rng.integers(0, n, filled.sum()), pointers), shape=(k, n)
    )


def pattern(A):
    """Return where A has entries, whatever their values: bool, dense."""
    return sp.csr_array((np.ones(A.nnz, bool), A.indices, A.indptr), shape=A.shape).toarray()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_spgemm(backend, dtype):
    """Entries stand where entries meet: also where they are 0, and where sums cancel, as of mixed signs."""
    tolerance = {"rtol": 1e-12} if dtype == np.float64 else {"rtol": 1e-5, "atol": 1e-5}
    for name, B in awkward().items():
        B = B.astype(dtype)
        m, n = B.shape
        for A in (
            awkward()["prime"][:9, :m] if m <= 31 else sp.eye_array(m, format="csr")[::3],
            B.T.tocsr(),
            one_per_row(12, m),
        ):
            A = A.astype(dtype)
            A.resize(A.shape[0], m)
            C = on_host(local.spgemm(sparse(A, backend), sparse(B, backend)))
            np.testing.assert_allclose(C.toarray(), A.toarray() @ B.toarray(), err_msg=name, **tolerance)
            assert C.shape == (A.shape[0], n) and C.dtype == dtype
            assert C.has_canonical_format
            np.testing.assert_array_equal(pattern(C), pattern(A).astype(int) @ pattern(B) > 0, err_msg=name)


@pytest.mark.parametrize("values", [(1.0,), (0.3, 2.0, -1.7, 0.0)])
def test_gathered_rows_are_the_general_product_to_the_bit(backend, values, monkeypatch):
    for name, B in awkward().items():
        for kind in (np.float32, np.float64):
            A = one_per_row(50, B.shape[0], values).astype(kind)
            gathered = on_host(local.spgemm(sparse(A, backend), sparse(B, backend)))
            with monkeypatch.context() as patch:
                patch.setattr(csr_rows, "at_most_one_per_row", lambda A: False)
                patch.setattr(csr_rows, "scaled_rows", None)
                general = on_host(local.spgemm(sparse(A, backend), sparse(B, backend)))
            assert gathered.dtype == general.dtype == np.float64
            for array in ("indptr", "indices", "data"):
                np.testing.assert_array_equal(getattr(gathered, array), getattr(general, array), err_msg=name)


def test_gathered_rows_copy_what_a_plain_loop_copies():
    A, B = one_per_row(20, 31), awkward()["prime"]
    rows = [
        B[[A.indices[A.indptr[r]]]].toarray()[0] if A.indptr[r + 1] > A.indptr[r] else np.zeros(31)
        for r in range(20)
    ]
    np.testing.assert_array_equal(local.spgemm(A, B).toarray(), rows)


def test_spgemm_row_blocks_are_bounded_and_make_up_the_whole(backend):
    A, B = awkward()["hub_row"], awkward()["hub_column"]
    whole = on_host(local.spgemm(sparse(A, backend), sparse(B, backend)))
    multiplications = [sum(np.diff(B.indptr)[A[[row]].indices]) for row in range(37)]
    for entries in (1, 10, 40, 10_000, None):
        blocks = list(local.spgemm_row_blocks(sparse(A, backend), sparse(B, backend), entries))
        assert [row for (first, last), _ in blocks for row in range(first, last)] == list(range(37))
        for (first, last), C in blocks:
            assert entries is None or last == first + 1 or sum(multiplications[first:last]) <= entries
            block = on_host(C)
            np.testing.assert_array_equal(block.toarray(), whole.toarray()[first:last])
        assert (len(blocks) == 1) == (entries in (10_000, None))
        if entries == 40:  # no two neighbours would fit into one
            bounds = [first for (first, _), _ in blocks] + [37]
            assert all(
                sum(multiplications[bounds[p] : bounds[p + 1] + 1]) > 40 for p in range(len(blocks) - 1)
            )


def test_spgemm_counts_flops_and_refuses_what_does_not_fit(backend):
    A, Q, B = awkward()["tall"], one_per_row(8, 17, seed=3), awkward()["wide"]
    for left in (A, Q):
        with dg.Ledger() as ledger:
            local.spgemm(sparse(left, backend), sparse(B, backend))
        expected = 2 * sum(int(np.diff(B.indptr)[column]) for column in left.indices)
        assert [(e["phase"], e["operation"], e["flops"]) for e in ledger.entries()] == [
            ("spmm", "spgemm", expected)
        ]
    with pytest.raises(ValueError, match=r"\(17, 43\) and \(17, 43\) don't multiply"):
        local.spgemm(sparse(B, backend), sparse(B, backend))
    with pytest.raises(ValueError, match="don't multiply"):
        list(local.spgemm_row_blocks(sparse(B, backend), sparse(B, backend), 5))


def test_an_unknown_kernel_is_named(backend, monkeypatch):
    monkeypatch.setenv("DISTGNN_SPMM", "magic")
    importlib.import_module("distgnn.local.spmm")._spmm_kernel.cache_clear()
    try:
        with pytest.raises(dg.UserError, match=r"DISTGNN_SPMM=magic.*auto"):
            local.spmm(CSR.from_scipy(awkward()["prime"], backend), backend.zeros((31, 2), np.float64))
    finally:
        importlib.import_module("distgnn.local.spmm")._spmm_kernel.cache_clear()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("built", [True, False])
def test_scatter_rows_is_the_adjoint_of_gather_rows(backend, dtype, built, monkeypatch):
    if not built:
        monkeypatch.setattr(host, "module", lambda: None)
    if backend.on_device and dtype == np.int64:
        pytest.skip("the CUDA kernels add floats")
    r = np.random.default_rng(0)
    X, before, rows = r.integers(0, 9, (6, 5)), r.integers(0, 9, (20, 5)), r.permutation(20)[:6]
    out = backend.asarray(before.astype(dtype))
    assert local.scatter_add(backend.asarray(X.astype(dtype)), backend.asarray(rows), out) is out
    before[rows] += X
    np.testing.assert_array_equal(backend.to_host(out), before)


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

"""Dense products on tensor cores against products in double precision."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from distgnn import local
from distgnn.arrays import backend
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda
from distgnn.local.epilogue import Epilogue, Kept
from distgnn.local.forms import Form
from kernels.conftest import in_orders, normal
from loops import each

MODULE = importlib.import_module("distgnn.local.cuda.gemm")  # the package has a function of this name
EXACT = 2.0**-21  # of the sum of sizes of products: two low parts, and one bit of each, are left out

#: Long dimension m, others: tiles of every width, chunks and groups of k that are not whole, several tiles.
ROWS = [
    (137, 40, 128), (261, 33, 17), (51, 128, 41), (50, 65, 136), (51, 17, 1), (259, 16, 64),
]  # fmt: skip#: m, the long dimension k, n.
COLUMNS = [(60, 550, 17), (128, 270, 128), (130, 300, 41), (1, 300, 1), (40, 64, 130), (4, 65, 64)]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Take matrices of 50 rows for tall ones."""
    monkeypatch.setattr(TUNING, "long_dimension", 50)


def given(gpu, shape, seed, turned=False, positive=False):
    """Return a matrix and its copy on the GPU, which lies column by column if ``turned``."""
    X = normal(shape, np.float32, seed)
    X = abs(X) if positive else X
    return X, gpu.asarray(X.T).T if turned else gpu.asarray(X)


def assert_exact(got, A, B, before=0):
    """Compare with the product in double precision; errors are of the size of float32's."""
    A, B = A.astype(float), B.astype(float)
    wrong = abs(got - (A @ B + before))
    assert (wrong <= EXACT * (abs(A) @ abs(B) + abs(before))).all(), wrong.max()


@each("m, k, n", ROWS)
@each("turned", [False, True])
def test_by_rows(gpu, m, k, n, turned):
    """Y = X W and G Wᵀ, made and added."""
    (A, a), (B, b) = given(gpu, (m, k), 1), given(gpu, (k, n), 2, turned)
    before = normal((m, n), np.float32, 3)
    out = gpu.asarray(before) if turned else gpu.nan((m, n), np.float32)
    assert cuda.gemm(a, b, out, accumulate=turned)
    assert_exact(gpu.to_host(out), A, B, turned * before)


@each("m, k, n", COLUMNS)
def test_by_columns(gpu, m, k, n):
    """Xᵀ G, made and added."""
    (A, a), (B, b) = given(gpu, (m, k), 1, turned=True), given(gpu, (k, n), 2)
    before = normal((m, n), np.float32, 3)
    out, more = gpu.nan((m, n), np.float32), gpu.asarray(before)
    assert cuda.gemm(a, b, out) and cuda.gemm(a, b, more, accumulate=True)
    assert_exact(gpu.to_host(out), A, B)
    assert_exact(gpu.to_host(more), A, B, before)


def test_at_any_address(gpu):
    """Matrices that begin at an odd number of floats are copied one by one."""
    A, B, G = (normal(shape, np.float32, seed) for seed, shape in enumerate([(90, 40), (40, 128), (90, 128)]))
    out, dW, dX = (gpu.misaligned(np.zeros(shape, np.float32)) for shape in ((90, 128), (40, 128), (90, 40)))
    a, b, g = map(gpu.misaligned, (A, B, G))
    assert cuda.gemm(a, b, out) and cuda.gemm(a.T, g, dW) and cuda.gemm(g, b.T, dX)
    for got, pair in ((out, (A, B)), (dW, (A.T, G)), (dX, (G, B.T))):
        assert_exact(gpu.to_host(got), *pair)


def test_sums_of_one_sign_are_not_biased(gpu):
    """Tensor cores round toward zero; sums of many numbers of one sign would be too small for it."""
    for m, k, turned in ((64, 900, False), (16, 2000, True)):
        (A, a), (B, b) = given(gpu, (m, k), 1, turned, True), given(gpu, (k, 8), 2, positive=True)
        out = gpu.nan((m, 8), np.float32)
        assert cuda.gemm(a, b, out)
        exact = A.astype(float) @ B.astype(float)
        assert abs((gpu.to_host(out) - exact) / exact).mean() < 2e-7


@pytest.mark.parametrize("turned", [False, True])
def test_same_bits_on_any_gpu(gpu, monkeypatch, turned):
    """Many blocks or few, in any order."""
    (A, a), (B, b) = given(gpu, (270, 40), 1), given(gpu, (40, 70), 2, turned)
    results = []
    for places in (1, 2):
        known = {"MaxSharedMemoryPerBlockOptin": 227 << 10, "MultiProcessorCount": places}
        monkeypatch.setattr(MODULE, "attribute", lambda xp, name, known=known: known[name])
        for _ in in_orders(gpu, (0, 1, 5)):
            results.append(gpu.nan((270, 70), np.float32))
            assert cuda.gemm(a, b, results[-1])
    for result in results:
        np.testing.assert_array_equal(gpu.to_host(result), gpu.to_host(results[0]))
    assert_exact(gpu.to_host(results[0]), A, B)


def test_parts_in_any_order(gpu):
    (A, a), (B, b) = given(gpu, (20, 800), 1, turned=True), given(gpu, (800, 20), 2)
    results = []
    for _ in in_orders(gpu, (0, 1, 5)):
        results.append(gpu.nan((20, 20), np.float32))
        assert cuda.gemm(a, b, results[-1])
    for result in results:
        np.testing.assert_array_equal(gpu.to_host(result), gpu.to_host(results[0]))
    assert_exact(gpu.to_host(results[0]), A, B)


@each("n", [128, 40, 16, 41, 8])
@each("keep", [1.0, 0.6])
@each("turned", [False, True])
def test_ends_are_those_of_passes(gpu, n, keep, turned):
    """Bias, ReLU, dropout and bits of what is positive, by the product and by `activate`."""
    (_, a), (_, b), (_, bias) = (
        given(gpu, shape, *how) for shape, *how in (((130, 30), 1), ((30, n), 2, turned), ((1, n), 3))
    )
    ids = gpu.asarray(np.arange(130)), gpu.asarray(np.arange(n))
    mask = None if keep == 1 else (77, *ids, keep)
    then = Epilogue(bias=bias, mask=mask, relu=True, remember=n % 8 == 0)
    out, alone = gpu.nan((130, n), np.float32), gpu.nan((130, n), np.float32)
    assert cuda.gemm(a, b, out, then=then) and cuda.gemm(a, b, alone)
    bits = cuda.activate(alone, alone, mask, True, then.remember, bias)
    assert then.done
    np.testing.assert_array_equal(gpu.to_host(out), gpu.to_host(alone))
    if then.remember:
        np.testing.assert_array_equal(gpu.to_host(then.bits), gpu.to_host(bits))


@each("n", [128, 40, 41, 5])
def test_masks_of_positive_bits(gpu, n):
    """The gradient of H, added to what is there, masked as `keep_positive` does it."""
    (_, a), (_, b) = given(gpu, (130, 30), 1), given(gpu, (30, n), 2, turned=True)
    before = normal((130, n), np.float32, 3)
    then = Kept(cuda.positive_bits(gpu.asarray(normal((130, n), np.float32, 4))), 1.5)
    out, alone = gpu.asarray(before), gpu.asarray(before)
    assert cuda.gemm(a, b, out, True, then) and cuda.gemm(a, b, alone, True)
    assert then.done
    np.testing.assert_array_equal(gpu.to_host(out), gpu.to_host(cuda.keep_positive(alone, then.bits, 1.5)))


def test_bits_of_other_widths_are_left_to_a_pass(gpu):
    (_, a), (_, b) = given(gpu, (130, 30), 1), given(gpu, (30, 41), 2)
    then = Epilogue(relu=True, remember=True)
    assert cuda.gemm(a, b, gpu.nan((130, 41), np.float32), then=then)
    assert not then.done and then.bits is None


def test_numbers_that_are_not_finite_stay_so(gpu):
    """And no others become so, up to the largest, whose high part may not be infinite."""
    A, B = normal((64, 20), np.float32, 1), normal((20, 24), np.float32, 2)
    A[3, 4], A[5, 6], B[7, 8] = np.inf, np.nan, -np.inf
    A[9], A[9, 10], B[10] = 0, np.finfo(np.float32).max, np.where(abs(B[10]) > 0.9, 0.5, B[10])
    out = gpu.nan((64, 24), np.float32)
    assert cuda.gemm(gpu.asarray(A), gpu.asarray(B), out)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = A.astype(float) @ B.astype(float)
    got = gpu.to_host(out)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    largest = np.isfinite(expected[9])
    assert largest.sum() > 3
    np.testing.assert_allclose(got[9, largest], expected[9, largest], rtol=1e-6)
    assert np.isnan(got[np.isnan(expected)]).all()


@each("scale", [1e30, 1e-28])
def test_large_and_small_numbers(gpu, scale):
    """Errors are as small as of others; below 2^-115 the low part of a number is flushed to 0."""
    A, B = normal((64, 20), np.float32, 1) * np.float32(scale), normal((20, 24), np.float32, 2)
    out = gpu.nan((64, 24), np.float32)
    assert cuda.gemm(gpu.asarray(A), gpu.asarray(B), out)
    assert_exact(gpu.to_host(out), A, B)


def test_others_are_left_to_cublas(gpu):
    """Numbers of double precision; matrices that are short, too wide, apart in memory or empty."""
    def takes(A, B, shape, dtype=np.float32):
        out = gpu.asarray(np.ones(shape, dtype))
        taken = cuda.gemm(A, B, out)
        assert taken or (gpu.to_host(out) == 1).all()
        return taken

    X, W = (gpu.asarray(np.ones(shape, np.float32)) for shape in ((100, 40), (40, 8)))
    assert takes(X, W, (100, 8))
    assert not takes(*(gpu.asarray(np.ones(shape)) for shape in (X.shape, W.shape)), (100, 8), float)
    assert not takes(X[:49], W, (49, 8))
    assert not takes(X[:, :20], W[:20], (100, 8))
    assert not takes(X, W[:, ::2], (100, 4))
    assert takes(X.T, X[:, :20].copy(), (40, 20))
    assert not takes(X.T, X[:, :20], (40, 20))
    assert not takes(gpu.asarray(np.ones((40, 100), np.float32)).T, W, (100, 8))
    assert not takes(X[:, :0], W[:0], (100, 8))
    assert not takes(gpu.asarray(np.ones((100, 15), np.float32)), W[:15], (100, 8))
    assert not takes(X, gpu.asarray(np.ones((40, 5000), np.float32)), (100, 5000))


def test_local_products_take_it(gpu):
    """But not in another form, nor where float32 is to be rounded to TF32."""
    on = backend.get("cupy")
    (A, a), (B, b) = given(gpu, (100, 40), 1), given(gpu, (40, 24), 2)
    assert_exact(gpu.to_host(local.gemm(a, b)), A, B)
    if not gpu.emulation:
        return
    ran = gpu.emulation.kernels
    assert [name.split("<")[0] for name in ran] == ["gemm"]
    local.gemm(a, b, form=Form("N", "N"))
    local.gemm(a, gpu.asarray(B.T), trans_b=True)
    assert [name.split("<")[0] for name in ran] == ["gemm"] * 3
    local.gemm(a, a, trans_a=True)
    assert [name.split("<")[0] for name in ran[3:]] == ["gemm_columns", "sum_parts"]
    for form in (Form("N", "T"), Form("T", "N"), Form("N", "N", True)):
        local.gemm(a, b, form=form)
    on.use_tf32(True)
    try:
        local.gemm(a, b)
    finally:
        on.use_tf32(False)
    assert len(ran) == 5

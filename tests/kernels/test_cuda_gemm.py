"""Dense products on tensor cores against products in double precision."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from distgnn import local
from distgnn.arrays import backend
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda
from distgnn.local.cuda.narrow import KINDS
from distgnn.local.epilogue import Epilogue, Kept
from distgnn.local.forms import Form
from distgnn.local.narrow import widened
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
def short(monkeypatch, gpu):
    """Take matrices of 50 rows for tall ones. The kernels are for Hopper alone."""
    if not MODULE.runs_here(gpu.xp):
        pytest.skip("this GPU takes cuBLAS for dense products")
    monkeypatch.setattr(TUNING, "long_dimension", 50)


def given(gpu, shape, seed, turned=False, positive=False):
    """Return a matrix and its copy on the GPU, which lies column by column if ``turned``."""
    X = normal(shape, np.float32, seed)
    X = abs(X) if positive else X
    return X, gpu.asarray(X.T).T if turned else gpu.asarray(X)


def rounded_to_tf32(X):
    """Round to 11 bits, ties away from zero."""
    return ((X.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


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


@each("kind", KINDS)
@each("n", [128, 136, 41, 40, 16, 5, 4, 1])
def test_rounded_products_are_those_of_passes(gpu, kind, n):
    """In 16 bits, with zeros behind each row; with what becomes of a layer forward and backward."""
    A, B = normal((131, 30), np.float32, 1), normal((30, n), np.float32, 2)
    A[3, 4], A[5, 6], A[7], A[9] = np.inf, np.nan, -0.0, 0
    A[9, 0], B[0] = np.finfo(np.float32).max, 1  # too large for 16 bits, unless it is scaled: then infinite
    A[11] *= np.float32(1e-40 if kind == "bfloat16" else 1e-7)
    bits = cuda.positive_bits(gpu.asarray(normal((131, n), np.float32, 4)))
    bias = gpu.asarray(normal((1, n), np.float32, 3))
    ids = gpu.asarray(np.arange(131)), gpu.asarray(np.arange(n))
    layer = lambda: Epilogue(bias, (77, *ids, 0.6), relu=True, remember=n % 8 == 0)  # noqa: E731
    for place, turned in ((gpu.asarray, False), (gpu.misaligned, True)):
        a, b = place(A), place(B.T.copy()).T if turned else place(B)
        for end in (lambda: None, layer, lambda: Kept(bits, -1.5)):
            then, after = end(), end()
            out, expected = (
                cuda.Rounded(gpu.asarray(np.full((131, cuda.pitch(n)), 7, np.uint16)), kind, (131, n), none)
                for none in (gpu.xp.zeros(1, np.int32), gpu.xp.zeros(1, np.int32))
            )
            alone = gpu.nan((131, n), np.float32)
            assert cuda.gemm(a, b, out, then=then) and cuda.gemm(a, b, alone, then=after)
            cuda.round_into(alone, expected)
            np.testing.assert_array_equal(gpu.to_host(out.bits), gpu.to_host(expected.bits))
            assert gpu.to_host(out.beyond) == gpu.to_host(expected.beyond)
            assert then is not None or gpu.to_host(out.beyond) > 0
            if getattr(after, "remember", False):
                np.testing.assert_array_equal(gpu.to_host(then.bits), gpu.to_host(after.bits))


def test_what_no_product_rounds(gpu):
    """A sum, bits of other widths, and products over many rows are left to the caller."""
    (A, a), (_, b) = given(gpu, (130, 30), 1), given(gpu, (30, 41), 2)
    bits, none = gpu.asarray(np.full((130, cuda.pitch(41)), 7, np.uint16)), gpu.xp.zeros(1, np.int32)
    out = cuda.Rounded(bits, "bfloat16", (130, 41), none)
    then = Epilogue(relu=True, remember=True)
    assert not cuda.gemm(a, b, out, accumulate=True) and not cuda.gemm(a, b, out, then=then)
    small = cuda.Rounded(bits[:30, :32].copy(), "bfloat16", (30, 30), none)
    assert not cuda.gemm(a.T, gpu.asarray(A), small)
    assert (gpu.to_host(bits) == 7).all() and not then.done
    for X, Y in ((a, b), (a[:49], b)):  # by our kernel and by cuBLAS
        kept = Epilogue(relu=True, remember=True)
        room = cuda.Rounded(gpu.xp.empty((len(X), 48), np.uint16), "bfloat16", (len(X), 41), none)
        local.gemm(X, Y, room, then=kept)
        alone = local.gemm(X, Y)
        positive = cuda.activate(alone, alone, None, True, True)
        expected = cuda.rounded(alone, "bfloat16", none)
        np.testing.assert_array_equal(gpu.to_host(room.bits), gpu.to_host(expected.bits))
        np.testing.assert_array_equal(gpu.to_host(kept.bits), gpu.to_host(positive))


@each("m, k, n", ROWS)
def test_products_of_tf32(gpu, m, k, n):
    """One product of numbers rounded to 11 bits, with what becomes of it."""
    (A, a), (B, b), (G, g) = given(gpu, (m, k), 1), given(gpu, (k, n), 2), given(gpu, (m, n), 3)
    out, dW = gpu.nan((m, n), np.float32), gpu.nan((k, n), np.float32)
    then = Epilogue(relu=True)
    assert cuda.gemm(a, b, out, then=then, exact=False) and then.done
    assert cuda.gemm(a.T, g, dW, exact=False)
    for got, X, Y in ((out, A, B), (dW, A.T, G)):
        sums = rounded_to_tf32(X).astype(float) @ rounded_to_tf32(Y).astype(float)
        expected = np.maximum(sums, 0) if got is out else sums
        sizes = abs(X.astype(float)) @ abs(Y.astype(float))
        assert (abs(gpu.to_host(got) - expected) <= EXACT * sizes).all()
        assert (abs(sums - X.astype(float) @ Y) > EXACT * sizes).any() or n == 1


def halved(gpu, X):
    """Return X in bfloat16, and in float32 what is left of it."""
    read = cuda.rounded(gpu.asarray(X), "bfloat16", gpu.xp.zeros(1, np.int32))
    return read, gpu.to_host(widened(read))


@each("m, k, n", ROWS)
@each("exact", [True, False])
def test_matrices_of_16_bits(gpu, m, k, n, exact):
    """Y = X W and G Wᵀ by W of float32, as float32 and rounded; dW = Xᵀ G, of 16 bits one of them or both."""
    (x, X), (g, G) = (halved(gpu, normal((m, width), np.float32, width)) for width in (k, n))
    W, w = given(gpu, (k, n), 2, turned=exact)
    out, before = gpu.nan((m, n), np.float32), normal((m, n), np.float32, 4)
    more, bits = gpu.asarray(before), gpu.xp.empty((m, cuda.pitch(n)), np.uint16)
    rounds = cuda.Rounded(bits, "bfloat16", (m, n), gpu.xp.zeros(1, np.int32))
    assert cuda.gemm(x, w, out, exact=exact) and cuda.gemm(x, w, more, accumulate=True, exact=exact)
    assert cuda.gemm(x, w, rounds, exact=exact)
    read = W if exact else rounded_to_tf32(W)
    assert_exact(gpu.to_host(out), X, read)
    assert_exact(gpu.to_host(more), X, read, before)
    expected = cuda.rounded(out, "bfloat16", gpu.xp.zeros(1, np.int32))
    np.testing.assert_array_equal(gpu.to_host(bits), gpu.to_host(expected.bits))
    for left, right, taken in ((x, G, True), (x, g, n > 4), (X, g, n > 4)):
        dW, A, B = gpu.asarray(np.ones((k, n), np.float32)), left, right
        A, B = (gpu.asarray(Z) if isinstance(Z, np.ndarray) else Z for Z in (A, B))
        assert cuda.gemm(A.T, B, dW, accumulate=True, exact=exact) == taken
        if taken:
            rest = (G if exact or right is g else rounded_to_tf32(G)), X
            assert_exact(gpu.to_host(dW), rest[1].T, rest[0], 1)
    assert_exact(gpu.to_host(local.gemm(x, g, trans_a=True)), X.T, G)  # whatever multiplies


def test_infinity_and_nan_of_16_bits(gpu):
    A, B = normal((64, 24), np.float32, 1), np.eye(24, dtype=np.float32)
    A[3, 4], A[5, 6], A[7] = np.inf, np.nan, -0.0
    read, left = halved(gpu, A)
    out, back = gpu.nan((64, 24), np.float32), gpu.nan((24, 24), np.float32)
    assert cuda.gemm(read, gpu.asarray(B), out) and cuda.gemm(read.T, gpu.asarray(A[:, :24].copy()), back)
    got = gpu.to_host(out)
    assert np.isnan(got[[3, 5]]).all() and (got[7] == 0).all()
    others = np.delete(np.arange(64), (3, 5))
    np.testing.assert_array_equal(got[others], left[others])
    with np.errstate(invalid="ignore"):
        expected = left.T.astype(float) @ A
    lost = gpu.to_host(back)[[4, 6]]
    assert (np.isnan(lost) | (lost == expected[[4, 6]])).all() and np.isfinite(lost).sum() == 0


def test_what_dense_products_do_not_read(gpu):
    """Other types of 16 bits, and B of them: those are widened and given to others."""
    (A, _), (B, b) = given(gpu, (64, 24), 1), given(gpu, (24, 16), 2)
    none, out = gpu.xp.zeros(1, np.int32), gpu.nan((64, 16), np.float32)
    half = cuda.rounded(gpu.asarray(A), "float16", none)
    assert not cuda.gemm(half, b, out)
    assert_exact(gpu.to_host(local.gemm(half, b)), gpu.to_host(widened(half)), B)
    short, left = halved(gpu, A[:30])
    assert not cuda.gemm(short, b, out[:30])
    assert_exact(gpu.to_host(local.gemm(short, b)), left, B)
    rounds = cuda.Rounded(gpu.xp.empty((30, 16), np.uint16), "bfloat16", (30, 16), none)
    local.gemm(short, b, rounds)
    np.testing.assert_allclose(gpu.to_host(widened(rounds)), left.astype(float) @ B, rtol=2**-8, atol=1e-6)


def test_infinity_and_nan_in_tf32(gpu):
    """A NaN whose payload lies in the bits that count for nothing is no infinity."""
    A, B = normal((64, 20), np.float32, 1), np.eye(20, 24, dtype=np.float32)
    A[3, 4], A[5, 6] = np.inf, np.uint32(0xFF800001).view(np.float32)
    out = gpu.nan((64, 24), np.float32)
    assert cuda.gemm(gpu.asarray(A), gpu.asarray(B), out, exact=False)
    got = gpu.to_host(out)
    assert got[3, 4] == np.inf and np.isnan(got[3, :4]).all() and np.isnan(got[5]).all()
    assert np.isfinite(np.delete(got, (3, 5), axis=0)).all()


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
    """But not in another form; with one product where float32 is to be rounded to TF32."""
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
    assert len(ran) == 6 and [ran[place].split(",")[2:4] for place in (0, -1)] == [["2", "2"], ["1", "1"]]

"""Products that read B in 16 bits: the bits of the float32 kernel on the same numbers, in the same order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import local
from distgnn.arrays import backend
from distgnn.local import cuda, elementwise
from distgnn.local.cuda import Variant, csr
from distgnn.local.cuda.narrow import KINDS
from distgnn.local.epilogue import Epilogue, Kept
from kernels.conftest import in_orders
from kernels.test_cuda_spmm import HUBS, block_of, dense, matrix, product
from loops import each

#: Groups that fill a warp and that don't, teams, pieces, rows by length, bundles of short rows and of all.
VARIANTS = [
    *(Variant(V=8, G=G, P=P, S=32 * P, sorted=P > 1) for G, P in ((1, 32), (2, 16), (4, 2), (32, 1))),
    *(Variant(V=8, G=G, P=P, S=100) for G, P in ((3, 2), (5, 1), (13, 2), (7, 4))),
    *(Variant(V=4, G=1, P=P, S=S) for P, S in ((1, 40), (32, 600))),
    *(Variant(V=V, G=G, P=1, S=32, K=8) for V, G in ((4, 1), (8, 2), (8, 16))),
    *(Variant(V=8, G=G, P=1, S=S, K=4, sorted=True) for G, S in ((4, 5), (13, 64), (32, 2000))),
]
WIDTHS = (1, 2, 3, 5, 8, 16, 41, 64, 100, 128, 130, 300)


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    """Take the first candidate unless a test asks for tuning."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")


def numbers(shape, dtype=np.float32):
    """Draw numbers that float16 has in steps of 2^-24 among others, and some infinities and NaN."""
    x, _ = dense(shape, dtype)
    x[::3] *= np.float32(2.0**-17)
    x[1::7, ::2] *= np.float32(1e-39)  # a bfloat16 below all normal numbers; 0 in float16
    x[3, 0], x[5, -1], x[7, shape[1] // 2], x[9, 0] = np.inf, -np.inf, np.nan, -0.0
    return x


def none(X):
    """Make memory for the largest number that does not fit."""
    return backend.module(X).zeros(1, np.int32)


def rounded(X, kind):
    return cuda.rounded(X, kind, none(X))


def widened(gpu, X, kind):
    """Return the numbers that are left of X, in float32 on the GPU."""
    bits, wide = gpu.xp.empty(X.shape, np.uint16), gpu.xp.empty(X.shape, np.float32)
    cuda.narrow(X, bits, kind, none(X))
    cuda.widen(bits, wide, kind, False)
    return wide


def same(got, expected):
    lost = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), lost)
    np.testing.assert_array_equal(got[~lost].view(np.uint32), expected[~lost].view(np.uint32))
    assert np.isfinite(expected).any()


def compare(gpu, A, B, kind, way, index=np.int32):
    """Compare the bits with those of float32: of a product alone, and added to what is there."""
    block, f = block_of(gpu, A, np.float32, index), B.shape[1]
    in_float32 = replace(way, V=4, padded=f % 4 != 0)
    read, wide = rounded(B, kind), widened(gpu, B, kind)
    got = gpu.to_host(product(gpu, block, read, variant=way))
    expected = gpu.to_host(product(gpu, block, wide, variant=in_float32))
    same(got, expected)
    start = dense(got.shape, np.float32, 1)[0]
    added, others = gpu.misaligned(start), gpu.asarray(start)
    cuda.spmm(block, read, added, accumulate=True, variant=way)
    cuda.spmm(block, wide, others, accumulate=True, variant=in_float32)
    same(gpu.to_host(added), gpu.to_host(others))


@each("kind", KINDS)
@each("way", VARIANTS)
def test_every_variant_gives_the_bits_of_float32(gpu, kind, way):
    f = way.width * (2 if way.G == 32 else 1) - (3 if way.G > 1 else 0)
    for _ in in_orders(gpu, (0, 11)):
        compare(gpu, HUBS, gpu.asarray(numbers((HUBS.shape[1], f))), kind, way)


@each("kind", KINDS)
@each("f", WIDTHS)
def test_what_is_chosen_gives_the_bits_of_float32(gpu, kind, f):
    """All widths and some degrees; B and row pointers of all kinds."""
    for number, A in enumerate((HUBS, matrix(0.5), matrix(70, (1, 900)))):
        B = (gpu.misaligned if number == 1 else gpu.asarray)(numbers((A.shape[1], f)))
        ways = csr.candidates(csr.Size(*A.shape, A.nnz, f, 2), 256)
        compare(gpu, A, B, kind, ways[0], np.int64 if number else np.int32)
        block, read = block_of(gpu, A, np.float32), rounded(B, kind)
        product(gpu, block, B)  # has a tuner of its own
        results = [gpu.to_host(product(gpu, block, read, variant=way)) for way in ways]
        for result in (*results[1:], gpu.to_host(product(gpu, block, read))):
            same(result, results[0])
        assert block.pattern["cuda"].tuners[f, 16, kind, False].choice == ways[0]


@each("kind", KINDS)
def test_rounded_numbers_are_those_of_narrow(gpu, kind):
    """In rows of whole vectors, with zeros behind them; at any address."""
    for f, pitch in ((1, 4), (4, 4), (5, 8), (7, 8), (8, 8), (41, 48), (100, 104), (128, 128)):
        for place in (gpu.asarray, gpu.misaligned):
            X = place(numbers((23, f)))
            read, bits = rounded(X, kind), gpu.xp.empty((23, f), np.uint16)
            cuda.narrow(X, bits, kind, none(X))
            assert read.bits.shape == (23, pitch) and (read.shape, read.kind) == ((23, f), kind)
            padded = np.pad(gpu.to_host(bits), ((0, 0), (0, pitch - f)))
            np.testing.assert_array_equal(gpu.to_host(read.bits), padded)
    for shape in ((0, 3), (4, 0)):
        block = block_of(gpu, sp.csr_array((6, shape[0])), np.float32)
        out = product(gpu, block, rounded(gpu.asarray(np.ones(shape, np.float32)), kind))
        assert out.shape == (6, shape[1]) and not gpu.to_host(out).any()
    with pytest.raises(ValueError, match="rounded: X must be a C-contiguous float32 array"):
        rounded(gpu.asarray(np.ones((4, 3))), kind)
    with pytest.raises(ValueError, match="spmm: B must be a C-contiguous float64 array"):
        product(gpu, block_of(gpu, HUBS, np.float64), rounded(gpu.asarray(numbers((53, 8))), kind))


def room(gpu, shape, kind):
    """Make room for a matrix of 16 bits, with numbers in it that are written over."""
    bits = gpu.asarray(np.full((shape[0], cuda.pitch(shape[1])), 7, np.uint16))
    return cuda.Rounded(bits, kind, shape, gpu.xp.zeros(1, np.int32))


def ends(gpu, m, f):
    """Give ends of products: none, those of a layer forward and backward."""
    ids, bias = (gpu.asarray(np.arange(count)) for count in (m, f)), gpu.asarray(dense((1, f), np.float32)[0])
    bits = cuda.positive_bits(gpu.asarray(dense((m, f), np.float32, 3)[0]))
    mask = 77, *ids, 0.6
    yield from (lambda: None, lambda: Epilogue(bias, mask, relu=True), lambda: Kept(bits, 1.5))
    if f % 8 == 0:
        yield lambda: Epilogue(relu=True, remember=True)


@each("kind", KINDS)
@each("f", WIDTHS)
def test_a_product_writes_what_a_pass_would_round(gpu, kind, f):
    """Also of rows without entries and of rows that are cut; numbers that do not fit are noted, too."""
    for A in (HUBS, matrix(0.5)):
        block, m = block_of(gpu, A, np.float32), A.shape[0]
        X = numbers((A.shape[1], f))
        X[-1] *= np.float32(3e37 if kind == "bfloat16" else 4e4)
        B = rounded(gpu.asarray(X), kind)
        for end in ends(gpu, m, f):
            then, after = end(), end()
            out, alone = room(gpu, (m, f), kind), gpu.nan((m, f), np.float32)
            cuda.spmm(block, B, out, then=then)
            cuda.spmm(block, B, alone, then=after)
            expected = room(gpu, (m, f), kind)
            cuda.round_into(alone, expected)
            np.testing.assert_array_equal(gpu.to_host(out.bits), gpu.to_host(expected.bits))
            assert gpu.to_host(out.beyond) == gpu.to_host(expected.beyond)
            assert then is None or then.done
            if after is not None and getattr(after, "remember", False):
                np.testing.assert_array_equal(gpu.to_host(then.bits), gpu.to_host(after.bits))


def test_what_no_product_writes_in_16_bits(gpu):
    """A sum, bits of other widths, and what is read in float32: a pass rounds those (`local.spmm`)."""
    A, B = block_of(gpu, HUBS, np.float32), gpu.asarray(numbers((HUBS.shape[1], 12)))
    out, then = room(gpu, (HUBS.shape[0], 12), "bfloat16"), Epilogue(relu=True, remember=True)
    read = rounded(B, "bfloat16")
    for wrong in (
        lambda: cuda.spmm(A, read, out, accumulate=True), lambda: cuda.spmm(A, B, out),
        lambda: cuda.spmm(A, read, out, then=then),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="makes 16 bits of 16 bits alone"):
            wrong()
    with pytest.raises(ValueError, match="does not write whole vectors"):
        cuda.spmm(A, read, out, variant=Variant(V=4, G=3, P=1, S=32))
    for block in (A, block_of(gpu, sp.csr_array(HUBS.shape), np.float32)):
        then, after = (Epilogue(bias=B[:1] + 1, relu=True, remember=True) for _ in range(2))
        local.spmm(block, read, out, then=then)
        alone = local.spmm(block, read)
        elementwise.apply(after, alone)
        expected = room(gpu, out.shape, "bfloat16")
        cuda.round_into(alone, expected)
        np.testing.assert_array_equal(gpu.to_host(out.bits), gpu.to_host(expected.bits))
        np.testing.assert_array_equal(gpu.to_host(then.bits), gpu.to_host(after.bits))


def test_on_a_host_products_read_what_they_are_given():
    B = np.ones((4, 3), np.float32)
    assert local.rounded(B, "float16", none(B)) is B
    assert backend.of(B).name == "numpy"

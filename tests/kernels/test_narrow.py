"""Rounding of float32 to 16 bits and back: by the host kernels, by NumPy's functions and by CUDA kernels.

NumPy rounds to float16. The nearest bfloat16 is found among the two neighbours of a number, in double. Finite
numbers that round to infinity must become NaN, and the largest of them must be known.
"""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.local import cuda, host, narrow, narrow_rows, widen
from distgnn.local import host as host_kernels
from distgnn.local.narrow import KINDS
from loops import each

NUMPY = -1
ISAS = [*range(len(host.module().isas()) if host.module() else 0), NUMPY]


@pytest.fixture(params=ISAS)
def isa(request, monkeypatch):
    """Return the place of an instruction set, or NUMPY where no kernels were built."""
    if request.param == NUMPY:
        monkeypatch.setattr(host_kernels, "module", lambda: None)
    else:
        monkeypatch.setattr(host_kernels, "isa", lambda: request.param)
    return request.param


def numbers() -> np.ndarray:
    """Make numbers of all sizes, all ends of float16's steps and those between, infinities and NaN."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    steps = np.arange(65536, dtype=np.uint16)
    halves = np.sort(steps.view(np.float16)[np.isfinite(steps.view(np.float16))].astype(np.float64))
    between = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    beside = [np.nextafter(between, np.float32(way)) for way in (np.inf, -np.inf)]
    upper = steps.astype(np.uint32) << 16
    tops = [upper, upper | 0x8000, upper | 0x7FFF, upper | 0x8001]
    special = np.array([0, -0.0, 65519.99, 65520, 65521, -65520, 3.4e38, np.inf, -np.inf, np.nan], np.float32)
    return np.concatenate([bits.view(np.float32), halves.astype(np.float32), between, *beside, special,
                           *(top.view(np.float32) for top in tops)])  # fmt: skip


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Round by distance: of the neighbours below and above in size the nearer one, else the even one."""
    low = (x.view(np.uint32) >> 16).astype(np.uint16)
    high = (low + 1).astype(np.uint16)
    ends = [(bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for bits in (low, high)]
    ends[1] = np.where(np.isinf(ends[1]), np.copysign(2.0**128, ends[1]), ends[1])
    exact = x.astype(np.float64)
    down, up = (np.abs(end - exact) for end in ends)
    return np.where(np.isinf(x) | (down < up) | ((down == up) & (low % 2 == 0)), low, high)


def beyond(x: np.ndarray, kind: str) -> np.ndarray:
    """Tell which finite numbers round to infinity."""
    return np.isfinite(x) & np.isinf(value(expected(x, kind), kind))


def largest_beyond(x: np.ndarray, kind: str) -> np.float32:
    return np.abs(x[beyond(x, kind)]).max(initial=np.float32(0))


def none() -> np.ndarray:
    return np.zeros(1, np.int32)


def expected(x: np.ndarray, kind: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float16).view(np.uint16) if kind == "float16" else to_bfloat16(x)


def value(bits: np.ndarray, kind: str) -> np.ndarray:
    if kind == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def same(kind: str, x: np.ndarray, bits: np.ndarray) -> None:
    """Assert that these are the bits of ``x``; of a NaN, and of what is too large, those of any NaN."""
    lost = np.isnan(x) | beyond(x, kind)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(bits[~lost], expected(x, kind)[~lost])
        assert np.isnan(value(bits[lost], kind)).all() and lost.any()


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_rounded_to_the_nearest(isa, kind):
    x, most = numbers(), none()
    same(kind, x, narrow(x, np.empty(x.shape, np.uint16), kind, most))
    assert most.view(np.float32)[0] == largest_beyond(x, kind) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_number_that_does_not_fit_is_known(isa, kind):
    """The first too large one, not the last that fits; neither infinities and NaN nor rows not taken."""
    least = {"bfloat16": np.uint32(0x7F7F8000).view(np.float32), "float16": np.float32(65520)}[kind]
    fits = np.nextafter(least, np.float32(0))
    for width in (1, 7, 16, 50):
        for given, found in (
            ([fits, -fits, np.inf, -np.inf, np.nan], 0), ([fits, -least, np.inf], least),
            ([least, -3.4e38, np.nan, -np.inf], np.float32(3.4e38)),
        ):  # fmt: skip
            x = np.ones((len(given), width), np.float32)
            x[:, -1] = given
            most = none()
            narrow(x, bits := np.empty(x.shape, np.uint16), kind, most)
            assert most.view(np.float32)[0] == found
            finite = np.isfinite(x)
            assert np.isnan(value(bits, kind)[finite]).sum() == beyond(x, kind).sum()
            narrow_rows(x, np.array([0, 0]), np.empty((2, width), np.uint16), kind, most := none())
            assert most.view(np.float32)[0] == (least if given[0] == least else 0)
            most = np.full(1, np.float32(3.402e38).view(np.int32))
            assert narrow(x, bits, kind, most) is bits and most.view(np.float32)[0] >= np.float32(3.402e38)


@pytest.mark.parametrize("kind", KINDS)
def test_every_pattern_of_16_bits_is_a_number(isa, kind):
    bits = np.arange(65536, dtype=np.uint16)
    wide = widen(bits, np.empty(65536, np.float32), kind)
    np.testing.assert_array_equal(wide.view(np.uint32)[~np.isnan(wide)],
                                  value(bits, kind).view(np.uint32)[~np.isnan(wide)])  # fmt: skip
    assert np.isnan(wide).sum() == np.isnan(value(bits, kind)).sum()
    kept = narrow(wide, np.empty_like(bits), kind, most := none())
    assert not most
    np.testing.assert_array_equal(kept[~np.isnan(wide)], bits[~np.isnan(wide)])  # as it was rounded already
    with np.errstate(invalid="ignore"):
        sums = widen(bits, np.full(65536, 3, np.float32), kind, accumulate=True)
        np.testing.assert_array_equal(sums, value(bits, kind) + np.float32(3))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_gathered_and_rounded_in_one_pass(isa, kind):
    rng = np.random.default_rng(1)
    for width in (0, 1, 3, 16, 41, 200):
        x = rng.standard_normal((30, width + 2)).astype(np.float32)
        for X in (np.ascontiguousarray(x[:, :width]), x[:, :width]):  # and with gaps between rows
            for rows in (rng.integers(0, 30, 50), np.empty(0, np.int64)):
                out = narrow_rows(X, rows, np.empty((len(rows), width), np.uint16), kind, none())
                np.testing.assert_array_equal(out, expected(np.ascontiguousarray(X[rows]), kind))


@pytest.mark.skipif(host.module() is None, reason="host kernels not built")
def test_what_the_host_kernels_refuse():
    x, out = np.ones((4, 3), np.float32), np.empty((2, 3), np.uint16)
    kernels, apart = host.built(), np.empty((4, 6), np.uint16)[:, :3]
    for call, words in (
        (lambda: kernels.narrow(x, np.array([0, 4]), out, "float16"), "rows: must lie in 0..3, got 4"),
        (lambda: kernels.narrow(x, None, out, "float16"), "out: need shape"),
        (lambda: kernels.narrow(x, np.arange(4), apart, "float16"), "out: must be contiguous"),
        (lambda: kernels.narrow(x[:2], None, out, "float8"), "kind: need bfloat16 or float16, got float8"),
        (lambda: kernels.widen(out.ravel(), x.ravel(), "float16"), "out: need shape"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    for call, words in (
        (lambda: kernels.narrow(x.astype(np.float64), None, out, "float16"), "x: need an array of float32"),
        (lambda: kernels.widen(x.ravel(), x.ravel(), "float16"), "x: need an array of uint16"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


@pytest.mark.timeout(600)
@each("kind", KINDS)
def test_on_a_gpu(gpu, kind):
    x = numbers()
    bits, most = gpu.asarray(np.zeros(x.shape, np.uint16)), gpu.asarray(none())
    cuda.narrow(gpu.asarray(x), bits, kind, most)
    same(kind, x, gpu.to_host(bits))
    assert gpu.to_host(most).view(np.float32)[0] == largest_beyond(x, kind) > 0
    patterns = np.arange(65536, dtype=np.uint16)
    for accumulate in (False, True):
        out = gpu.asarray(np.full(65536, 3, np.float32))
        cuda.widen(gpu.asarray(patterns), out, kind, accumulate)
        with np.errstate(invalid="ignore"):
            want = value(patterns, kind) + np.float32(3) if accumulate else value(patterns, kind)
        found = gpu.to_host(out)
        there = ~np.isnan(want)
        np.testing.assert_array_equal(found[there].view(np.uint32), want[there].view(np.uint32))
        assert np.isnan(found[~there]).all()
    for f in (1, 2, 7, 41):
        X = np.random.default_rng(f).standard_normal((23, f)).astype(np.float32)
        rows = np.random.default_rng(1).integers(0, 23, 37)
        out = gpu.asarray(np.zeros((37, f), np.uint16))
        cuda.narrow_rows(gpu.asarray(X), gpu.asarray(rows), out, kind, most := gpu.asarray(none()))
        np.testing.assert_array_equal(gpu.to_host(out), expected(X[rows], kind))
        X[rows[5], f // 2], X[rows[7], 0] = -3.4e38, np.inf
        for work in (
            lambda X: cuda.narrow_rows(X, gpu.asarray(rows), out, kind, most),  # noqa: B023
            lambda X: cuda.rounded(X, kind, most),
        ):
            assert not gpu.to_host(most).any()
            work(gpu.asarray(X))
            assert gpu.to_host(most).view(np.float32)[0] == np.float32(3.4e38)
            most[...] = 0

"""The host kernels for element-wise passes against the NumPy code of the GCN, bit for bit where only one
rounding is involved.
"""

from __future__ import annotations

import numpy as np
import pytest

from distgnn import rng
from distgnn.local import elementwise, gather_rows, host, scatter_add
from loops import each

pytestmark = pytest.mark.skipif(host.module() is None, reason="host kernels not built")

ISAS = host.module().isas() if host.module() else []
FACTORS = {
    "rate": 0.02, "correction": 0.3, "first": 0.9, "second": 0.999, "epsilon": 1e-8, "shrink": 1.0,
    "decay": 0.0,
}  # fmt: skip
each_dtype = each("dtype", [np.float32, np.float64])
SHAPES = [(0, 5), (5, 0), (1, 1), (3, 7), (5, 8), (9, 16), (17, 33), (40, 129)]


@pytest.fixture(params=range(len(ISAS)), ids=ISAS, autouse=True)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(host, "isa", lambda: request.param)
    return request.param


def random(shape: tuple[int, ...], dtype: type, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    x[np.abs(x) < 0.2] = 0
    return x


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@each("keep", [0.0, 0.3, 0.5, 1.0])
@each("shape", SHAPES)
@each_dtype
def test_dropout_has_the_bits_of_the_reference(dtype: type, shape: tuple[int, int], keep: float) -> None:
    x = random(shape, dtype)
    rows = np.random.default_rng(1).integers(0, 2**40, shape[0])
    cols = np.arange(100, 100 + shape[1])
    k = rng.key(7, rng.DROPOUT, 3, 1)
    factors = rng.keep_mask(k, rows, cols, keep).astype(dtype) * dtype(1 / keep if keep else 0)
    out = np.empty_like(x)
    elementwise.dropout(x, out, k, rows, cols, keep)
    assert same_bits(out, x * factors)
    elementwise.dropout(x, out, k, rows, cols, keep, relu=True)
    assert np.array_equal(out, np.maximum(x, 0) * factors)
    elementwise.dropout(x, x, k, rows, cols, keep, relu=True)
    assert same_bits(x, out)


@each("shape", SHAPES)
@each("relu", [False, True])
@each("keep", [None, 0.6])
@each_dtype
def test_one_pass_activates_and_remembers(
    dtype: type, keep: float | None, relu: bool, shape: tuple[int, int]
) -> None:  # fmt: skip
    """Bias, ReLU, dropout and bits as one after the other makes them; rows are not of whole bytes."""
    ids = np.arange(shape[0]) * 10**9, np.arange(3, 3 + shape[1])
    mask = None if keep is None else (7, *ids, keep)
    for bias in (None, random((1, shape[1]), dtype, seed=2)):
        x = random(shape, dtype)
        expected = x.copy() if bias is None else x + bias
        expected = np.maximum(expected, 0) if relu else expected
        if mask:
            elementwise.dropout(expected, expected, *mask)
        assert elementwise.activate(x.copy(), x.copy(), mask, relu, False, bias) is None
        bits = elementwise.activate(x, x, mask, relu, True, bias)
        assert np.array_equal(x, expected) and same_bits(bits, np.packbits(expected > 0))


@each("shape", SHAPES)
@each_dtype
def test_bits_of_what_is_positive(dtype: type, shape: tuple[int, int]) -> None:
    x = random(shape, dtype)
    bits = elementwise.positive_bits(x)
    assert same_bits(bits, np.packbits(x > 0))
    gradient = random(shape, dtype, seed=1)
    want = gradient * (x > 0) * dtype(1 / 0.7)
    elementwise.keep_positive(gradient, bits, 1 / 0.7)
    assert same_bits(gradient, want)


@each_dtype
def test_nan_is_not_positive_but_survives_relu(dtype: type) -> None:
    x = np.full((1, 9), np.nan, dtype)
    assert not elementwise.positive_bits(x).any()
    out = np.zeros_like(x)
    elementwise.dropout(x, out, 0, np.arange(1), np.arange(9), 1.0, relu=True)
    assert np.isnan(out).all()


@each("options", [{}, {"decay": 0.1}, {"shrink": 0.9}])
@each("size", [0, 1, 7, 1000])
@each_dtype
def test_adam(dtype: type, size: int, options: dict) -> None:
    w, g, m = (random((size,), dtype, seed) for seed in range(3))
    v = np.abs(random((size,), dtype, 3))
    got = [a.copy() for a in (w, m, v)]
    elementwise.adam(got[0], g, got[1], got[2], **(FACTORS | options))
    w, g, m, v = (a.astype(np.float64) for a in (w, g, m, v))
    w *= options.get("shrink", 1)
    g += options.get("decay", 0) * w
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g**2
    w -= 0.02 * m / (np.sqrt(v / 0.3) + 1e-8)
    for name, a, b in zip("wmv", got, (w, m, v), strict=True):
        np.testing.assert_allclose(
            a, b, rtol=20 * np.finfo(dtype).eps, atol=20 * np.finfo(dtype).eps, err_msg=name
        )


def cross_entropy(x, rows, labels, out, share):
    """Run the kernel, with room made for `sums` and `own`."""
    sums, own = np.empty(len(rows), x.dtype), np.empty(len(rows), x.dtype)
    host.built().cross_entropy(x, rows, labels, out, sums, own, share, isa=host.isa())
    return sums, own


@each("spread", [1.0, 30.0, 3000.0])
@each("shape", [(1, 1), (3, 7), (5, 8), (9, 16), (17, 33), (40, 129)])
@each_dtype
def test_cross_entropy(dtype: type, shape: tuple[int, int], spread: float) -> None:
    """Against float64 NumPy; logits far below the largest have a softmax of exactly 0."""
    x = (random((shape[0], shape[1] + 2), dtype) * dtype(spread))[:, : shape[1]]
    rows = np.flatnonzero(np.random.default_rng(1).random(shape[0]) < 0.6)
    labels = np.random.default_rng(2).integers(0, shape[1], len(rows))
    exact = x[rows].astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    E = np.exp(exact)
    want = np.zeros(shape)
    want[rows] = 0.5 * E / E.sum(axis=1, keepdims=True)
    want[rows, labels] -= 0.5
    out = np.full(shape, np.nan, dtype)
    for target in (out, x):  # beside the logits, and in their place
        sums, own = cross_entropy(x, rows, labels, target, 0.5)
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(target, want, rtol=0, atol=4 * eps)
        np.testing.assert_allclose(sums, E.sum(axis=1), rtol=10 * eps)
        np.testing.assert_allclose(
            own, exact[np.arange(len(rows)), labels], rtol=2 * eps, atol=2 * eps * spread
        )
        assert (target[np.setdiff1d(np.arange(shape[0]), rows)] == 0).all()


def binary_cross_entropy(x, rows, labels, out, share):
    """Run the kernel, with room made for the losses."""
    losses = np.empty(len(rows))
    host.built().binary_cross_entropy(x, rows, labels, out, losses, share, isa=host.isa())
    return losses


@each("spread", [1.0, 30.0, 3000.0])
@each("shape", [(1, 1), (3, 7), (9, 16), (17, 33), (4, 1100)])
@each_dtype
def test_binary_cross_entropy(dtype: type, shape: tuple[int, int], spread: float) -> None:
    """Against float64 NumPy; more classes than the product of a lane's factors could hold."""
    x = (random((shape[0], shape[1] + 2), dtype) * dtype(spread))[:, : shape[1]]
    rows = np.flatnonzero(np.random.default_rng(1).random(shape[0]) < 0.6)
    labels = np.random.default_rng(2).integers(0, 2, (len(rows), shape[1])).astype(np.uint8)
    exact, eps = x[rows].astype(np.float64), np.finfo(dtype).eps
    losses = (np.logaddexp(0, exact) - labels * exact).sum(axis=1)
    want = np.zeros(shape)
    want[rows] = 0.5 * (np.exp(-np.logaddexp(0, -exact)) - labels)
    out = np.full(shape, np.nan, dtype)
    for target in (out, x):  # beside the logits, and in their place
        got = binary_cross_entropy(x, rows, labels, target, 0.5)
        np.testing.assert_allclose(target, want, rtol=0, atol=4 * eps)
        np.testing.assert_allclose(got, losses, rtol=100 * eps, atol=10 * eps)
        assert (target[np.setdiff1d(np.arange(shape[0]), rows)] == 0).all()


@each_dtype
def test_binary_losses_of_what_is_no_number(dtype: type) -> None:
    """NaN, and infinite logits that speak against the label, are in the loss."""
    x, out = np.zeros((4, 9), dtype), np.empty((4, 9), dtype)
    x[0, 4], x[1, 0], x[2, 8] = np.nan, np.inf, -np.inf
    labels = np.zeros((4, 9), np.uint8)
    labels[2, 8] = 1
    losses = binary_cross_entropy(x, np.arange(4), labels, out, 1.0)
    assert np.isnan(losses[0]) and losses[1] == losses[2] == np.inf
    assert losses[3] == pytest.approx(9 * np.log(2), rel=1e-6)


@each_dtype
def test_exponentials_are_right_to_the_last_places(dtype: type) -> None:
    """Over their whole range; `sums` of rows (0, -t) is 1 + exp(-t), the gradient of the second class exp(-t)
    / sums.
    """
    t = np.linspace(0, 86 if dtype == np.float32 else 707, 5001).astype(dtype)
    x = np.stack([np.zeros_like(t), -t], axis=1)
    rows = np.arange(len(t))
    cross_entropy(x, rows, np.zeros(len(t), np.int64), x, 1.0)
    want = np.exp(-t.astype(np.longdouble))
    np.testing.assert_allclose(
        (x[:, 1] / (want / (1 + want))).astype(np.float64), 1, rtol=0, atol=4 * np.finfo(dtype).eps
    )


@each_dtype
def test_what_is_no_number_spreads_over_its_row(dtype: type) -> None:
    x = np.zeros((3, 9), dtype)
    x[0, 4], x[1, 0] = np.nan, np.inf
    out = np.empty_like(x)
    sums, _ = cross_entropy(x, np.arange(3), np.array([0, 1, 2]), out, 1.0)
    assert np.isnan(out[0]).all() and np.isnan(sums[:2]).all() and np.isfinite(out[2]).all() and sums[2] == 9


@each("width", [0, 1, 3, 16, 41, 200])
@each_dtype
def test_gather_and_scatter_add(dtype: type, width: int) -> None:
    x = random((30, width + 2), dtype)[:, :width]
    rows = np.random.default_rng(2).integers(0, 30, 50)
    out = np.full((50, width), np.nan, dtype)
    gather_rows(x, rows, out)
    assert same_bits(out, x[rows])
    got, want = random((30, width), dtype, 1), random((30, width), dtype, 1)
    scatter_add(out, rows, got)
    np.add.at(want, rows, out)
    assert same_bits(got, want)


def test_rows_must_exist() -> None:
    x, out = np.ones((4, 3), np.float32), np.ones((2, 3), np.float32)
    for bad in (-1, 4):
        with pytest.raises(ValueError, match=f"rows: must lie in 0..3, got {bad} at position 1"):
            gather_rows(x, np.array([0, bad]), out)
        with pytest.raises(ValueError, match=f"rows: must lie in 0..3, got {bad} at position 1"):
            scatter_add(out, np.array([0, bad]), x)


def test_bad_arguments() -> None:
    x = np.ones((4, 3), np.float32)
    ids, cols = np.arange(4), np.arange(3)
    with pytest.raises(TypeError, match="out: need an array of float32"):
        elementwise.dropout(x, x.astype(np.float64), 0, ids, cols, 0.5)
    with pytest.raises(ValueError, match="low: need shape"):
        elementwise.dropout(x, x, 0, ids[:3], cols, 0.5)
    with pytest.raises(ValueError, match="columns: need shape"):
        elementwise.dropout(x, x, 0, ids, ids, 0.5)
    with pytest.raises(ValueError, match="bias"):
        elementwise.activate(x, x, None, True, True, x[:1, :2])
    with pytest.raises(ValueError, match="out: must be contiguous"):
        elementwise.activate(x[:, :2], x[:, :2], None, True, True)
    whole = np.ones((5, 3), np.float32)
    with pytest.raises(ValueError, match="out shares memory with x"):
        elementwise.dropout(whole[:4], whole[1:], 0, ids, cols, 0.5)
    with pytest.raises(ValueError, match="contiguous"):
        elementwise.positive_bits(np.ones((4, 6), np.float32)[:, :3])
    with pytest.raises(ValueError, match="bits: need shape"):
        elementwise.keep_positive(x, np.ones(3, np.uint8))
    with pytest.raises(TypeError, match="rows: need an array of int32"):
        gather_rows(x, np.array([0, 1], np.int16), x[:2].copy())
    for rows, labels, words in (
        ([0, 0], [1, 1], "rows: must rise, got 0 and 0 at position 0"),
        ([0, 4], [1, 1], "rows: must lie in 0..3, got 4 at position 1"),
        ([0, 1], [1, 3], "labels: must lie in 0..2, got 3 at position 1"),
        ([0, 1], [1], "labels: need shape"),
    ):
        with pytest.raises(ValueError, match=words):
            cross_entropy(x, np.array(rows), np.array(labels), x, 1.0)
    flags = np.zeros((1, 6), np.uint8)
    for rows, labels, words in (
        ([4], flags[:, :3], "rows: must lie in 0..3"),
        ([1], flags[:, :2], "labels: need shape"),
        ([1], flags[:, :3].astype(np.int64), "labels: need an array of uint8"),
        ([1, 2], np.zeros((2, 6), np.uint8)[:, :3], "labels: must be contiguous"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            binary_cross_entropy(x, np.array(rows), labels, x, 1.0)
    with pytest.raises(ValueError, match="out shares memory with x"):
        cross_entropy(whole[:4], ids[:1], ids[:1], whole[1:], 1.0)
    with pytest.raises(ValueError, match="v: need shape"):
        elementwise.adam(x.ravel(), x.ravel(), x.ravel().copy(), np.ones(3, np.float32), **FACTORS)

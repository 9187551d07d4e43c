"""Row packing, activation, loss and optimiser kernels against the NumPy code they stand in for."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn import rng
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda, elementwise
from distgnn.local.narrow import widened
from kernels.conftest import in_orders, normal, tolerance
from loops import each

DTYPES = [np.float32, np.float64]
EPSILON = 1e-5  # of layer norm


@each("dtype", [np.float32, np.float64, np.int32])
@each("f", [0, 1, 2, 7, 8, 12, 32, 41, 128])
def test_gather_rows(gpu, dtype, f):
    X = (1000 * normal((23, f), np.float64)).astype(dtype)
    rows = np.random.default_rng(1).integers(0, 23, 37)
    out = gpu.asarray(np.zeros((37, f), dtype))
    assert cuda.gather_rows(gpu.asarray(X), gpu.asarray(rows), out) is out
    np.testing.assert_array_equal(gpu.to_host(out), X[rows])
    if f:
        out = gpu.misaligned(np.zeros((37, f), dtype))
        cuda.gather_rows(gpu.misaligned(X), gpu.asarray(rows), out)
        np.testing.assert_array_equal(gpu.to_host(out), X[rows])
    none = gpu.asarray(np.zeros((0, f), dtype))
    assert cuda.gather_rows(gpu.asarray(X), gpu.asarray(rows[:0]), none).shape == (0, f)


@each("dtype", DTYPES)
@each("f", [0, 1, 2, 8, 41])
@each("count", [0, 17, 29])
def test_scatter_add(gpu, dtype, f, count):
    rows = np.random.default_rng(2).permutation(29)[:count]
    X, before = normal((count, f), dtype), normal((29, f), dtype, 1)
    expected = before.copy()
    expected[rows] += X
    for _ in in_orders(gpu, (0, 1, 5)):
        out = gpu.asarray(before)
        assert cuda.scatter_add(gpu.asarray(X), gpu.asarray(rows), out) is out
        np.testing.assert_array_equal(gpu.to_host(out), expected)


@each("dtype", DTYPES)
@each("shape", [(0, 3), (1, 1), (7, 5), (33, 32), (19, 41), (9, 128), (20000, 3)])
@each("place", ["apart", "kept", "in place"])
def test_layer_norm(gpu, dtype, shape, place):
    """Forward with rows kept in place of Z, beside it, or not at all, and backward."""
    factors = [normal((1, shape[1]), float, seed) for seed in (5, 6)]
    Z, G = (3 + 2 * normal(shape, dtype, seed) for seed in (7, 8))
    centred = Z - Z.mean(axis=1, keepdims=True, dtype=float)
    expected = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPSILON)
    N, gradient = centred * expected, G * factors[0]
    gradients = np.stack([(N * G).sum(axis=0), G.sum(axis=0, dtype=float)])
    along = gradient.mean(axis=1, keepdims=True) + N * (N * gradient).mean(axis=1, keepdims=True)
    back = (gradient - along) * expected

    gain, shift = (gpu.asarray(row.astype(dtype)) for row in factors)
    z, given = map(gpu.asarray, (Z, G))
    kept = {"apart": gpu.nan(shape, dtype), "kept": z, "in place": None}[place]
    result = z if place == "in place" else gpu.nan(shape, dtype)
    scales = cuda.layer_norm(z, gain, shift, EPSILON, kept, result)
    np.testing.assert_allclose(gpu.to_host(result), factors[0] * N + factors[1], **tolerance(dtype))
    np.testing.assert_allclose(gpu.to_host(scales), expected, rtol=1e-6 if dtype == np.float32 else 1e-12)
    if kept is not None:
        np.testing.assert_allclose(gpu.to_host(kept), N, **tolerance(dtype))
        sums = cuda.layer_norm_backward(kept, scales, gain, given)
        bounds = {"rtol": 1e-4, "atol": 1e-3} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-9}
        np.testing.assert_allclose(gpu.to_host(given), back, **bounds)
        np.testing.assert_allclose(gpu.to_host(sums), gradients, **bounds)


@each("dtype", DTYPES)
@each("shape", [(0, 3), (1, 1), (7, 5), (33, 8), (19, 41), (683, 3)])
@each("rate", [0.0, 0.5, 0.9])
def test_dropout_masks_agree_to_the_bit(gpu, dtype, shape, rate):
    X = normal(shape, dtype)
    nodes = np.random.default_rng(3).permutation(10**12 + np.arange(shape[0]))
    columns = np.arange(5, 5 + shape[1])
    expected = elementwise.dropout(X, np.empty_like(X), 42, nodes, columns, 1 - rate)
    on_gpu, out = gpu.asarray(X), gpu.nan(shape, dtype)
    ids = gpu.asarray(nodes), gpu.asarray(columns)
    assert cuda.dropout(on_gpu, out, 42, *ids, 1 - rate) is out
    assert gpu.to_host(out).tobytes() == expected.tobytes()
    np.testing.assert_array_equal(gpu.to_host(on_gpu), X)


@each("dtype", DTYPES)
@each("shape", [(7, 5), (33, 8), (19, 41), (683, 3)])  # the last ends just behind a block
def test_activation_and_its_backward(gpu, dtype, shape):
    X, G = normal(shape, dtype), normal(shape, dtype, 2)
    X[0, 0] = np.nan
    nodes, columns = np.arange(shape[0]), np.arange(shape[1])
    H = elementwise.dropout(np.maximum(X, 0), X.copy(), 7, nodes, columns, 0.7)
    out = gpu.asarray(X)
    cuda.dropout(out, out, 7, gpu.asarray(nodes), gpu.asarray(columns), 0.7, relu=True)
    np.testing.assert_array_equal(gpu.to_host(out), H)
    bits = elementwise.positive_bits(H)
    expected, on_gpu = G.copy(), gpu.asarray(G)
    elementwise.keep_positive(expected, bits, 1 / 0.7)
    assert cuda.keep_positive(on_gpu, gpu.asarray(bits), 1 / 0.7) is on_gpu
    np.testing.assert_array_equal(gpu.to_host(on_gpu), expected)


@each("dtype", DTYPES)
@each("shape", [(1, 1), (3, 1), (7, 5), (33, 8), (19, 41), (2, 257), (683, 3)])
@each("relu", [False, True])
@each("keep", [None, 0.7])
@each("bias", [False, True])
def test_one_pass_activates_and_remembers(gpu, dtype, shape, relu, keep, bias):
    """To the bit what relu, dropout and packbits make; sizes end within a byte, a word and a warp."""
    X = normal(shape, dtype)
    X[0, 0], X[-1, -1] = np.nan, 0
    ids = np.arange(shape[0]) * 10**9, np.arange(3, 3 + shape[1])
    added = normal((1, shape[1]), dtype, 3) if bias else np.zeros((1, 1), dtype)
    shared = gpu.asarray(added) if bias else None
    expected = np.maximum(X + added, 0) if relu else X + added
    if keep:
        expected = elementwise.dropout(expected, expected, 7, *ids, keep)
    mask = (7, *map(gpu.asarray, ids), keep) if keep else None
    for place in (gpu.asarray, gpu.misaligned):
        on_gpu, out = place(X), place(np.full(shape, np.nan, dtype))
        bits = cuda.activate(on_gpu, out, mask, relu, True, shared)
        np.testing.assert_array_equal(gpu.to_host(out), expected)
        np.testing.assert_array_equal(gpu.to_host(bits), np.packbits(expected > 0))
        assert cuda.activate(on_gpu, on_gpu, mask, relu, bias=shared) is None
        np.testing.assert_array_equal(gpu.to_host(on_gpu), expected)
        np.testing.assert_array_equal(gpu.to_host(cuda.positive_bits(on_gpu)), np.packbits(expected > 0))


def softmax_oracle(logits, rows, labels, count):
    x = logits[rows].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    gradient = np.zeros(logits.shape)
    losses = -np.log(p[np.arange(len(rows)), labels])
    p[np.arange(len(rows)), labels] -= 1
    gradient[rows] = p / count
    return losses, gradient


@each("dtype", DTYPES)
@each("classes", [1, 7, 32, 40, 47, 100, 130, 256, 600])
@each("in_place", [False, True])
def test_softmax_cross_entropy(gpu, dtype, classes, in_place):
    m = 29
    logits = 20 * normal((m, classes), dtype)
    rows = np.sort(np.random.default_rng(4).permutation(m)[:13])
    labels = np.random.default_rng(5).integers(0, classes, 13)
    position = np.full(m, -1, np.int32)
    position[rows] = np.arange(13)
    losses, gradient = softmax_oracle(logits, rows, labels, 13)
    on_gpu = gpu.asarray(logits)
    arguments = gpu.asarray(position), gpu.asarray(labels), on_gpu if in_place else None
    got_losses, got = cuda.softmax_cross_entropy(on_gpu, *arguments)
    np.testing.assert_allclose(gpu.to_host(got_losses), losses, **tolerance(dtype))
    np.testing.assert_allclose(gpu.to_host(got), gradient, **tolerance(dtype))
    assert (got is on_gpu) == in_place
    if not in_place:
        np.testing.assert_array_equal(gpu.to_host(on_gpu), logits)


@each("dtype", DTYPES)
@each("shape", [(0, 3), (1, 1), (7, 5), (33, 32), (19, 41), (3, 700), (257, 8)])
@each("keep", [1.0, 0.75])
def test_elu(gpu, dtype, shape, keep):
    """Forward and back, with a mask of dropout and without, and NaN where there was one."""
    x, G = 3 * normal(shape, dtype, 1), normal(shape, dtype, 2)
    if x.size:
        x.flat[0], x.flat[-1], G.flat[-1] = np.nan, -np.inf, 2
    places = [np.arange(size) for size in shape]
    mask = (7, *map(gpu.asarray, places), keep) if keep < 1 else None
    kept = rng.keep_mask(7, *places, keep) / keep if keep < 1 else np.ones(shape)
    H, gradient = gpu.asarray(x), gpu.asarray(G)
    cuda.elu(H, mask)
    with np.errstate(invalid="ignore"):
        expected = np.where(x > 0, x, np.expm1(np.minimum(x, 0))).astype(np.float64) * kept
        slopes = np.where(x > 0, 1, np.exp(np.minimum(x, 0).astype(np.float64)))
    np.testing.assert_allclose(gpu.to_host(H), expected, **tolerance(dtype))
    cuda.elu_back(gradient, H, keep, mask)
    np.testing.assert_allclose(gpu.to_host(gradient), G * kept * slopes, **tolerance(dtype))
    with pytest.raises(ValueError, match="elu_back: H must be"):
        cuda.elu_back(gradient, gpu.asarray(np.zeros((2, 9), dtype)), keep, mask)


@each("dtype", DTYPES)
@each("columns", [1, 8, 9])
@each("given", [False, True])
def test_dropout_in_place(gpu, dtype, columns, given):
    """Few columns are hashed by the thread of a row, by keys that are given or in an array."""
    x, k = 1 + abs(normal((301, columns), dtype)), 7
    places = np.arange(301) * 5 + 2, np.arange(columns) * 3 + 1
    key = gpu.asarray(np.array([k, rng.key(k, 1)], np.uint64)) if given else k
    X = gpu.asarray(x)
    cuda.dropout(X, X, key, *map(gpu.asarray, places), 0.75)
    np.testing.assert_allclose(gpu.to_host(X), x * rng.keep_mask(k, *places, 0.75) / 0.75, **tolerance(dtype))


@each("classes", [1, 7, 32, 40, 47, 130, 256, 600])
def test_gradient_of_softmax_in_16_bits(gpu, classes):
    """The bits of a pass that rounds the gradient in float32, with zeros behind each row."""
    m, beyond = 29, gpu.xp.zeros(1, np.int32)
    logits = gpu.asarray(20 * normal((m, classes), np.float32))
    position = np.full(m, -1, np.int32)
    position[2:25] = np.arange(23)
    labels = gpu.asarray(np.random.default_rng(5).integers(0, classes, 23))
    known = logits, gpu.asarray(position), labels
    losses, gradient = cuda.softmax_cross_entropy(*known)
    expected = cuda.rounded(gradient, "bfloat16", beyond)
    room = cuda.Rounded(gpu.xp.full_like(expected.bits, 7), "bfloat16", (m, classes), beyond)
    got_losses, got = cuda.softmax_cross_entropy(*known, room)
    assert got is room
    np.testing.assert_array_equal(gpu.to_host(got.bits), gpu.to_host(expected.bits))
    np.testing.assert_array_equal(gpu.to_host(got_losses), gpu.to_host(losses))
    assert not gpu.to_host(beyond)[0]
    wide = gpu.asarray(np.zeros((m, classes + 9), np.float32))
    for wrong in (wide, cuda.rounded(wide, "bfloat16", beyond)):
        with pytest.raises(ValueError, match="softmax_cross_entropy: gradient must be"):
            cuda.softmax_cross_entropy(*known, wrong)


@each("kind", ["bfloat16", "float16"])
@each("shape", [(0, 5), (3, 5), (11, 1), (700, 40), (9, 33), (2100, 3)])
def test_sums_of_columns_in_16_bits(gpu, kind, shape, monkeypatch):
    """Numbers behind the rows are not summed."""
    monkeypatch.setattr(TUNING, "summed_rows", 4)
    read = cuda.rounded(gpu.asarray(normal(shape, np.float32)), kind, gpu.xp.zeros(1, np.int32))
    read.bits[:, shape[1] :] = 15000
    wide = gpu.asarray(gpu.to_host(widened(read)))
    np.testing.assert_array_equal(*(gpu.to_host(cuda.column_sums(X)) for X in (read, wide)))


@each("dtype", DTYPES)
def test_softmax_where_no_vector_may_be_read(gpu, dtype):
    m, f = 9, 40
    logits, labels = normal((m, f), dtype), np.arange(m)
    room = gpu.asarray(np.zeros(m * f + 1, dtype))
    on_gpu = room[1:].reshape(m, f)
    on_gpu[...] = gpu.asarray(logits)
    position = gpu.asarray(np.arange(m, dtype=np.int32))
    losses, gradient = softmax_oracle(logits, np.arange(m), labels, m)
    got, _ = cuda.softmax_cross_entropy(on_gpu, position, gpu.asarray(labels), on_gpu)
    np.testing.assert_allclose(gpu.to_host(got), losses, **tolerance(dtype))
    np.testing.assert_allclose(gpu.to_host(on_gpu), gradient, **tolerance(dtype))


@each("dtype", DTYPES)
@each("classes", [1, 32, 47])
@each("in_place", [False, True])
def test_binary_cross_entropy(gpu, dtype, classes, in_place):
    m = 29
    logits = 20 * normal((m, classes), dtype)
    rows = np.sort(np.random.default_rng(4).permutation(m)[:13])
    labels = np.random.default_rng(5).integers(0, 2, (13, classes)).astype(np.uint8)
    position = np.full(m, -1, np.int32)
    position[rows] = np.arange(13)
    z, gradient = logits[rows].astype(np.float64), np.zeros((m, classes))
    losses = (np.logaddexp(0, z) - labels * z).sum(axis=1)
    gradient[rows] = 0.25 * (np.exp(-np.logaddexp(0, -z)) - labels)
    on_gpu = gpu.asarray(logits)
    arguments = gpu.asarray(position), gpu.asarray(labels), on_gpu if in_place else None, 0.25
    got_losses, got = cuda.binary_cross_entropy(on_gpu, *arguments)
    np.testing.assert_allclose(gpu.to_host(got_losses), losses, **tolerance(dtype))
    np.testing.assert_allclose(gpu.to_host(got), gradient, **tolerance(dtype))
    assert (got is on_gpu) == in_place


@each("dtype", DTYPES)
@each("f", [1, 2, 31, 32, 33, 100])
def test_counts_of_hits(gpu, dtype, f):
    """Entries are whole numbers, so that many are equal: the first counts. Some rows are not finite."""
    random, m = np.random.default_rng(f), 300
    logits = random.integers(-3, 4, (m, f)).astype(dtype)
    rows = np.sort(random.permutation(m)[:217])
    for at, bad in ((5, np.nan), (70, np.inf), (201, -np.inf), (216, np.nan)):
        logits[rows[at], random.integers(f)] = bad
    labels, parts = random.integers(0, min(f, 3), rows.size), random.integers(1, 4, rows.size)
    finite = np.isfinite(logits[rows]).all(axis=1)
    expected = [(~finite).sum()]
    right = finite & (logits[rows].argmax(axis=1) == labels)
    expected += [(right & (parts == part)).sum() for part in (1, 2, 3)]
    got = cuda.count_hits(*map(gpu.asarray, (logits, rows, labels, parts)))
    assert gpu.to_host(got).tolist() == expected
    none = np.zeros(0, np.int64)
    assert not gpu.to_host(cuda.count_hits(*map(gpu.asarray, (logits, none, none, none)))).any()


def test_bad_input_is_refused(gpu):
    zeros = gpu.xp.zeros
    X, rows, cols, out = (
        zeros((4, 6), np.float32),
        zeros(3, np.int64),
        zeros(6, np.int64),
        zeros((3, 6), np.float32),
    )
    for complaint, call in (
        ("gather_rows: X", lambda: cuda.gather_rows(X.T, rows, out)),
        ("gather_rows: out", lambda: cuda.gather_rows(X, rows, zeros((4, 6), np.float32))),
        ("gather_rows: rows", lambda: cuda.gather_rows(X, zeros(3, np.int32), out)),
        ("scatter_add: X", lambda: cuda.scatter_add(zeros((2, 6), np.float32), rows, X)),
        ("scatter_add: rows", lambda: cuda.scatter_add(out, zeros(3, np.int32), X)),
        ("scatter_add: out", lambda: cuda.scatter_add(out, rows, zeros((6, 4), np.float32).T)),
        (
            "no kernel takes int8",
            lambda: cuda.scatter_add(zeros((3, 6), np.int8), rows, zeros((4, 6), np.int8)),
        ),
        ("dropout: block", lambda: cuda.dropout(X.T, X.T, 0, cols, rows, 0.5)),
        ("dropout: out", lambda: cuda.dropout(X, out, 0, zeros(4, np.int64), cols, 0.5)),
        ("dropout: rows", lambda: cuda.dropout(X, X, 0, rows, cols, 0.5)),
        ("dropout: cols", lambda: cuda.dropout(X, X, 0, zeros(4, np.int64), rows, 0.5)),
        ("keep_positive: bits", lambda: cuda.keep_positive(X, zeros(2, np.uint8))),
        ("position must", lambda: cuda.softmax_cross_entropy(X, rows, rows)),
        ("binary_cross_entropy: labels", lambda: cuda.binary_cross_entropy(X, zeros(4, np.int32), X)),
    ):
        with pytest.raises(ValueError, match=complaint):
            call()

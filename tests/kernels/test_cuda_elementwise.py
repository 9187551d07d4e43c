"""Row packing, activation, loss and optimiser kernels against the NumPy code they stand in for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distgnn import rng
from distgnn.local import cuda
from distgnn.local.cuda import csr, launch
from distgnn.nn import optim
from distgnn.nn.dropout import Dropout
from distgnn.nn.relu import keep_positive, positive_bits
from kernels.conftest import OTHER_KERNELS, names_of

pytestmark = pytest.mark.timeout(600)  # the first test waits for the compiler

DTYPES = [np.float32, np.float64]


def tolerance(dtype):
    return {"rtol": 2e-5, "atol": 1e-6} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-13}


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture
def built(gpu, any_gpu, monkeypatch):
    """All kernels of this file, compiled in few goes."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")
    if gpu.emulated and not getattr(any_gpu, "others_built", False):
        sums = {
            name
            for dtype in ("float32", "float64")
            for f in (1, 8, 41)
            for name in names_of(
                dtype, csr.candidates(f, np.dtype(dtype).itemsize, 256, 300 / 29)[0], kind=csr.UNIT
            )
        }
        any_gpu.xp.build(launch.source(csr.FILE), sorted(sums))
        for file, names in OTHER_KERNELS.items():
            any_gpu.xp.build(launch.source(file), names)
        any_gpu.others_built = True
    return gpu


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16])
@pytest.mark.parametrize("f", [0, 1, 2, 7, 8, 12, 32, 41, 128])
def test_gather_rows(built, dtype, f, index):
    gpu = built
    X = (1000 * normal((23, f), np.float64)).astype(dtype)
    rows = np.random.default_rng(1).integers(0, 23, 37).astype(index)
    np.testing.assert_array_equal(gpu.to_host(cuda.gather_rows(gpu.asarray(X), gpu.asarray(rows))), X[rows])
    if f:
        out = gpu.misaligned(np.zeros((37, f), dtype))
        cuda.gather_rows(gpu.misaligned(X), gpu.asarray(rows), out)
        np.testing.assert_array_equal(gpu.to_host(out), X[rows])
    none = cuda.gather_rows(gpu.asarray(X), gpu.asarray(rows[:0]))
    assert none.shape == (0, f)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [1, 8, 41])
@pytest.mark.parametrize("repeated", [False, True])
def test_scatter_add(built, dtype, f, repeated):
    gpu = built
    generator = np.random.default_rng(2)
    rows = generator.integers(0, 29, 300) if repeated else generator.permutation(29)[:17]
    X, out = normal((rows.size, f), dtype), normal((29, f), dtype, 1)
    expected = out.astype(np.float64)
    np.add.at(expected, rows, X)
    add = cuda.ScatterAdd(gpu.asarray(rows), 29, dtype)
    assert (add.matrix is not None) == repeated
    results = set()
    for order in (0, 1, 5) if gpu.emulated else (0, 0):
        if gpu.emulated:
            gpu.xp.order = order
        got = gpu.to_host(add(gpu.asarray(X), gpu.asarray(out)))
        np.testing.assert_allclose(got, expected, **tolerance(dtype))
        results.add(got.tobytes())
    assert len(results) == 1


def test_scatter_add_of_nothing(built):
    gpu = built
    add = cuda.ScatterAdd(gpu.asarray(np.zeros(0, np.int64)), 5, np.float32)
    out = add(gpu.asarray(np.zeros((0, 3), np.float32)), gpu.asarray(np.ones((5, 3), np.float32)))
    np.testing.assert_array_equal(gpu.to_host(out), 1)


def test_bfloat16(built):
    gpu = built
    x = np.concatenate(
        [
            normal(1000, np.float32),
            [0, -0.0, np.inf, -np.inf, np.nan, 3.3895e38, 1e-40, 1.00390625, 1.01171875],
        ]
    )
    x = x.astype(np.float32)
    got = gpu.to_host(cuda.to_bfloat16(gpu.asarray(x)))
    wide = (got.astype(np.uint32) << 16).view(np.float32)
    finite = np.isfinite(wide) & (x != 0)
    np.testing.assert_array_equal(wide[x == 0].view(np.uint32), x[x == 0].view(np.uint32))
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(x))
    # Nearest: no neighbour is nearer; ties to even.
    for step in (-1, 1):
        neighbour = ((got.astype(np.int64) + step).astype(np.uint32) << 16).view(np.float32)
        near, far = np.abs(wide[finite] - x[finite]), np.abs(neighbour[finite] - x[finite])
        assert (near <= far).all() and (got[finite][near == far] % 2 == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 5), (33, 8), (19, 41)])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_dropout_masks_agree_to_the_bit(built, dtype, shape, rate):
    gpu = built
    m, f = shape
    X = normal(shape, dtype)
    nodes = np.random.default_rng(3).permutation(10**12 + np.arange(m))
    columns = np.arange(5, 5 + f)
    seed, epoch, layer = 42, 7, 1
    expected = Dropout(rate, seed, layer, nodes, columns).apply(X.copy(), epoch)
    masks = cuda.Dropout(
        rate, rng.key(seed, rng.DROPOUT, epoch, layer), gpu.asarray(nodes), gpu.asarray(columns)
    )
    got = gpu.to_host(cuda.activate(gpu.asarray(X), dropout=masks))
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 5), (33, 8), (19, 41)])
def test_activation_and_its_backward(built, dtype, shape):
    gpu = built
    m, f = shape
    X, bias, G = normal(shape, dtype), normal(f, dtype, 1), normal(shape, dtype, 2)
    nodes, columns = np.arange(m), np.arange(f)
    k = rng.key(0, rng.DROPOUT, 0, 0)
    H = np.maximum(X + bias, 0)
    Dropout(0.3, 0, 0, nodes, columns).apply(H, 0)
    masks = cuda.Dropout(0.3, k, gpu.asarray(nodes), gpu.asarray(columns))
    out, positive = gpu.asarray(X), gpu.asarray(np.zeros(-(-m * f // 8), np.uint8))
    assert cuda.activate(out, out, bias=gpu.asarray(bias), relu=True, dropout=masks, positive=positive) is out
    np.testing.assert_array_equal(gpu.to_host(out), H)
    bits = positive_bits(H)
    np.testing.assert_array_equal(gpu.to_host(positive), bits)
    expected = G.copy()
    keep_positive(expected, bits, 1 / 0.7)
    np.testing.assert_array_equal(
        gpu.to_host(cuda.keep_positive(gpu.asarray(G), positive, 1 / 0.7)), expected
    )


def softmax_oracle(logits, rows, labels, count):
    x = logits[rows].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    gradient = np.zeros(logits.shape)
    losses = -np.log(p[np.arange(len(rows)), labels])
    p[np.arange(len(rows)), labels] -= 1
    gradient[rows] = p / count
    return losses, gradient


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [1, 7, 32, 47, 100])
@pytest.mark.parametrize("in_place", [False, True])
def test_softmax_cross_entropy(built, dtype, classes, in_place):
    gpu = built
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", [(0, 3, 3, 10), (0, 10, 10, 10)])
def test_softmax_with_classes_cut_over_ranks(built, dtype, cuts):
    """Three ranks, one of them (or two) without classes; the reductions are done here."""
    gpu = built
    m, classes = 17, 10
    logits = 20 * normal((m, classes), dtype)
    rows = np.arange(1, m, 2)
    labels = np.random.default_rng(6).integers(0, classes, rows.size)
    position = np.full(m, -1, np.int32)
    position[rows] = np.arange(rows.size)
    losses, gradient = softmax_oracle(logits, rows, labels, 100)
    parts = [
        cuda.CutSoftmax(gpu.asarray(logits[:, lo:hi]), lo, gpu.asarray(rows), gpu.asarray(position))
        for lo, hi in zip(cuts, cuts[1:], strict=False)
    ]
    highest = gpu.asarray(np.max([gpu.to_host(part.highest()) for part in parts], axis=0))
    sums = gpu.asarray(np.sum([gpu.to_host(part.sums(highest)) for part in parts], axis=0))
    total = np.zeros(rows.size)
    for part, lo, hi in zip(parts, cuts, cuts[1:], strict=False):
        total += gpu.to_host(part.gradient(gpu.asarray(labels), highest, sums, 100, part.logits))
        np.testing.assert_allclose(gpu.to_host(part.logits), gradient[:, lo:hi], **tolerance(dtype))
    np.testing.assert_allclose(total, losses, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "options"), [("sgd", {}), ("sgd", {"momentum": 0.9}), ("adam", {}), ("adamw", {})]
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_optimisers(built, dtype, name, options, decay):
    gpu = built
    shape = (37, 9)
    w, slots = normal(shape, dtype), {}
    parameter = optim.Parameter("W0", 0, "weight", SimpleNamespace(block=w.copy()))
    reference = optim.make(name, 0.05, decay, **options)
    on_gpu = gpu.asarray(w)
    for slot in ("m", "v"):
        slots[slot] = gpu.asarray(np.zeros(shape, dtype))
    for step in range(1, 4):
        g = normal(shape, dtype, step)
        reference.step([parameter], [g.copy()])
        if name == "sgd":
            velocity = slots["v"] if options else None
            cuda.sgd(on_gpu, gpu.asarray(g), velocity, lr=0.05, decay=decay, **options)
        else:
            cuda.adam(
                on_gpu,
                gpu.asarray(g),
                slots["m"],
                slots["v"],
                step=step,
                lr=0.05,
                decay=decay,
                decoupled=name == "adamw",
            )
    np.testing.assert_allclose(gpu.to_host(on_gpu), parameter.block, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_of_adam_are_exact_to_rounding(built, dtype):
    """1 - 0.999 taken in floats would be wrong by 1.3e-5."""
    gpu, g = built, normal((37, 9), dtype)
    w, m, v = (gpu.asarray(np.zeros(g.shape, dtype)) for _ in range(3))
    cuda.adam(w, gpu.asarray(g), m, v, step=1, lr=0.05)
    exact = g.astype(np.float64)
    for moment, expected in ((m, (1 - 0.9) * exact), (v, (1 - 0.999) * exact**2)):
        np.testing.assert_allclose(gpu.to_host(moment), expected, rtol=4 * np.finfo(dtype).eps)


def test_bad_input_is_refused(built):
    gpu = built
    zeros = gpu.xp.zeros
    X = zeros((4, 6), np.float32)
    rows = zeros(3, np.int64)
    for complaint, call in (
        ("gather_rows: X", lambda: cuda.gather_rows(X.T, rows)),
        ("gather_rows: out", lambda: cuda.gather_rows(X, rows, zeros((4, 6), np.float32))),
        ("no kernel takes int8", lambda: cuda.gather_rows(X, zeros(3, np.int8))),
        ("scatter add: X", lambda: cuda.ScatterAdd(rows, 4, np.float32)(zeros((2, 6), np.float32), X)),
        ("activate: X", lambda: cuda.activate(X.T)),
        ("activate: bias", lambda: cuda.activate(X, bias=zeros(5, np.float32))),
        ("activate: positive", lambda: cuda.activate(X, positive=zeros(2, np.uint8))),
        ("dropout rows", lambda: cuda.activate(X, dropout=cuda.Dropout(0.5, 1, rows, rows))),
        ("keep_positive: bits", lambda: cuda.keep_positive(X, zeros(2, np.uint8))),
        ("position must", lambda: cuda.softmax_cross_entropy(X, rows, rows)),
        ("adam: gradient or state", lambda: cuda.adam(X, X, X, zeros((6, 4), np.float32), step=1, lr=1)),
        ("sgd: gradient", lambda: cuda.sgd(X, zeros((4, 6), np.float64), None, lr=1)),
        ("to_bfloat16", lambda: cuda.to_bfloat16(zeros((4, 6), np.float64))),
    ):
        with pytest.raises(ValueError, match=complaint):
            call()

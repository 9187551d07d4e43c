"""Steps of optimisers on many parameters in one launch, against one parameter after the other on the host."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.local import cuda, elementwise
from distgnn.local.update import Part, Update
from kernels.conftest import in_orders, normal, tolerance
from loops import each

DTYPES = [np.float32, np.float64]
#: Some threads of a block, a whole one and one more, none; more than one launch has parameters for.
SIZES = (333, 0, 256, 1, 257, 40, 700, 2, 512, 3)
CONSTANTS = {"first": 0.9, "second": 0.999, "epsilon": 1e-8}


def arrays_of(slots, dtype):
    """Make w and state of every parameter on the host; moments are not negative."""
    return [
        [normal(size, dtype, size), *(abs(normal(size, dtype, i)) for i in range(slots))] for size in SIZES
    ]


def decays(index):
    """Return shrink and decay: some parameters shrink, some decay, some do neither."""
    return (1.0, 0.9, 1.0)[index % 3], (0.1, 0.0, 0.0)[index % 3]


def stepped(gpu, kernel, slots, dtype, rates, square=None, most=0.0, factors=None, **constants):
    """Make three steps of a kernel; return the parameters with their state, and what was seen to be bad."""
    arrays = [list(map(gpu.asarray, of_one)) for of_one in arrays_of(slots, dtype)]
    bad = gpu.asarray(np.zeros(2 * len(SIZES), np.int32))
    for step in range(3):
        gradients = [gpu.asarray(normal(size, dtype, 10 * step + size)) for size in SIZES]
        parts = [
            Part(a[0], g, tuple(a[1:]), *decays(i))
            for i, (a, g) in enumerate(zip(arrays, gradients, strict=True))
        ]
        update = Update((1e9,) * len(rates) if factors is not None else rates, bad, square, most, factors)
        kernel(parts, update, **constants)
    return [[gpu.to_host(x) for x in of_one] for of_one in arrays], gpu.to_host(bad)


def expected(slots, dtype, step_of_one, scale=1.0):
    """Make the same steps by ``step_of_one(w, g, *state, shrink, decay)``, which returns nothing."""
    arrays = arrays_of(slots, dtype)
    for step in range(3):
        for i, (of_one, size) in enumerate(zip(arrays, SIZES, strict=True)):
            g = (normal(size, dtype, 10 * step + size) * scale).astype(dtype)
            step_of_one(of_one[0], g, *of_one[1:], **dict(zip(("shrink", "decay"), decays(i), strict=True)))
    return arrays


def compare(got, wanted, dtype):
    for mine, theirs in zip(got, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, **tolerance(dtype))


@each("dtype", DTYPES)
@each("clip", [None, 0.5, 1e9])
@each("steady", [False, True])
def test_adam(gpu, dtype, clip, steady):
    """Rates come as arguments, or from the memory of the device; gradients are scaled where that is asked."""
    rates, square = (0.05, 0.3), None if clip is None else gpu.asarray(np.array([4.0]))
    rows = np.ones((2, 10))
    rows[:, :2] = rates
    for i in range(len(SIZES)):
        rows[i // 8, 2 + i % 8] = decays(i)[0]
    factors = gpu.asarray(rows) if steady else None
    known = {"square": square, "most": clip or 0.0, "factors": factors}
    got, bad = stepped(gpu, cuda.adam, 2, dtype, rates, **known, **CONSTANTS)
    scale = 1 if clip is None else min(clip / 2, 1)

    def one(w, g, m, v, **of_part):
        elementwise.adam(w, g, m, v, rate=rates[0], correction=rates[1], **CONSTANTS, **of_part)

    compare(got, expected(2, dtype, one, scale), dtype)
    assert not bad.any()


@each("dtype", DTYPES)
@each("momentum", [0.0, 0.8])
@each("steady", [False, True])
def test_sgd(gpu, dtype, momentum, steady):
    """Every operation is rounded, so that the bits are those of array operations."""
    slots = int(momentum > 0)
    factors = gpu.asarray(np.tile([0.05, *8 * [1.0]], (2, 1))) if steady else None

    def one(w, g, *v, shrink, decay):
        if decay:
            g += dtype(decay) * w
        if v:
            v[0][...] = v[0] * dtype(momentum) + g
        w -= dtype(0.05) * (v[0] if v else g)

    got, bad = stepped(gpu, cuda.sgd, slots, dtype, (0.05,), factors=factors, momentum=momentum)
    for mine, theirs in zip(got, expected(slots, dtype, one), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not bad.any()


@each("number", [np.nan, np.inf, -np.inf, 1e30])
@each("kernel, slots, constants", [(cuda.adam, 2, CONSTANTS), (cuda.sgd, 0, {"momentum": 0.0})])
def test_what_is_not_finite_is_marked(gpu, number, kernel, slots, constants):
    """The first or last number of a gradient, and the parameter that it spoils or that was bad before."""
    for index, place in ((0, 0), (4, 256), (9, 2)):
        for of_gradient in (True, False):
            arrays = arrays_of(slots, np.float32)
            gradients = [normal(size, np.float32, size) for size in SIZES]
            (gradients if of_gradient else [a[0] for a in arrays])[index][place] = number
            on = [[gpu.asarray(x) for x in (a[0], g, *a[1:])] for a, g in zip(arrays, gradients, strict=True)]
            bad = gpu.asarray(np.zeros(2 * len(SIZES), np.int32))
            parts = [Part(w, g, tuple(state)) for w, g, *state in on]
            kernel(parts, Update((0.05, 0.3)[: 1 + (slots == 2)], bad), **constants)
            marks = gpu.to_host(bad).reshape(2, -1)
            assert marks[0].any() == of_gradient and not np.delete(marks, index, axis=1).any()
            assert marks[0, index] == of_gradient
            with np.errstate(all="ignore"):
                left = gpu.to_host(on[index][0])
                assert marks[1, index] == (not np.isfinite(left * left).all())


@each("dtype", DTYPES)
@each("sizes", [(0,), (1,), SIZES, (9000, 3), (600_000,)])
def test_sum_of_squares(gpu, dtype, sizes):
    """Sums are the same in every order of blocks, and count on no bytes that an earlier sum left."""
    xs = [normal(size, dtype, size) for size in sizes]
    exact = sum((x.astype(np.float64) ** 2).sum() for x in xs)
    found = set()
    for _ in in_orders(gpu, (0, 1, 2) if max(sizes) < 10_000 else (0,)):
        square = gpu.nan((1,), np.float64)
        cuda.sum_squares([gpu.asarray(x) for x in xs], square)
        found.add(float(gpu.to_host(square)[0]))
    assert len(found) == 1
    np.testing.assert_allclose(found.pop(), exact, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_of_adam_are_exact_to_rounding(gpu, dtype):
    """1 - 0.999 taken in floats would be wrong by 1.3e-5."""
    g = normal(333, dtype)
    w, m, v = (gpu.asarray(np.zeros(333, dtype)) for _ in range(3))
    bad = gpu.asarray(np.zeros(2, np.int32))
    cuda.adam([Part(w, gpu.asarray(g), (m, v))], Update((0.05, 0.001), bad), **CONSTANTS)
    exact = g.astype(np.float64)
    for moment, wanted in ((m, (1 - 0.9) * exact), (v, (1 - 0.999) * exact**2)):
        np.testing.assert_allclose(gpu.to_host(moment), wanted, rtol=4 * np.finfo(dtype).eps)


def test_bad_input_is_refused(gpu):
    zeros = gpu.xp.zeros
    x, short = zeros(4, np.float32), zeros(3, np.float32)
    update, constants = Update((0.1, 0.1), zeros(2, np.int32)), CONSTANTS
    for complaint, call in (
        ("adam: v", lambda: cuda.adam([Part(x, x, (x, short))], update, **constants)),
        ("adam: gradient", lambda: cuda.adam([Part(x, zeros(4), (x, x))], update, **constants)),
        ("adam: bad", lambda: cuda.adam([Part(x, x, (x, x))] * 2, update, **constants)),
        ("sgd: v", lambda: cuda.sgd([Part(x, x, (short,))], update, momentum=0.5)),
        ("sum_squares: array", lambda: cuda.sum_squares([x, zeros(4)], zeros(1))),
        ("sum_squares: square", lambda: cuda.sum_squares([x], zeros(1, np.float32))),
    ):
        with pytest.raises(ValueError, match=complaint):
            call()

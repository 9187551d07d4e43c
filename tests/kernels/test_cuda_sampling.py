"""Row sampling on a GPU against the compiled host kernel and NumPy, to the bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import rng
from distgnn.local import cuda, host
from distgnn.local import draw as rows
from kernels.conftest import in_orders
from loops import each

LENGTHS = [0, 1, 2, 3, 4, 5, 31, 32, 33, 0, 0, 64, 65, 400, 7, 3000, 0, 60, 1, 96]
ORDERS = (0, 1, 5)


def keys_of(count: int) -> np.ndarray:
    return rng.hashes(rng.key(0, rng.SAMPLE), np.arange(count))


def uneven() -> np.ndarray:
    """Draw weights over 24 orders of magnitude, some 0."""
    generator = np.random.default_rng(0)
    weights = 10.0 ** generator.uniform(-12, 12, sum(LENGTHS))
    weights[generator.random(len(weights)) < 0.2] = 0
    return weights


WEIGHTS = {
    "uneven": uneven(),
    "even": np.random.default_rng(1).uniform(0.5, 1.5, sum(LENGTHS)),
    "ones": np.ones(sum(LENGTHS)),
    "zeros": np.zeros(sum(LENGTHS)),
    "a few": np.where(np.arange(sum(LENGTHS)) % 41 == 3, 2.5, 0),
    "powers of 4": 4.0 ** (np.arange(sum(LENGTHS)) % 97),  # nearly every draw makes the prefix sum again
    "subnormal": 5e-324 * np.random.default_rng(2).integers(0, 4, sum(LENGTHS)),
    "negative zeros": np.where(np.arange(sum(LENGTHS)) % 2, 1e300, -0.0),
}
POINTERS = np.concatenate(([0], np.cumsum(LENGTHS)))


def orders(gpu):
    return in_orders(gpu, ORDERS, 2)


def equal(gpu, found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            one = gpu.to_host(one)
            assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("compiled", [True, False])
@each("count", [0, 1, 4, 32, 70])
@each("name", WEIGHTS)
def test_weighted_rows_agree_to_the_bit(gpu, name, count, compiled, monkeypatch):
    weights, keys = WEIGHTS[name], keys_of(len(LENGTHS))
    if compiled and host.module() is None:
        pytest.skip("the host kernels are not built here")
    if not compiled:
        monkeypatch.setattr(host, "module", lambda: None)
    expected = rows.draw(POINTERS, weights, count, keys, remaining=True)
    picked = np.zeros(len(weights), np.uint8)
    picked[expected.positions] = 1
    on_gpu = [gpu.asarray(x) for x in (POINTERS, weights)]
    for _ in orders(gpu):
        marks, left = gpu.xp.empty(len(weights), np.uint8), gpu.nan((len(LENGTHS), count + 1), np.float64)
        assert cuda.sample_weighted(*on_gpu, count, gpu.asarray(keys), marks, left) == -1
        equal(gpu, (marks, left), (picked, expected.remaining))
    assert cuda.sample_weighted(*on_gpu, count, gpu.asarray(keys), marks) == -1
    equal(gpu, (marks,), (picked,))
    if weights.all():
        sums = np.concatenate([np.cumsum(weights[i:j]) for i, j in pairwise(POINTERS)])
        left = gpu.nan((len(LENGTHS), count + 1), np.float64)
        cuda.draw_weighted(*on_gpu, count, gpu.asarray(keys), marks, left, gpu.asarray(sums))
        equal(gpu, (marks, left), (picked, expected.remaining))


@pytest.mark.parametrize("compiled", [True, False])
@each("count", [0, 1, 4, 20, 32, 33, 70, 350, 10**12])
def test_rows_of_ones_agree_to_the_bit(gpu, count, compiled, monkeypatch):
    """Counts of more than half a row, too, where the list of what was drawn is sorted again and again."""
    keys = keys_of(len(LENGTHS))
    repeated = np.random.default_rng(3).integers(0, len(LENGTHS), len(LENGTHS))
    if compiled and host.module() is None:
        pytest.skip("the host kernels are not built here")
    if not compiled:
        monkeypatch.setattr(host, "module", lambda: None)
    some = min(count, max(LENGTHS))  # host room is made for count, not for what there is
    pointers, own = gpu.asarray(POINTERS), gpu.asarray(keys)
    for selected in (np.arange(len(LENGTHS)), repeated):
        chosen = rows.draw_selected(POINTERS, selected, some, keys)
        for _ in orders(gpu):
            equal(gpu, cuda.sample_ones(pointers, gpu.asarray(selected), count, own), chosen[:2])


@pytest.mark.parametrize("count", [3, 2000])
def test_one_hub(gpu, count):
    """A row of many passes among empty ones; of ones, with most of it drawn."""
    keys = keys_of(300)
    pointers = np.where(np.arange(301) > 250, 2049, 0)
    weights = np.random.default_rng(4).lognormal(0, 3, 2049)
    expected = rows.draw(pointers, weights, count, keys, remaining=True)
    marks, left = gpu.xp.empty(2049, np.uint8), gpu.nan((300, count + 1), np.float64)
    assert (
        cuda.sample_weighted(
            gpu.asarray(pointers), gpu.asarray(weights), count, gpu.asarray(keys), marks, left
        )
        == -1
    )
    np.testing.assert_array_equal(np.flatnonzero(gpu.to_host(marks)), expected.positions)
    equal(gpu, (left,), (expected.remaining,))
    found = cuda.sample_ones(gpu.asarray(pointers), gpu.asarray(np.arange(300)), count, gpu.asarray(keys))
    equal(gpu, found, rows.draw(pointers, np.ones(pointers[-1]), count, keys)[:2])


def test_no_rows(gpu):
    none = np.zeros(0)
    pointers, keys = gpu.asarray(np.zeros(1, np.int64)), gpu.asarray(none.astype(np.uint64))
    assert cuda.sample_weighted(pointers, gpu.asarray(none), 3, keys, gpu.xp.empty(0, np.uint8)) == -1
    positions, counts = cuda.sample_ones(pointers, gpu.asarray(none.astype(np.int64)), 3, keys)
    assert positions.shape == counts.shape == (0,)


@each("wrong", [-1.0, -5e-324, np.nan, np.inf, -np.inf, 1.5e308])
@each("at", [0, 40, 99])
def test_the_first_bad_row_is_named(gpu, wrong, at):
    weights = np.ones(400)
    weights[[100 + at, 350]] = wrong  # rows 1 and 3
    weights[[150, 351]] = 1.5e308  # with which only the sum of another is infinite
    pointers = gpu.asarray(np.arange(5) * 100)
    arguments = gpu.asarray(weights), 2, gpu.asarray(keys_of(4)), gpu.xp.empty(400, np.uint8)
    assert cuda.sample_weighted(pointers, *arguments) == 1
    if wrong != 1.5e308:  # in a row that would be taken whole
        assert cuda.sample_weighted(pointers, arguments[0], 200, *arguments[2:]) == 1
    weights[150] = 1
    if wrong == 1.5e308:  # alone, it does no harm
        assert cuda.sample_weighted(pointers, gpu.asarray(weights), *arguments[1:]) == 3


@pytest.mark.parametrize("remaining", [False, True])
@pytest.mark.parametrize("count", [0, 3, 40])
def test_arrays_on_a_gpu_are_drawn_from_there(gpu, count, remaining):
    keys = keys_of(len(LENGTHS))
    selected = np.array([13, 0, 15, 15, 3])
    weights = WEIGHTS["uneven"]
    expected = rows.draw(POINTERS, weights, count, keys, remaining)
    chosen = rows.draw_selected(POINTERS, selected, count, keys[:5])
    there = gpu.asarray(POINTERS), gpu.asarray(weights), count, gpu.asarray(keys)
    found = rows.draw(*there, remaining)
    equal(gpu, found, expected)
    assert isinstance(found.ends, np.ndarray)
    found = rows.draw_selected(there[0], gpu.asarray(selected), count, there[3][:5])
    equal(gpu, found[:2], chosen[:2])


def test_a_matrix_of_cupy(gpu):
    from distgnn.sampling import sample_rows  # needs MPI, unlike all else here

    keys = keys_of(len(LENGTHS))
    columns = np.concatenate([np.random.default_rng(6).permutation(3000)[:length] for length in LENGTHS])
    P = sp.csr_array((WEIGHTS["uneven"].astype(np.float32), columns, POINTERS), shape=(len(LENGTHS), 3000))
    expected = sample_rows(P, 9, keys)
    import cupyx.scipy.sparse as cupy_sparse

    there = cupy_sparse.csr_matrix(P)
    found = sample_rows(there, 9, gpu.asarray(keys))
    assert type(found) is type(there) and found.dtype == np.float32
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(gpu.to_host(getattr(found, name)), getattr(expected, name))


def test_bad_input_is_refused(gpu):
    pointers, weights, keys = (
        gpu.asarray(np.array([0, 4, 9])),
        gpu.asarray(np.ones(9)),
        gpu.asarray(keys_of(2)),
    )
    marks, left, selected = gpu.xp.empty(9, np.uint8), gpu.xp.empty((2, 3)), gpu.asarray(np.arange(2))
    negative = gpu.asarray(-np.ones(9))
    for complaint, call in (
        ("sample_weighted: indptr", lambda: cuda.sample_weighted(pointers[:2], weights, 2, keys, marks)),
        (
            "sample_weighted: weights",
            lambda: cuda.sample_weighted(pointers, weights.astype(np.float32), 2, keys, marks),
        ),
        (
            "sample_weighted: keys",
            lambda: cuda.sample_weighted(pointers, weights, 2, keys.astype(np.int64), marks),
        ),
        ("sample_weighted: picked", lambda: cuda.sample_weighted(pointers, weights, 2, keys, marks[1:])),
        ("sample_weighted: remaining", lambda: cuda.sample_weighted(pointers, weights, 3, keys, marks, left)),
        ("row_lengths: indptr", lambda: cuda.sample_ones(pointers.astype(np.int32), selected, 2, keys)),
        ("sample_ones: keys", lambda: cuda.sample_ones(pointers, selected, 2, keys[:1])),
        ("row_lengths: rows", lambda: cuda.sample_ones(pointers, selected.astype(np.int32), 2, keys)),
        ("row 0 has weights that are negative", lambda: rows.draw(pointers, negative, 2, keys)),
        ("cannot draw -1 columns", lambda: rows.draw(pointers, weights, -1, keys)),
    ):
        with pytest.raises(ValueError, match=complaint):
            call()


@pytest.mark.parametrize("count", [1, 4, 70])
def test_inclusions_agree_to_rounding(gpu, count, monkeypatch):
    keys, weights = keys_of(len(LENGTHS)), WEIGHTS["even"]
    drawn = rows.draw(POINTERS, weights, count, keys, remaining=True)
    chosen = weights[drawn.positions]
    expected = rows.inclusion(chosen, drawn, keys)
    arguments = [gpu.asarray(x) for x in (chosen, drawn.bounds, drawn.remaining, keys)]
    for _ in orders(gpu):
        np.testing.assert_allclose(gpu.to_host(cuda.inclusion(*arguments)), expected, rtol=1e-12)
    assert 0 < expected.min() < 1 == expected.max()

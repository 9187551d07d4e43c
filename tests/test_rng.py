"""Counter-based random numbers: the statistics of a good generator, and independence of the block layout."""

from __future__ import annotations

import numpy as np

from distgnn import rng
from loops import each

ROWS, COLS = np.arange(1200), np.arange(700)


def signs(k: int, rows: np.ndarray = ROWS, cols: np.ndarray = COLS, probability: float = 0.5) -> np.ndarray:
    """Return the mask with mean 0 and variance 1."""
    keep = rng.keep_mask(k, rows, cols, probability)
    return (keep - probability) / np.sqrt(probability * (1 - probability))


def sigmas(values: np.ndarray) -> float:
    """Count the standard deviations from 0 of a sum of independent values of mean 0, variance 1."""
    return abs(float(values.sum())) / np.sqrt(values.size)


def test_splitmix64_is_the_published_sequence() -> None:
    state = (np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + np.uint64(1234567)
    assert rng.splitmix64(state).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_keys_use_the_same_hash() -> None:
    assert rng.key(1234567, 0) == int(rng.splitmix64(rng.splitmix64(np.array([1234567], np.uint64)))[0])


def test_keys_depend_on_every_word_and_their_order() -> None:
    words = [(0, 1), (1, 0), (1, 1), (0, 1, 0), (0, 1, 0, 0), (0, 1, 1, 2), (0, 1, 2, 1), (-1, 1), (2**63, 1)]
    keys = {rng.key(*w) for w in words}
    assert len(keys) == len(words)
    assert all(0 <= k < 2**64 for k in keys)


@each("probability", [0.5, 0.1, 0.8, 0.97])
def test_mask_has_the_probability(probability: float) -> None:
    assert sigmas(signs(rng.key(1, 2, 3), probability=probability)) < 5


@each("probability, share", [(0.0, 0.0), (1.0, 1.0)])
def test_mask_of_nothing_and_of_everything(probability: float, share: float) -> None:
    assert rng.keep_mask(7, ROWS, COLS, probability).mean() == share


@each("probability", [0.5, 0.2])
@each("rows", [ROWS, ROWS * 1_000_003 + 17, ROWS[:1000] << 31])
def test_rows_and_columns_are_uncorrelated(rows: np.ndarray, probability: float) -> None:
    """Every pair of rows (columns) is as little correlated as independent ones: mean 0, variance 1."""
    X = signs(rng.key(7, 2, 1), rows=rows, probability=probability)
    for M in (X, X.T):
        pairs = (M @ M.T)[np.triu_indices(len(M), 1)] / np.sqrt(M.shape[1])
        assert abs(pairs.mean()) < 0.1
        assert abs(pairs.var() - 1) < 0.05
        assert abs(pairs).max() < 7.5


@each("distance", [1, 2, 3, 8, 64])
def test_neighbours_are_uncorrelated(distance: int) -> None:
    X = signs(rng.key(9, 2, 0, 0))
    assert sigmas(X[:-distance] * X[distance:]) < 5
    assert sigmas(X[:, :-distance] * X[:, distance:]) < 5
    assert sigmas(X[:-distance, :-distance] * X[distance:, distance:]) < 5


def test_squares_of_four_are_uncorrelated() -> None:
    """Row key xor column key alone would fail here: entries of a 2x2 square would determine each other."""
    X = signs(rng.key(11, 2, 5, 1))
    assert sigmas(X[:-1, :-1] * X[1:, :-1] * X[:-1, 1:] * X[1:, 1:]) < 5


def test_epochs_layers_seeds_and_streams_are_independent() -> None:
    keys = [rng.key(1, 2, epoch, layer) for epoch in range(4) for layer in range(3)]
    keys += [rng.key(2, 2, 0, 0), rng.key(1, 1, 0, 0)]
    masks = [signs(k)[:300] for k in keys]
    pairs = [sigmas(a * b) for i, a in enumerate(masks) for b in masks[:i]]
    assert max(pairs) < 5


def test_any_block_in_any_order_has_the_same_entries() -> None:
    k = rng.key(5, 2, 1, 0)
    whole = rng.keep_mask(k, ROWS, COLS, 0.3)
    rows, cols = np.random.default_rng(0).permutation(ROWS)[:500], COLS[13:99]
    assert np.array_equal(rng.keep_mask(k, rows, cols, 0.3), whole[np.ix_(rows, cols)])
    for part, keep in rng.keep_blocks(k, ROWS, COLS, 0.3, [slice(0, 700), slice(700, 1200)]):
        assert np.array_equal(keep, whole[part])
    numbers = rng.uniform(k, ROWS, COLS)
    assert np.array_equal(rng.uniform(k, rows, cols), numbers[np.ix_(rows, cols)])


@each("m, f", [(0, 5), (5, 0), (1, 1)])
def test_empty_and_tiny_blocks(m: int, f: int) -> None:
    assert rng.keep_mask(3, np.arange(m), np.arange(f), 0.5).shape == (m, f)
    assert rng.uniform(3, np.arange(m), np.arange(f)).shape == (m, f)


def test_uniform_is_uniform() -> None:
    numbers = rng.uniform(rng.key(3, 1), ROWS, COLS)
    assert 0 <= numbers.min() and numbers.max() < 1
    counts = np.histogram(numbers, bins=256, range=(0, 1))[0]
    expected = numbers.size / 256
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)
    assert len(np.unique(numbers)) == numbers.size


def test_uniform_is_uncorrelated() -> None:
    X = (rng.uniform(rng.key(3, 1), ROWS, COLS) - 0.5) * np.sqrt(12)
    assert sigmas(X[1:] * X[:-1]) < 5
    assert sigmas(X[:, 1:] * X[:, :-1]) < 5
    assert sigmas(X[:-1, :-1] * X[1:, :-1] * X[:-1, 1:] * X[1:, 1:]) < 5


def test_glorot_limits_and_blocks() -> None:
    W = rng.glorot(0, 1, (60, 36), np.arange(60), np.arange(36), np.float64)
    assert 0.24 < abs(W).max() <= 0.25
    assert abs(W.mean()) < 0.02
    block = rng.glorot(0, 1, (60, 36), np.arange(20, 40), np.arange(9), np.float64)
    assert np.array_equal(block, W[20:40, :9])
    assert not np.array_equal(W, rng.glorot(0, 2, (60, 36), np.arange(60), np.arange(36), np.float64))
    assert not np.array_equal(W, rng.glorot(1, 1, (60, 36), np.arange(60), np.arange(36), np.float64))

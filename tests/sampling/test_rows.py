"""Row sampling: exact distributions, sizes, and the compiled kernel against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import rng
from distgnn.local import host
from distgnn.local.array_draw import ring_times
from distgnn.local.draw import draw, draw_selected, inclusion
from distgnn.sampling import sample_rows
from loops import each
from sampling.exact import (
    LEVEL,
    assert_mean,
    inclusion_probabilities,
    p_value,
    p_value_inclusion,
    subset_probabilities,
)

DRAWS = 30_000

WEIGHTS = {
    "equal": [1.0] * 6,
    "rising": [1.0, 2, 3, 4, 5, 6],
    "powers": [2.0**i for i in range(8)],
    "one giant": [1e12, 1, 2, 4],
    "two giants": [3.0, 1e9, 1e-3, 2e9, 2e-3, 1],
    "zeros between": [0.0, 1, 0, 0, 5, 2, 0, 1],
    "equal but one": [1.0, 1, 1, 1, 1, 30],
    "below rounding": [1.0, 1e-30, 2e-30, 4e-30],
}


def keys_of(count: int, seed: int = 0) -> np.ndarray:
    return rng.hashes(rng.key(seed, rng.SAMPLE), np.arange(count))


def drawn_members(weights: list[float], count: int, draws: int = DRAWS) -> np.ndarray:
    """Return the drawn columns of equal rows, bool (draws, columns), each row under its own key."""
    P = sp.csr_array(np.ones((draws, len(weights))))
    P.data[:] = np.tile(weights, draws)
    return sample_rows(P, count, keys_of(draws)).toarray() > 0


def test_clocks_ring_apart_from_the_draws() -> None:
    """A clock has hashes of its own: numbers that a row drew with would be large together with it."""
    keys = keys_of(50)
    rung = -np.expm1(-ring_times(np.ones((50, 1)), keys))
    for words in (keys, rng.splitmix64(keys), rng.splitmix64(rng.splitmix64(keys))):
        assert not np.isclose(rung, (words >> np.uint64(12)) * 2.0**-52, atol=1e-9).any()


@each("name", WEIGHTS)
@each("count", [1, 2, 3])
def test_sets_are_drawn_with_their_exact_probabilities(name: str, count: int) -> None:
    weights = WEIGHTS[name]
    members = drawn_members(weights, count)
    subsets = subset_probabilities(weights, count)
    assert (members.sum(axis=1) == count).all()
    if max(subsets.values()) > 1 - 1e-4:  # one giant or rounding: what is left over is too rare to count
        assert (members == (inclusion_probabilities(subsets, len(weights)) > 0.5)).all(
            axis=1
        ).mean() > 1 - 1e-3
        return
    assert p_value(members, subsets) > LEVEL
    assert p_value_inclusion(members, subsets) > LEVEL


@pytest.mark.parametrize("bias", [0.1, -0.1])
def test_the_test_of_frequencies_notices_a_bias(bias: float) -> None:
    members = drawn_members([1.0, 1, 1, 1, 1, 1 + bias], 2)
    subsets = subset_probabilities([1.0] * 6, 2)
    assert p_value(members, subsets) < LEVEL and p_value_inclusion(members, subsets) < LEVEL


@pytest.mark.parametrize("compiled", [True, False])
@each("count", [1, 3, 6, 40])
def test_selected_rows_take_a_short_way_to_the_sample_of_weights_of_one(
    count: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = unequal()
    selected = np.array([10, *range(A.shape[0]), 3, 10])
    keys = keys_of(len(selected))
    expected = A[selected]
    drawn = draw(expected.indptr, np.ones(expected.nnz), count, keys)
    if not compiled:
        monkeypatch.setattr(host, "module", lambda: None)
    for _ in range(2):
        found = draw_selected(A.indptr.astype(np.int64), selected, count, keys)
    assert np.array_equal(A.indices[found.positions], expected.indices[drawn.positions])
    assert np.array_equal(found.counts, drawn.counts)


def test_rows_that_are_not_there_are_refused() -> None:
    if host.module() is None:
        pytest.skip("the host kernels are not built here")
    scratch = np.zeros(5, np.uint8), np.empty(5), np.empty(2, np.int64), np.empty(1, np.int64)
    for selected, nnz in ((2, 9), (-1, 9), (1, 8)):
        with pytest.raises(ValueError, match=r"must lie in 0..1|row 1 goes from 4 to 9, of 8"):
            host.built().sample_selected_rows(
                np.array([0, 4, 9]), nnz, np.array([selected]), keys_of(1), *scratch, count=2
            )


def unequal(seed: int = 0) -> sp.csr_array:
    """Make rows from empty to long; weights over many orders of magnitude, some 0."""
    generator = np.random.default_rng(seed)
    lengths = [0, 1, 2, 3, 4, 5, 6, 9, 17, 60, 400, 0, 33, 7]
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    data = 10.0 ** generator.uniform(-12, 12, indptr[-1])
    data[generator.random(len(data)) < 0.2] = 0
    indices = np.concatenate([np.sort(generator.choice(500, length, replace=False)) for length in lengths])
    return sp.csr_array((data, indices, indptr), shape=(len(lengths), 500))


@pytest.mark.parametrize("count", [0, 1, 4, 30, 1000])
def test_compiled_and_numpy_agree_to_the_bit(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if host.module() is None:
        pytest.skip("the host kernels are not built here")
    P, keys = unequal(), keys_of(14)
    compiled = draw(P.indptr, P.data, count, keys, remaining=True)
    monkeypatch.setattr(host, "module", lambda: None)
    plain = draw(P.indptr, P.data, count, keys, remaining=True)
    for one, other in zip(compiled, plain, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("compiled", [True, False])
@each("count", [0, 1, 4, 30, 1000])
def test_sizes_are_exact(count: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(host, "module", lambda: None)
    P = unequal()
    S = sample_rows(P, count, keys_of(14))
    positive = np.array(
        [np.count_nonzero(P.data[a:b]) for a, b in zip(P.indptr[:-1], P.indptr[1:], strict=True)]
    )
    assert np.array_equal(np.diff(S.indptr), np.minimum(positive, count))
    assert S.has_canonical_format and (S.data > 0).all()  # no column twice, no weight of 0
    assert (P - S).multiply(S != 0).nnz == 0  # values are those of P


def test_many_of_very_unequal_weights_are_drawn() -> None:
    """All but one of 60 powers of 4: rejection alone would not end."""
    P = sp.csr_array(4.0 ** np.arange(60)[None, :])
    assert sample_rows(P, 59, keys_of(1)).nnz == 59


def test_a_sample_belongs_to_its_key_not_to_its_place() -> None:
    P, keys = unequal(), keys_of(14)
    order = np.random.default_rng(1).permutation(14)
    moved = sample_rows(P[order], 5, keys[order])
    assert (moved != sample_rows(P, 5, keys)[order]).nnz == 0
    assert (sample_rows(P, 5, keys_of(14, seed=1)) != sample_rows(P, 5, keys)).nnz > 0


def test_a_factor_changes_nothing() -> None:
    P, keys = unequal(), keys_of(14)
    assert np.array_equal(sample_rows(2.0**-20 * P, 5, keys).indices, sample_rows(P, 5, keys).indices)


@pytest.mark.parametrize("compiled", [True, False])
@each("wrong", [-1.0, np.nan, np.inf, 1.5e308])
def test_wrong_weights(wrong: float, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(host, "module", lambda: None)
    P = sp.csr_array(np.array([[1.0, 2, 3, 4], [1.0, 1.5e308, wrong, 4]]))
    with pytest.raises(ValueError, match="row 1 has weights that are negative or not finite"):
        sample_rows(P, 2, keys_of(2))
    with pytest.raises(ValueError, match="cannot draw -1 columns"):
        sample_rows(P, -1, keys_of(2))


def test_remaining_weight_is_known_to_the_last_bits() -> None:
    """Also where almost all of it has been drawn."""
    P = unequal()
    drawn = draw(P.indptr, P.data, 5, keys_of(14), remaining=True)
    assert drawn.remaining is not None
    picked = np.zeros(P.nnz, bool)
    picked[drawn.positions] = True
    for row, (a, b) in enumerate(zip(P.indptr[:-1], P.indptr[1:], strict=True)):
        if np.count_nonzero(P.data[a:b]) <= 5:
            assert (drawn.remaining[row] == 0).all()
            continue
        np.testing.assert_allclose(drawn.remaining[row, 0], P.data[a:b].sum(), rtol=1e-14)
        np.testing.assert_allclose(drawn.remaining[row, -1], P.data[a:b][~picked[a:b]].sum(), rtol=1e-13)
        assert (np.diff(drawn.remaining[row]) < 0).all()


@pytest.mark.parametrize("name", ["equal", "rising", "powers", "equal but one"])
@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.slow
def test_estimates_from_drawn_columns_are_unbiased(name: str, count: int) -> None:
    """Estimates of every column, and of every product of two, whose variance is finite from four draws on."""
    weights, draws = np.array(WEIGHTS[name]), 200_000
    indptr, keys = np.arange(draws + 1) * len(weights), keys_of(draws, seed=3)
    drawn = draw(indptr, np.tile(weights, draws), count, keys, remaining=True)
    estimate = np.zeros((draws, len(weights)))
    columns = drawn.positions % len(weights)
    estimate[drawn.positions // len(weights), columns] = 1 / inclusion(weights[columns], drawn, keys)
    often = inclusion_probabilities(subset_probabilities(weights.tolist(), count), len(weights)) > 0.01
    assert_mean(estimate[:, often], np.ones(often.sum()))
    if count < 4:
        return
    pairs = [(i, j) for i in np.flatnonzero(often) for j in np.flatnonzero(often) if i < j]
    products = np.array([estimate[:, i] * estimate[:, j] for i, j in pairs]).T
    seen = (products > 0).mean(axis=0) > 0.01
    assert_mean(products[:, seen], np.ones(seen.sum()))


def test_whole_rows_count_as_they_are() -> None:
    P = unequal()
    drawn = draw(P.indptr, P.data, 1000, keys_of(14), remaining=True)
    assert (inclusion(P.data[drawn.positions], drawn, keys_of(14)) == 1).all()


def test_small_shares_count_as_those_of_zou() -> None:
    """1 / (s p_v) where s p_v is small, up to the spread of the threshold, which falls as 1 / sqrt(s)."""
    draws, columns, count = 200, 5000, 50
    weights = np.random.default_rng(0).uniform(0.5, 1.5, columns)
    keys = keys_of(draws)
    drawn = draw(np.arange(draws + 1) * columns, np.tile(weights, draws), count, keys, remaining=True)
    own = weights[drawn.positions % columns]
    ratio = (1 / inclusion(own, drawn, keys)) / (weights.sum() / (count * own))
    assert abs(ratio.mean() - 1) < 0.03 and ratio.std() < 0.2

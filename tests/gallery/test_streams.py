"""Random streams and the distributions drawn from them."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.gallery.streams import AliasTable, power_law, stream, unit_rows
from loops import each


def test_streams_differ_by_seed_purpose_and_chunk_and_by_nothing_else() -> None:
    keys = [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1)]
    draws = [stream(*key).random(8).tolist() for key in keys]
    assert len({tuple(draw) for draw in draws}) == 4
    assert stream(0, "a").random(8).tolist() == draws[0]


def test_streams_of_neighbouring_chunks_share_no_numbers() -> None:
    words = np.concatenate([stream(0, "a", chunk).bit_generator.random_raw(10_000) for chunk in range(3)])
    assert len(np.unique(words)) == len(words)


def test_alias_table_draws_its_distribution_and_nothing_impossible() -> None:
    probabilities = np.array([0.5, 0.0, 0.31, 0.19])
    shares = np.bincount(AliasTable(probabilities).draw(stream(0, "test"), 100_000), minlength=4) / 100_000
    assert shares[1] == 0
    np.testing.assert_allclose(shares, probabilities, atol=0.008)  # five standard deviations


def test_power_law_has_its_exponent() -> None:
    values = power_law(stream(0, "test"), 100_000, 3.0)
    assert values.min() >= 1
    np.testing.assert_allclose([(values > 2).mean(), (values > 10).mean()], [1 / 4, 1 / 100], rtol=0.15)


def test_a_purpose_must_fit_into_a_word() -> None:
    stream(0, "x" * 8)
    with pytest.raises(ValueError, match="longer than 8 characters"):
        stream(0, "x" * 9)


def test_unit_rows_have_length_one_and_no_direction() -> None:
    rows = unit_rows(stream(0, "test"), 20_000, 3)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1)
    np.testing.assert_allclose(rows.T @ rows / len(rows), np.eye(3) / 3, atol=0.01)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=0.02)


@each("outcomes", [0, 1, 3, 6])
def test_an_alias_table_has_a_power_of_two_of_outcomes(outcomes: int) -> None:
    with pytest.raises(ValueError, match=f"a power of two of outcomes, got {outcomes}"):
        AliasTable(np.full(outcomes, 1 / max(outcomes, 1)))


def test_power_laws_close_to_exponent_one_stay_finite() -> None:
    values = power_law(stream(0, "test"), 10_000, 1.0001)
    assert np.isfinite(values).all() and values.max() > 1e200

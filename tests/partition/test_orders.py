"""Permutations in which hubs are dealt out evenly."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn import gallery, rng
from distgnn.partition import orders

STREAMS = (rng.PERMUTATION, rng.COLUMN_PERMUTATION)


def spread(degrees: np.ndarray, seed: int, stream: int) -> orders.Permutation:
    ranks = np.empty(len(degrees), np.uint64)
    ranks[np.argsort(-degrees, kind="stable")] = np.arange(len(degrees))
    return orders.by_keys(orders.spread_keys(ranks, np.arange(len(degrees)), seed, stream))


@pytest.mark.parametrize("n", [1, 2, 3, 31, 64, 1000, 4096])
def test_nodes_of_like_degree_are_far_from_each_other(n: int) -> None:
    """One of every 2^k nodes that follow each other by degree is in each 2^k-th of the positions (but for
    rounding).
    """
    degrees = np.random.default_rng(0).zipf(1.7, n).clip(max=10**9)
    order = spread(degrees, 3, STREAMS[0])
    positions = order.positions(np.arange(n))
    np.testing.assert_array_equal(np.sort(positions), np.arange(n))
    np.testing.assert_array_equal(order.ids(positions), np.arange(n))
    ranked = positions[np.argsort(-degrees, kind="stable")]
    for parts in (2, 4, 8, 16):
        whole = n // parts * parts
        groups = np.sort(ranked[:whole].reshape(-1, parts) * parts / n, axis=1)
        slack = 2 * parts / n  # a block of positions need not begin where a power of two does
        assert (groups >= np.arange(parts) - slack).all() and (groups < np.arange(1, parts + 1) + slack).all()


def test_streams_and_seeds_are_independent() -> None:
    """A node's row and column fall on every pair of blocks alike: the diagonal is spread over all."""
    n, parts = 1 << 16, 8
    degrees = np.arange(n) // 50
    made = ((0, STREAMS[0]), (0, STREAMS[1]), (0, STREAMS[0]), (1, STREAMS[0]))
    rows, cols, again, other = (spread(degrees, *how).inverse for how in made)
    np.testing.assert_array_equal(rows, again)
    for one, two in ((rows, cols), (rows, other)):
        pairs = np.bincount(one * parts // n * parts + two * parts // n, minlength=parts**2)
        assert 0.9 < pairs.min() / pairs.mean() and pairs.max() / pairs.mean() < 1.1


def test_hubs_leave_shards_even() -> None:
    """R-MAT with its hubs: much closer to even than two permutations that leave them to chance."""
    A = gallery.rmat(1 << 14, degree=16, features=0, classes=0, seed=1).A.tocoo()
    n, parts = A.shape[0], 8

    def excess(rows: np.ndarray, cols: np.ndarray) -> float:
        shards = np.bincount(rows[A.row] * parts // n * parts + cols[A.col] * parts // n, minlength=parts**2)
        return shards.max() / shards.mean() - 1

    degrees = np.bincount(A.row, minlength=n)
    for seed in range(3):
        even = excess(*(spread(degrees, seed, stream).inverse for stream in STREAMS))
        chance = excess(*(orders.shuffled(n, seed, stream).inverse for stream in STREAMS))
        assert even < 0.6 * chance

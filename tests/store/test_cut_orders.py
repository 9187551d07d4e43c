"""Node orders that are cut over the ranks which prepare a store, held to permutations in memory."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn import rng
from distgnn.layout import partition
from distgnn.partition import orders as whole
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.shards import Blocks
from distgnn.store.write import orders
from distgnn.store.write.ranks import of


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("n", [2, 1003, 20_000])
def test_orders_on_ranks(comm, n, shared_tmp_path, monkeypatch) -> None:
    """Every rank reads any range and finds any positions, and holds those of its own nodes alone."""
    monkeypatch.setattr(LIMITS, "entries", 97 if n < 20_000 else 3000)
    team, draw = of(comm), np.random.default_rng(comm.Get_rank())
    first, last = partition(n, team.size)[team.rank : team.rank + 2]
    degrees, part = np.random.default_rng(0).integers(0, 9, (2, n))
    ranks = np.empty(n, np.uint64)
    ranks[np.argsort(-degrees, kind="stable")] = np.arange(n)
    keys = {
        "random": [whole.random_keys(7, rng.PERMUTATION, 0, n)],
        "double": [
            whole.spread_keys(ranks, np.arange(n), 7, stream)
            for stream in (rng.PERMUTATION, rng.COLUMN_PERMUTATION)
        ],
        "parts": [part],
    }
    for name, sides in keys.items():
        if name == "parts":
            made = orders.by_parts(name, part[first:last], 9, n, team, shared_tmp_path)
            assert made.partition.tolist() == [0, *np.cumsum(np.bincount(part, minlength=9))]
        else:
            made = orders.make(name, n, 7, team, shared_tmp_path, degrees[first:last])
        for side, of_side in zip(made.sides, sides, strict=True):
            expected = whole.by_keys(of_side)
            some = draw.integers(0, n, 5000 * (1 + team.rank))
            assert side.positions(some).tolist() == expected.inverse[some].tolist()
            lo, hi = n // 3, n // 3 + n // 2
            assert side.ids(lo, hi).tolist() == expected.permutation[lo:hi].tolist()
            assert side.places(0, n).tolist() == expected.inverse.tolist()
            assert len(side.held) == last - first


def test_blocks_of_positions() -> None:
    """Find even, uneven and empty blocks, more and fewer than the table has cells."""
    for vector in ([0, 1], [0, 3, 3, 3, 9], [0, 5000, 5001, 5002, 90_000], range(0, 70_000, 7), [0, 1 << 20]):
        bounds = np.array(vector)
        positions = np.arange(bounds[-1])
        assert np.array_equal(Blocks(bounds).of(positions), np.searchsorted(bounds, positions, "right") - 1)

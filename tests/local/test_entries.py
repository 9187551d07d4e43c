"""Entries: compiled, by NumPy, and as Python's own numbers and sorting have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distgnn import rng
from distgnn.local import entries, host
from distgnn.store.format.shards import ShardGrid
from loops import each

KINDS: dict[str, Any] = {
    "keys": np.int64,
    "float32": [("key", np.int64), ("weight", np.float32)],
    "float64": [("key", np.int64), ("weight", np.float64)],
}


@pytest.fixture(params=["compiled", "numpy"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take the kernels of one kind."""
    which = {"compiled": 0, "numpy": 1}[request.param]
    if which == 0 and not host.usable():
        pytest.skip("the host kernels are not built here")
    monkeypatch.setitem(entries.KERNELS.rows, "numpy", entries.KERNELS.rows["numpy"][which:])
    return request.param


def drawn(kind: str, count: int, bits: int, seed: int = 0) -> np.ndarray:
    """Draw records whose keys have so many bits, a third of them several times."""
    generator = np.random.default_rng(seed)
    keys = generator.integers(0, 1 << bits, count)
    keys[: count // 3] = keys[generator.integers(0, max(count, 1), count // 3)]
    if kind == "keys":
        return keys
    records = np.empty(count, np.dtype(KINDS[kind]))
    records["key"], records["weight"] = keys, generator.standard_normal(count)
    records["weight"][::7] = -np.inf
    return records


@pytest.mark.parametrize("kind", KINDS)
@each("count", [0, 1, 2, 1000, 70_000])
def test_records_are_sorted_stably_by_some_bits(kernels: str, kind: str, count: int) -> None:
    for low, high in ((0, 40), (0, 1), (3, 3), (30, 42), (7, 30)):
        records = drawn(kind, count, 42, seed=high)
        listed = records.tolist()
        digit = lambda record: ((record if kind == "keys" else record[0]) >> low) % (1 << high - low)  # noqa: B023, E731
        assert entries.sorted_records(records, low, high).tolist() == sorted(listed, key=digit)


@pytest.mark.parametrize("kind", KINDS)
@each("bits", [1, 5, 16, 38, 62])
def test_of_equal_keys_the_largest_weight_is_kept(kernels: str, kind: str, bits: int) -> None:
    for count in (0, 1, 5000):
        records, best = drawn(kind, count, bits), dict[int, float]()
        for record in records.tolist():
            key, weight = (record, 0.0) if kind == "keys" else record
            best[key] = max(best.get(key, -np.inf), weight)
        merged = entries.merged_records(records)
        assert entries.keys_of(merged).tolist() == sorted(best)
        if kind != "keys":
            assert merged["weight"].tolist() == [best[key] for key in sorted(best)]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_keys_name_shard_row_and_column(kernels: str, kind: Any) -> None:
    generator = np.random.default_rng(1)
    for rows, cols in (
        ([0, 5000], [0, 5000]),
        ([0, 1200, 1201, 5000], [0, 17, 2500, 5000]),
        ([0, *range(1000, 1040), 5000], [0, 5000]),  # several blocks in a cell
        ([0, 2500, 2500, 5000], [0, 5000, 5000]),  # empty ones
    ):
        grid = ShardGrid(np.array(rows), np.array(cols))
        row, col = generator.integers(0, 5000, (2, 40_000)).astype(kind)
        buckets, keys = grid.locate(row, col)
        assert np.array_equal(grid.keys(row, col), buckets << grid.key_bits | keys)


def pattern(kind: Any, seed: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Draw how many entries 40 rows have, some none, and their columns of 30."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 9, 40) * generator.integers(0, 2, 40)
    return counts, generator.integers(0, 30, counts.sum()).astype(kind)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_keys_are_taken_apart_by_row(kernels: str, kind: Any) -> None:
    keys = np.sort(np.random.default_rng(4).integers(70, 120, 300) << 7 | 5)
    keys[-1] += 90
    first, counts, cols = entries.rows_of(keys, 7, kind)
    assert first == 70 and cols.dtype == kind and cols.tolist() == [key % 128 for key in keys.tolist()]
    assert np.repeat(np.arange(70, 70 + len(counts)), counts).tolist() == [
        key // 128 for key in keys.tolist()
    ]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@each("weighted", [False, True])
def test_hashes_are_those_of_whole_numbers(kernels: str, kind: Any, weighted: bool) -> None:
    """In ids of either type, and loops are found by the ids."""
    counts, cols = pattern(kind)
    n, key, generator = 10**5, rng.key(0, rng.CONTENT, 0), np.random.default_rng(3)
    named = generator.permutation(n)[:40]
    ids = named.astype(np.int32), generator.permutation(named)[:30].astype(np.int32)
    weights = generator.standard_normal(len(cols)) if weighted else None
    totals, loops = [0, 0], [0] * len(counts)
    rows = np.repeat(np.arange(40), counts).tolist()
    for k, (row, col) in enumerate(zip(rows, cols.tolist(), strict=True)):
        head, tail = int(ids[0][row]), int(ids[1][col])
        loops[row] += head == tail
        for side, place in enumerate((head * n + tail, tail * n + head)):
            word = rng._splitmix64_int(rng._splitmix64_int(place) ^ key)
            if weights is not None:
                word = rng._splitmix64_int(word ^ int(weights[k : k + 1].view(np.uint64)[0]))
            totals[side] = (totals[side] + word) % 2**64
    for of_type in (np.int32, np.int64):
        given = ids[0].astype(of_type), ids[1].astype(of_type)
        *found, diagonal = entries.hashed(counts, cols, given, weights, n, key, True)
        assert (found, diagonal.tolist()) == (totals, loops) and sum(loops)
        assert entries.hashed(counts, cols, given, weights, n, key, False)[:2] == (totals[0], 0)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@each("dtype", [np.float32, np.float64])
def test_entries_are_scaled_by_row_and_column(kernels: str, kind: Any, dtype: Any) -> None:
    counts, cols = pattern(kind)
    generator = np.random.default_rng(5)
    left, right, weights = (generator.standard_normal(size) for size in (40, 30, len(cols)))
    by_row = np.repeat(left, counts)
    for of_cols, of_entries in ((None, None), (right, None), (None, weights), (right, weights)):
        expected = by_row * (1 if of_cols is None else of_cols[cols])
        expected = (expected * (1 if of_entries is None else of_entries)).astype(dtype)
        found = entries.scaled(counts.astype(np.int32), cols, left, of_cols, of_entries, dtype)
        assert found.dtype == dtype and np.array_equal(found, expected)


def test_what_does_not_fit_is_refused() -> None:
    kernels, bytes_of = host.built(), lambda count: np.zeros(count, np.uint8)
    one, real = np.zeros(1, np.int64), np.zeros(1)
    for call, problem in (
        (lambda: kernels.entry_sort(bytes_of(30), bytes_of(30), size=12, low=0, high=8), "no records of 12"),
        (lambda: kernels.entry_sort(bytes_of(40), bytes_of(40), size=10, low=0, high=8), "8, 12 or 16"),
        (lambda: kernels.entry_sort(bytes_of(16), bytes_of(8), size=8, low=0, high=8), "room: need shape"),
        (lambda: kernels.entry_sort(bytes_of(16), bytes_of(16), size=8, low=0, high=64), "a key of 63 bits"),
        (lambda: kernels.entry_merge(bytes_of(9), size=8), "no records of 8"),
        (lambda: kernels.entry_rows(one, one.copy(), one.copy(), first=1, bits=4), "are of 1 from 1"),
        (lambda: kernels.entry_rows(-np.arange(2), one, one.repeat(2), first=0, bits=4), "must not fall"),
        (lambda: kernels.entry_scale(one + 2, one, real, None, None, real), "columns: need shape"),
        (lambda: kernels.entry_scale(one + 1, one + 3, real, np.zeros(3), None, real), "in 0..2, got 3"),
        (lambda: kernels.entry_hash(one - 1, one, one, one, None, one, n=9, key=1), "or more, got -1"),
        (lambda: kernels.entry_hash(one + 1, one, one, one[:0], None, one, n=9, key=1), "must lie"),
    ):
        with pytest.raises(ValueError, match=problem):
            call()
    cells, positions = np.zeros(1, np.int64), np.array([0, 3])
    given = {"shift": 2, "bits": 1, "stop": 4}
    for first, next_, shifts, changes, problem in (
        (cells, cells + 4, cells, {"stop": 3}, "positions: must lie in 0..2, got 3"),
        (cells, cells + 4, cells, {"shift": 1}, "1 cells of 2\\*\\*1 positions, of 4"),
        (cells, cells + 2, cells, {}, "cell 0 ends at 2, and no block begins there"),
        (cells + 1, cells + 4, cells, {}, "first: must lie in 0..0, got 1"),
    ):
        with pytest.raises(ValueError, match=problem):
            kernels.entry_parts(positions, first, next_, shifts, np.zeros(2, np.int64), **given | changes)

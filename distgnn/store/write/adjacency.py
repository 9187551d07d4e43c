"""The adjacency matrix of one order on its way into a grid of shards.

Entries go into one bucket per shard, on disk. Then one shard at a time is sorted, its duplicates are merged,
and it is written as CSR. Values follow once the degrees that scale them are known. In a team, each rank puts
its entries into buckets, and each shard is written by one rank, from the buckets of all ranks.

Memory: arrays of one number for each row and column of a shard, plus one shard or LIMITS.sorted_entries,
whichever is less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays.blocking import bounded
from distgnn.arrays.csr import index_type
from distgnn.layout import block
from distgnn.local.entries import keys_of, merged_records, rows_of
from distgnn.stages import followed
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.shards import ShardGrid
from distgnn.store.team import Team
from distgnn.store.write.degrees import Degrees, Factors
from distgnn.store.write.spill import Spill


def bucket_entries(
    spill: Spill, grid: ShardGrid, row: np.ndarray, col: np.ndarray, weights: np.ndarray | None
) -> None:
    """Put entries into the buckets of their shards, by key, with weights if the spill's records have some."""
    buckets, keys = (None, grid.keys(row, col)) if grid.sortable else grid.locate(row, col)
    records = keys
    if spill.dtype.names is not None:
        records = np.empty(len(row), spill.dtype)
        records["key"] = keys
        records["weight"] = 1 if weights is None else weights
    if buckets is None:
        spill.add_keyed(records, grid.key_bits)
    else:
        spill.add(buckets, records)


class Run(NamedTuple):
    """Entries sorted by row: how many each row has, from the `first` on, and the column of each entry."""

    first: int
    counts: np.ndarray
    cols: np.ndarray


def write_rows(
    group: Any, merged: Iterable[np.ndarray], shape: tuple[int, int], bits: int, expected: int, kind: Any,
    take: Callable[[Run, np.ndarray], None], files: int = 1,
) -> int:  # fmt: skip
    """Write merged records as row pointers and column numbers of a dtype; return how many there are.

    `take` gets runs of entries and their records, one after another. `expected`: about how many.
    """
    indptr = np.zeros(shape[0] + 1, index_type(expected))
    indices = hdf5.Growing(group, "indices", kind, expected, files)
    for entries in merged:
        for start in range(0, len(entries), LIMITS.entries):
            some = entries[start : start + LIMITS.entries]
            run = Run(*rows_of(keys_of(some), bits, kind))
            indptr[run.first + 1 : run.first + 1 + len(run.counts)] += run.counts
            indices.append(run.cols)
            take(run, some)
    np.cumsum(indptr, dtype=indptr.dtype, out=indptr)
    hdf5.store_array(group, "indptr", indptr.astype(index_type(indices.length), copy=False), files)
    return indices.length


def merged_ranges(spill: Spill, bucket: int, rows: int, bits: int) -> Iterator[np.ndarray]:
    """Yield the merged records of a bucket, in one array or, if they are too many, in ranges of rows."""
    if spill.lengths[bucket] <= LIMITS.sorted_entries:
        yield _merged(spill, bucket)
        return
    counts = np.zeros(rows, np.int64)
    for some in spill.read(bucket, LIMITS.entries):
        counts += np.bincount(keys_of(some) >> bits, minlength=rows)
    ranges = bounded(counts, LIMITS.sorted_entries)
    starts = np.array([lo for lo, _ in ranges])
    finer = Spill(spill.folder / f"{bucket:06d}-rows", len(ranges), spill.dtype)
    for some in spill.read(bucket, LIMITS.entries):
        finer.add(np.searchsorted(starts, keys_of(some) >> bits, side="right") - 1, some)
    for part in range(len(ranges)):
        yield _merged(finer, part)
        finer.drop(part)
    finer.close()


def _merged(spill: Spill, bucket: int) -> np.ndarray:
    """Return a whole bucket merged; many repeats are merged before all are in memory."""
    held, size, limit = [np.empty(0, spill.dtype)], 0, LIMITS.sorted_entries
    for some in spill.read(bucket, LIMITS.entries):
        held.append(some)
        size += len(some)
        if size > limit:
            held = [merged_records(_taken(held))]
            size = len(held[0])
            limit = max(limit, 2 * size)
    return merged_records(_taken(held))


def _taken(held: list[np.ndarray]) -> np.ndarray:
    """Put arrays together, and let them go."""
    entries = np.concatenate(held)
    held.clear()
    return entries


class AdjacencyWriter:
    """A writer of a matrix's shards to `folder`; `weight`: dtype of the weights, None if all are 1."""

    def __init__(self, folder: Path, scratch: Path, grid: ShardGrid, team: Team, weight: Any = None) -> None:
        self.folder, self.scratch, self.grid, self.team = folder, scratch, grid, team
        self.weight, self.weighted = weight, weight is not None
        kind = np.dtype([("key", np.int64), ("weight", weight)]) if self.weighted else np.int64
        self.spill = Spill(scratch / "entries", grid.shape[0] * grid.shape[1], kind, team)
        self.nnz = np.zeros(grid.shape, np.int64)

    def path(self, i: int, j: int) -> Path:
        """Return the file of shard (i, j)."""
        return self.folder / f"shard-{i:04d}-{j:04d}.h5"

    def add(self, row: np.ndarray, col: np.ndarray, weights: np.ndarray | None) -> None:
        """Add entries; a weight of -inf stands for 1 where no other entry has the same position."""
        bucket_entries(self.spill, self.grid, row, col, weights)

    def write_structure(self, degrees: Degrees | None = None) -> None:
        """Sort and merge every shard and write its entries' positions, after `spill.pool`. Collective."""
        with self.team.together():
            for bucket, i, j in followed(self._mine(), "sort and write shards", *self._work()):
                if degrees is not None:
                    degrees.begin(i, j)
                kept = (open(path, "wb") for path in self._kept(i, j))
                with hdf5.writing(self.path(i, j)) as file, next(kept) as weights, next(kept) as columns:
                    self._write_shard(file, weights, columns, bucket, i, j, degrees)
                if degrees is not None:
                    degrees.end()
                self.spill.drop(bucket)
        self.spill.close()
        self.team.total(self.nnz)

    def _mine(self) -> list[tuple[int, int, int]]:
        """List (bucket, i, j) of the shards that this rank writes."""
        width = self.grid.shape[1]
        return [(bucket, *divmod(bucket, width)) for bucket in self.team.deal(self.spill.lengths)]

    def _work(self) -> tuple[int, str, Callable[[tuple[int, int, int]], int]]:
        """Return the entries of this rank's shards, their unit, and a function that counts one shard's."""
        lengths = self.spill.lengths
        total = sum(int(lengths[bucket]) for bucket, *_ in self._mine())
        return total, "entries", lambda shard: int(lengths[shard[0]])

    def _write_shard(
        self, file: Any, weights_file: Any, columns_file: Any, bucket: int, i: int, j: int, degrees: Any
    ) -> None:  # fmt: skip
        (top, bottom), (left, right) = block(self.grid.rows, i), block(self.grid.cols, j)
        shape, bits = (bottom - top, right - left), self.grid.bits

        def take(run: Run, some: np.ndarray) -> None:
            weights = None
            if self.weighted:
                weights = np.ascontiguousarray(some["weight"])
                weights[np.isneginf(weights)] = 1
                weights_file.write(weights.view(np.uint8).data)
            if degrees is not None:
                columns_file.write(run.cols.view(np.uint8).data)
                degrees.count(run.first, run.counts, run.cols, weights)

        merged, expected = merged_ranges(self.spill, bucket, shape[0], bits), int(self.spill.lengths[bucket])
        how = merged, shape, bits, expected, index_type(shape[1]), take, self.grid.shape[0]
        self.nnz[i, j] = write_rows(file, *how)

    def write_values(self, dtype: Any, scaling: Callable[[int, int], Factors] | None) -> None:
        """Write the values, of shard (i, j) those that `scaling(i, j)` makes of weights. Collective."""
        with self.team.together():
            for _, i, j in followed(self._mine(), "write values", *self._work()):
                kept = self._kept(i, j)
                with hdf5.writing(self.path(i, j), "r+") as file:
                    with open(kept[0], "rb") as weights, open(kept[1], "rb") as columns:
                        scale = None if scaling is None else scaling(i, j)
                        self._write_values(file, weights, columns, (i, j), dtype, scale)
                for path in kept:
                    path.unlink()

    def _write_values(
        self, file: Any, weights: Any, columns: Any, at: tuple[int, int], dtype: Any, scale: Factors | None
    ) -> None:  # fmt: skip
        nnz, kind = int(self.nnz[at]), index_type(int(np.diff(block(self.grid.cols, at[1]))[0]))
        values = hdf5.create(file, "values", (nnz,), dtype, self.grid.shape[0])
        indptr = file["indptr"][:]
        for lo, hi in bounded(np.diff(indptr), LIMITS.entries):
            a, b = int(indptr[lo]), int(indptr[hi])
            if a == b:
                continue
            value = np.fromfile(weights, self.weight, b - a) if self.weighted else None
            if scale is not None:
                value = scale(value, lo, np.diff(indptr[lo : hi + 1]), np.fromfile(columns, kind, b - a))
            values[a:b] = np.ones(b - a) if value is None else value

    def _kept(self, i: int, j: int) -> list[Path]:
        """Return the files of weights and of columns, which wait for the degrees that scale them."""
        return [self.scratch / f"{name}-{i:04d}-{j:04d}" for name in ("weights", "columns")]

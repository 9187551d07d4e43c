"""The adjacency matrix of one order on its way into a grid of shards.

Entries come in any order, in pieces. They are dropped into one bucket per shard (which spill to disk), and
then one shard at a time is sorted, duplicates merged, and written as CSR. Only after that are the degrees
known, by which the values are scaled.
Memory: arrays of one number per node, plus one shard or LIMIT entries, whichever is less.

In a team, each rank buckets the entries that it is given, and every shard is then written by one rank, from
all buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from distgnn.layout import partition
from distgnn.partition.orders import index_type
from distgnn.store import hdf5
from distgnn.store.spill import Spill
from distgnn.store.team import Team

SHARD_ENTRIES = 1 << 22  # what the default grid aims at, before duplicates are merged
LIMIT = 6 << 20  # entries sorted at a time; a shard that got more is done in ranges of rows
PIECE = 1 << 20  # entries read or scaled at a time

Ranges = list[tuple[int, int]]
Scale = Callable[[np.ndarray, np.ndarray], np.ndarray]  # factors for entries at these rows and columns


class Observer(Protocol):
    """What is told of all entries of the shards that this rank writes, shard by shard."""

    def begin(self, i: int, j: int, rows: tuple[int, int]) -> None:
        """What comes is of shard (i, j), which has these rows. Of the shards in a row, those further left
        come first.
        """

    def count(self, rows: np.ndarray, cols: np.ndarray, weights: np.ndarray | None) -> None:
        """Entries at these positions, the rows ascending."""

    def end(self) -> None:
        """That was all of the shard."""


@dataclass(frozen=True)
class ShardGrid:
    """Where the matrix is cut into shards: two partition vectors.

    A shard entry travels as one int64 key, ``local row << bits | local column``, so that sorting keys sorts by row, then column.
    """

    rows: np.ndarray
    cols: np.ndarray

    @classmethod
    def for_size(cls, n: int, entries: int) -> ShardGrid:
        """Square grid with about SHARD_ENTRIES in a shard. A power of two per side, so that the blocks of 2,
        4, 8 … ranks are made of whole shards."""
        side = 1
        while side * side * SHARD_ENTRIES < entries and side < n:
            side *= 2
        return cls(partition(n, side), partition(n, side))

    def aligned(self, vector: np.ndarray) -> ShardGrid:
        """About as many shards, with bounds at those of a partition vector where that is possible."""
        return ShardGrid(_snapped(self.rows, vector), _snapped(self.cols, vector))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows) - 1, len(self.cols) - 1

    @property
    def bits(self) -> int:
        return max(1, int(np.diff(self.cols).max(initial=1) - 1).bit_length())

    def locate(self, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bucket, key) of entries given by global position."""
        i = np.searchsorted(self.rows, row, side="right") - 1
        j = np.searchsorted(self.cols, col, side="right") - 1
        keys = (row.astype(np.int64) - self.rows[i]) << self.bits
        keys |= col - self.cols[j]
        i *= self.shape[1]
        i += j
        return i, keys

    def shards(self) -> Iterator[tuple[int, int, int]]:
        """(bucket, i, j) of every shard."""
        for i in range(self.shape[0]):
            for j in range(self.shape[1]):
                yield i * self.shape[1] + j, i, j


def _snapped(bounds: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Every inner bound moved to the nearest one of `vector` if that is nearer than half of the average
    shard.
    """
    after = np.searchsorted(vector, bounds).clip(1, len(vector) - 1)
    lower, upper = vector[after - 1], vector[after]
    near = np.where(bounds - lower <= upper - bounds, lower, upper)
    return np.maximum.accumulate(
        np.where(2 * np.abs(near - bounds) * (len(bounds) - 1) < bounds[-1], near, bounds)
    )


def records(keys: np.ndarray, weights: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """Entries as `Spill` takes them: keys alone, or (key, weight) pairs where `dtype` has weights."""
    if dtype.names is None:
        return keys
    packed = np.empty(len(keys), dtype)
    packed["key"] = keys
    packed["weight"] = 1 if weights is None else weights
    return packed


def record_type(weight: Any = None) -> np.dtype:
    return np.dtype(np.int64) if weight is None else np.dtype([("key", np.int64), ("weight", weight)])


def merge(entries: np.ndarray) -> np.ndarray:
    """Sort records by key, in place if it can, and keep of each key the largest weight: merging a list with
    its own copy changes nothing, so it does not matter whether a file lists both directions of an edge or
    one."""
    if entries.dtype.names is None:
        entries.sort()
        first = _first(entries)
        return entries if first.all() else entries[first]
    keys = np.ascontiguousarray(entries["key"])
    entries = entries[np.argsort(keys)]
    first = _first(entries["key"])
    if first.all():
        return entries
    merged = entries[first]
    merged["weight"] = np.maximum.reduceat(entries["weight"], np.flatnonzero(first))
    return merged


def _first(keys: np.ndarray) -> np.ndarray:
    """Which of the sorted keys are not repeats."""
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return first


def bounded(counts: np.ndarray, limit: int) -> Ranges:
    """Cut rows with these entry counts into ranges of at most `limit` entries; a longer row makes a range of
    its own.
    """
    ends = np.cumsum(counts)
    ranges, lo, done = [], 0, 0
    while lo < len(counts):
        hi = max(lo + 1, int(np.searchsorted(ends, done + limit, side="right")))
        ranges.append((lo, hi))
        lo, done = hi, int(ends[hi - 1])
    return ranges


def merged_ranges(spill: Spill, bucket: int, rows: int, bits: int) -> Iterator[np.ndarray]:
    """The merged records of a bucket, in one array or, if there are more than LIMIT, one range of rows after
    the other.
    """
    if spill.lengths[bucket] <= LIMIT:
        yield _merged(spill, bucket)
        return
    counts = np.zeros(rows, np.int64)
    for piece in spill.read(bucket, PIECE):
        counts += np.bincount(_keys(piece) >> bits, minlength=rows)
    ranges = bounded(counts, LIMIT)
    starts = np.array([lo for lo, _ in ranges])
    finer = Spill(spill.folder / f"{bucket:06d}-rows", len(ranges), spill.dtype)
    for piece in spill.read(bucket, PIECE):
        finer.add(np.searchsorted(starts, _keys(piece) >> bits, side="right") - 1, piece)
    for part in range(len(ranges)):
        yield _merged(finer, part)
        finer.drop(part)
    finer.close()


def _merged(spill: Spill, bucket: int) -> np.ndarray:
    """A whole bucket merged; repeats beyond LIMIT are merged as they come, so that they cost time but no
    memory.
    """
    held, size, limit = [np.empty(0, spill.dtype)], 0, LIMIT
    for piece in spill.read(bucket, PIECE):
        held.append(piece)
        size += len(piece)
        if size > limit:
            held = [merge(np.concatenate(held))]
            size = len(held[0])
            limit = max(limit, 2 * size)
    return merge(np.concatenate(held))


def _keys(entries: np.ndarray) -> np.ndarray:
    return entries if entries.dtype.names is None else entries["key"]


class AdjacencyWriter:
    """Takes the entries of the matrix of one order and leaves its shard files.

    Args:
        folder: where the files go.
        scratch: a folder for what is not needed in the end.
        grid: how to cut.
        team: who writes it.
        weight: dtype of the weights given with the entries; None if all are 1.
    """

    def __init__(self, folder: Path, scratch: Path, grid: ShardGrid, team: Team, weight: Any = None) -> None:
        self.folder, self.scratch, self.grid, self.team = folder, scratch, grid, team
        self.spill = Spill(scratch / "entries", grid.shape[0] * grid.shape[1], record_type(weight), team)
        self.weight = weight
        self.nnz = np.zeros(grid.shape, np.int64)

    def path(self, i: int, j: int) -> Path:
        return self.folder / f"shard-{i:04d}-{j:04d}.h5"

    def add(self, row: np.ndarray, col: np.ndarray, weights: np.ndarray | None) -> None:
        """Entries at these positions; a weight of -inf stands for "1 if there is no such entry otherwise"."""
        buckets, keys = self.grid.locate(row, col)
        self.spill.add(buckets, records(keys, weights, self.spill.dtype))

    def pool(self) -> None:
        """All ranks have added what they have. Collective."""
        self.spill.pool()

    def write_structure(self, observer: Observer | None = None) -> None:
        """Sort and merge every shard and write where its entries are, after `pool`. Collective."""
        with self.team.together():
            for bucket, i, j in self._mine():
                rows = int(self.grid.rows[i]), int(self.grid.rows[i + 1])
                size = 8 * (int(self.spill.lengths[bucket]) + rows[1] - rows[0])
                if observer is not None:
                    observer.begin(i, j, rows)
                with (
                    hdf5.create_file(self.path(i, j), size) as file,
                    open(self._weights(i, j), "wb") as weights_file,
                ):
                    self._write_shard(file, weights_file, bucket, i, j, observer)
                if observer is not None:
                    observer.end()
                self.spill.drop(bucket)
        self.spill.close()
        self.team.total(self.nnz)

    def _mine(self) -> list[tuple[int, int, int]]:
        """(bucket, i, j) of the shards that this rank writes."""
        mine = set(self.team.deal(self.spill.lengths))
        return [shard for shard in self.grid.shards() if shard[0] in mine]

    def _write_shard(
        self, file: Any, weights_file: Any, bucket: int, i: int, j: int, observer: Observer | None
    ) -> None:  # fmt: skip
        top, left = self.grid.rows[i], self.grid.cols[j]
        rows, columns = int(self.grid.rows[i + 1] - top), int(self.grid.cols[j + 1] - left)
        bits, mask = self.grid.bits, (1 << self.grid.bits) - 1
        indptr = np.zeros(rows + 1, np.int64)
        indices = hdf5.Growing(file, "indices", index_type(columns), int(self.spill.lengths[bucket]))
        for entries in merged_ranges(self.spill, bucket, rows, bits):
            for start in range(0, len(entries), PIECE):
                piece = entries[start : start + PIECE]
                row, col = _keys(piece) >> bits, _keys(piece) & mask
                indptr[row[0] + 1 : row[-1] + 2] += np.bincount(row - row[0])
                indices.append(col)
                weights = None
                if self.weight is not None:
                    weights = np.ascontiguousarray(piece["weight"])
                    weights[np.isneginf(weights)] = 1
                    weights_file.write(weights.view(np.uint8).data)
                if observer is not None:
                    observer.count(row + top, col + left, weights)
        self.nnz[i, j] = indices.length
        np.cumsum(indptr, out=indptr)
        hdf5.store_array(file, "indptr", indptr.astype(index_type(indices.length)))

    def write_values(self, dtype: Any, scale: Scale | None) -> None:
        """Write the values, which are the weights times `scale(rows, cols)`. Collective."""
        with self.team.together():
            self._write_values(dtype, scale)

    def _write_values(self, dtype: Any, scale: Scale | None) -> None:
        for _, i, j in self._mine():
            weights_path = self._weights(i, j)
            size = int(self.nnz[i, j]) * np.dtype(dtype).itemsize
            with hdf5.extend_file(self.path(i, j), size) as file, open(weights_path, "rb") as weights_file:
                values = hdf5.create(file, "values", (int(self.nnz[i, j]),), dtype)
                indptr = file["indptr"][:].astype(np.int64)
                for lo, hi in bounded(np.diff(indptr), PIECE):
                    a, b = indptr[lo], indptr[hi]
                    if a == b:
                        continue
                    value = (
                        np.ones(b - a)
                        if self.weight is None
                        else np.fromfile(weights_file, self.weight, b - a)
                    )
                    if scale is not None:
                        rows = np.repeat(np.arange(lo, hi) + self.grid.rows[i], np.diff(indptr[lo : hi + 1]))
                        value = value * scale(rows, file["indices"][a:b] + self.grid.cols[j])
                    values[a:b] = value
            weights_path.unlink()

    def _weights(self, i: int, j: int) -> Path:
        return self.scratch / f"weights-{i:04d}-{j:04d}"

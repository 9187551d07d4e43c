"""The grid of shards that a matrix is cut into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distgnn.layout import Range, owner, partition
from distgnn.store.format.limits import LIMITS


@dataclass(frozen=True)
class ShardGrid:
    """The partition vectors of rows and columns.

    The int64 key of an entry, ``local row << bits | local column``, sorts by row.
    """

    rows: np.ndarray
    cols: np.ndarray

    @classmethod
    def for_size(cls, n: int, entries: int) -> ShardGrid:
        """Return a square grid of 2**k x 2**k shards with about LIMITS.shard_entries in each."""
        side = 1
        while side * side * LIMITS.shard_entries < entries and side < n:
            side *= 2
        return cls(partition(n, side), partition(n, side))

    def aligned(self, vector: np.ndarray) -> ShardGrid:
        """Return a grid of about as many shards, with bounds from a partition vector where possible."""
        return ShardGrid(_snapped(self.rows, vector), _snapped(self.cols, vector))

    @property
    def shape(self) -> tuple[int, int]:
        """Shards by rows and by columns."""
        return len(self.rows) - 1, len(self.cols) - 1

    @property
    def bits(self) -> int:
        """Bits that a column number within a shard needs."""
        return max(1, int(np.diff(self.cols).max(initial=1) - 1).bit_length())

    def locate(self, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (bucket, key) of entries at global positions."""
        i = np.searchsorted(self.rows, row, side="right") - 1
        j = np.searchsorted(self.cols, col, side="right") - 1
        keys = (row.astype(np.int64) - self.rows[i]) << self.bits
        keys |= col - self.cols[j]
        i *= self.shape[1]
        i += j
        return i, keys


def _snapped(bounds: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Move every inner bound to the nearest one of `vector`, if that is nearer than half an average shard."""
    after = np.searchsorted(vector, bounds).clip(1, len(vector) - 1)
    lower, upper = vector[after - 1], vector[after]
    near = np.where(bounds - lower <= upper - bounds, lower, upper)
    snapped = np.where(2 * np.abs(near - bounds) * (len(bounds) - 1) < bounds[-1], near, bounds)
    return np.maximum.accumulate(snapped)


def overlaps(vector: np.ndarray, window: Range) -> Iterator[tuple[int, Range]]:
    """Yield the blocks of a partition vector that a window touches, each with its part of the window."""
    lo, hi = window
    if lo == hi:
        return
    for index in range(owner(vector, lo), owner(vector, hi - 1) + 1):
        first, last = max(lo, int(vector[index])), min(hi, int(vector[index + 1]))
        if first < last:
            yield index, (first, last)

"""The grid of shards that a matrix is cut into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from distgnn.layout import Range, owner, partition
from distgnn.local.entries import Cells, add_parts
from distgnn.store.format.limits import LIMITS

CELLS = 1 << 12  # of positions, which a table has the block of


class Blocks:
    """The blocks of a partition vector, found by a table: less than half the time of a binary search."""

    def __init__(self, vector: np.ndarray) -> None:
        self.vector, n = vector, int(vector[-1])
        shift = max(0, n.bit_length() - CELLS.bit_length() + 1)
        ends = np.append(np.arange(0, n, 1 << shift), n)
        first, last = self._search(ends[:-1]), self._search(ends[1:] - 1)
        self._cells = Cells(first, vector[first + 1], shift, n) if np.all(last - first <= 1) else None

    def of(self, positions: np.ndarray) -> np.ndarray:
        """Return the block, never an empty one, of each position, int64."""
        return self._search(positions) if self._cells is None else self._cells.of(positions)

    def add_parts(self, out: np.ndarray, positions: np.ndarray, shifts: np.ndarray, bits: int) -> None:
        """Add to `out`, int64, the positions shifted by `bits`, and what `shifts` has for their blocks."""
        if self._cells is None:
            out += (positions.astype(np.int64) << bits) + shifts[self._search(positions)]
        else:
            add_parts(out, positions, self._cells, shifts, bits)

    def _search(self, positions: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.vector, positions, side="right") - 1


@dataclass(frozen=True)
class ShardGrid:
    """The partition vectors of rows and columns.

    The int64 key of an entry, ``local row << bits | local column``, sorts by row. Above these bits stands the
    number of the shard in what :meth:`keys` returns, if `sortable`.
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

    @cached_property
    def bits(self) -> int:
        """Bits that a column number within a shard needs."""
        return _bits(self.cols)

    @cached_property
    def key_bits(self) -> int:
        """Bits that a key needs."""
        return _bits(self.rows) + self.bits

    @property
    def sortable(self) -> bool:
        """True if the number of a shard and a key fit into 63 bits."""
        return (self.shape[0] * self.shape[1]).bit_length() + self.key_bits < 64

    @cached_property
    def _blocks(self) -> tuple[Blocks, Blocks]:
        return Blocks(self.rows), Blocks(self.cols)

    def keys(self, row: np.ndarray, col: np.ndarray) -> np.ndarray:
        """Return the keys of entries at global positions, below the numbers of their shards."""
        (height, width), keys = self.shape, np.zeros(len(row), np.int64)
        shifts = (np.arange(height) * width << self.key_bits) - (self.rows[:-1] << self.bits)
        self._blocks[0].add_parts(keys, row, shifts, self.bits)
        shifts = (np.arange(width) << self.key_bits) - self.cols[:-1]
        self._blocks[1].add_parts(keys, col, shifts, 0)
        return keys

    def locate(self, row: np.ndarray, col: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (bucket, key) of entries at global positions."""
        i, j = self._blocks[0].of(row), self._blocks[1].of(col)
        keys = (row.astype(np.int64) - self.rows[i]) << self.bits
        keys |= col - self.cols[j]
        i *= self.shape[1]
        i += j
        return i, keys


def _bits(vector: np.ndarray) -> int:
    return max(1, int(np.diff(vector).max(initial=1) - 1).bit_length())


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

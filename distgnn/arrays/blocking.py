"""Rows cut into consecutive blocks: by their number, by their width or by their entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.layout import Range


class Blocks(Sequence[Range]):
    """Blocks of ``step`` rows; the last one may have fewer. Each is made when it is asked for."""

    def __init__(self, rows: int, step: int) -> None:
        self.rows, self.step, self.starts = rows, step, range(0, rows, step)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: Any) -> Any:
        first = self.starts[number]
        return first, min(first + self.step, self.rows)


def every(rows: int, step: int) -> list[Range]:
    """Cut rows into blocks of ``step`` rows; the last one may have fewer."""
    return list(Blocks(rows, step))


def rows_within(numbers: int, width: int) -> int:
    """Return how many rows of this width hold at most so many numbers; at least one."""
    return max(numbers // max(width, 1), 1)


def passes(array: Any, rows: int | None = None) -> list[slice]:
    """Cut the rows of an array, or so many rows of its width, into blocks for a pass in several operations.

    The intermediate results of a block stay in a cache. Blocks begin at multiples of 8 rows; an empty array
    has none.
    """
    rows, width = len(array) if rows is None else rows, array.shape[1] if array.ndim > 1 else 1
    step = max(rows_within(backend.of(array).at_a_time(), width) // 8 * 8, 8)
    return [slice(*block) for block in every(rows, step)] if width else []


def bounded(counts: np.ndarray, most: int | None) -> list[Range]:
    """Cut rows into blocks of at most ``most`` entries, or of one row that has more; for None into one block.

    ``counts``: the entries of each row.
    """
    if most is None:
        return [(0, len(counts))] if len(counts) else []
    ends = np.cumsum(counts)
    ranges, first, before = [], 0, 0
    while first < len(counts):
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        ranges.append((first, last))
        first, before = last, int(ends[last - 1])
    return ranges

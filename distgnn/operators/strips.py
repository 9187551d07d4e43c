"""Blocks of a sharded file, read once: the strip in which they lie is read, and then cut.

A file keeps the entries of a row together, so that a rank that reads some of its columns reads others, too.
Ranks that want columns of the same rows read some of the rows each, and send each other their columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import column_blocks, index_type
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.rows import all_to_all
from distgnn.layout import Range, partition

Windows = Sequence[tuple[Range, Range]]


def splits(grid: Grid | None, source: Any, windows: Windows) -> bool:
    """Tell whether a rank that reads its windows by itself would read columns of others. Collective."""
    if grid is None or grid.size == 1 or not hasattr(source, "splits"):
        return False
    return grid.world.lowest(-int(any(source.splits(cols) for _, cols in windows))) < 0


def read(grid: Grid | None, source: Any, windows: Windows) -> Iterator[sp.csr_array]:
    """Give the blocks in these (rows, columns), in this order, one after another.

    Collective with a grid, and only until it returns. Raises, on all ranks: as ``source.block``.
    """
    across, down = side_by_side(windows), side_by_side([(cols, rows) for rows, cols in windows])
    stacked = len(down) < len(across)
    outer = [((b[0], b[-1]), cols, b) for cols, b in down]
    outer = outer if stacked else [(rows, (b[0], b[-1]), b) for rows, b in across]
    asked: Any = ((source.block(rows, cols), bounds) for rows, cols, bounds in outer)
    if splits(grid, source, [(rows, cols) for rows, cols, _ in outer]):
        assert grid is not None
        with grid.world.alike([rows for rows, *_ in outer]) as mates, grid.world.together():
            asked = [(_together(mates, source, rows, cols), bounds) for rows, cols, bounds in outer]
    return _cut(asked, stacked)


def _cut(strips: Any, stacked: bool) -> Iterator[sp.csr_array]:
    for strip, bounds in strips:
        ends = [end - bounds[0] for end in bounds]
        yield from (strip[lo:hi] for lo, hi in pairwise(ends)) if stacked else column_blocks(strip, ends)


def side_by_side(windows: Windows) -> list[tuple[Range, list[int]]]:
    """Join windows of the same rows and of columns that follow each other: rows, and bounds of columns."""
    strips: list[tuple[Range, list[int]]] = []
    for rows, (first, last) in windows:
        if strips and strips[-1][0] == rows and strips[-1][1][-1] == first:
            strips[-1][1].append(last)
        else:
            strips.append((rows, [first, last]))
    return strips


def _together(group: Comm, source: Any, rows: Range, columns: Range) -> sp.csr_array:
    """Return the block in these columns, each rank its own, of rows that are the same on all. Collective.

    Cost, charged as ``adjacency``: two words for each entry that another rank reads, and its row's length.
    """
    asked = group.gather_objects(columns)
    ends = [rows[0] + end for end in partition(rows[1] - rows[0], group.size).tolist()]
    some = [end for first, last in asked if first < last for end in (first, last)]
    left, right = min(some, default=0), max(some, default=0)
    with group.together():
        strip = source.block((ends[group.rank], ends[group.rank + 1]), (left, right))
        wanted = {r: (lo - left, hi - left) for r, (lo, hi) in enumerate(asked) if lo < hi}
        sent = {r: strip[:, lo:hi] for r, (lo, hi) in wanted.items()}
        del strip
    return _exchanged(group, sent, np.diff(ends).tolist(), columns[1] - columns[0], source)


def _exchanged(
    group: Comm, sent: dict[int, sp.csr_array], heights: list[int], width: int, source: Any
) -> sp.csr_array:
    """Send each rank its block, and let it go; return those of this rank, one above another. Collective."""
    kind, shape = index_type(*source.shape), (sum(heights), width)
    with group.together():
        rows = {r: np.diff(A.indptr) for r, A in sent.items()}
        columns, numbers = ({r: getattr(A, part) for r, A in sent.items()} for part in ("indices", "data"))
        sent.clear()
    lengths = _gathered(group, rows, heights if width else [], kind)
    with group.together():
        pointers = np.zeros(shape[0] + 1, index_type(int(lengths.sum(dtype=np.int64)), *shape))
        pointers[1:] = np.cumsum(lengths, dtype=np.int64) if width else 0
        counts = np.diff(pointers[[0, *accumulate(heights)]]).tolist()
    indices = _gathered(group, columns, counts, kind)
    values = _gathered(group, numbers, counts, source.dtype)
    with group.together():
        block = sp.csr_array((values, indices, pointers), shape=shape)
        block.has_sorted_indices = block.has_canonical_format = True
    return block


def _gathered(group: Comm, sent: dict[int, np.ndarray], counts: list[int], kind: Any) -> np.ndarray:
    """Send each rank its numbers, and let them go; return those of this rank, so many by rank. Collective."""
    with group.together():
        array, ends = np.empty(sum(counts), kind), [0, *accumulate(counts)]
        into = {q: array[first:last] for q, (first, last) in enumerate(pairwise(ends)) if first < last}
        own = {r: np.ascontiguousarray(part, kind) for r, part in sent.items()}
        sent.clear()
    all_to_all(group, own, into, "adjacency")
    return array

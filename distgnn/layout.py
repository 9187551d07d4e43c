"""How a global matrix is cut over a process grid: pure functions of integers.

A *partition vector* is a monotone int64 vector ``v`` of length ``parts + 1`` with ``v[0] == 0`` and ``v[-1] == n``; block ``i``
is the range ``v[i]:v[i+1]``. Blocks may be empty and need not be equal, and nothing is ever padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from distgnn.grid import Grid

Range = tuple[int, int]


def partition(n: int, parts: int) -> np.ndarray:
    """Partition vector of ``n`` into ``parts`` blocks whose sizes differ by at most one; block i is [i n/parts, (i+1) n/parts).

    ``partition(n, a * b)[::b]`` equals ``partition(n, a)``: cutting once more refines, it never moves a boundary.
    """
    if n < 0 or parts < 1:
        raise ValueError(f"cannot cut {n} into {parts} blocks")
    return np.array([i * int(n) // parts for i in range(parts + 1)], dtype=np.int64)


def as_partition(vector: Sequence[int] | np.ndarray | None, n: int, parts: int) -> np.ndarray:
    """``vector`` checked as a partition of ``n`` into ``parts`` blocks; the even partition for None.

    Raises:
        ValueError: wrong length, not monotone, or not covering 0..n.
    """
    if vector is None:
        return partition(n, parts)
    checked = np.asarray(vector, dtype=np.int64)
    if checked.shape != (parts + 1,):
        raise ValueError(f"a partition into {parts} blocks needs {parts + 1} boundaries, got shape {checked.shape}")
    if checked[0] != 0 or checked[-1] != n or np.any(np.diff(checked) < 0):
        raise ValueError(f"a partition vector must rise from 0 to {n}, got {checked.tolist()[:8]}…")
    return checked


def nested(outer: np.ndarray, parts: int) -> np.ndarray:
    """Every block of ``outer`` cut evenly into ``parts``: a vector of ``parts * (len(outer) - 1)`` blocks, outer block major."""
    pieces = [outer[i] + partition(int(outer[i + 1] - outer[i]), parts)[:-1] for i in range(len(outer) - 1)]
    return np.concatenate([*pieces, outer[-1:]]).astype(np.int64)


def refine(first: np.ndarray, second: np.ndarray) -> list[Range]:
    """Common refinement of two partitions of the same range: its non-empty blocks, in order."""
    bounds = np.union1d(first, second).tolist()
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def owner(vector: np.ndarray, position: int) -> int:
    """The block of a partition that holds ``position`` (never an empty block)."""
    return int(np.searchsorted(vector, position, side="right")) - 1


def block(vector: np.ndarray, index: int) -> Range:
    """Block ``index`` of a partition vector as ``(first, last + 1)``."""
    return int(vector[index]), int(vector[index + 1])


@dataclass(frozen=True, eq=False)
class Cut:
    """One dimension of a matrix, cut over the grid axes ``axes`` (outermost first); ``()`` leaves it whole.

    ``parts`` is the partition vector, or None for the even partition of whatever length the dimension turns out to have
    (feature widths differ from layer to layer, node counts don't).
    """

    axes: tuple[str, ...] = ()
    parts: np.ndarray | None = None

    def vector(self, grid: Grid, n: int) -> np.ndarray:
        """The partition vector of a dimension of length ``n``."""
        return as_partition(self.parts, n, grid.count(*self.axes))

    def range(self, grid: Grid, n: int) -> Range:
        """What this rank holds of a dimension of length ``n``."""
        return block(self.vector(grid, n), grid.index(*self.axes))

    def same(self, other: Cut, grid: Grid, n: int) -> bool:
        return self.axes == other.axes and np.array_equal(self.vector(grid, n), other.vector(grid, n))


@dataclass(frozen=True, eq=False)
class Layout:
    """How a dense matrix is cut: rows over some grid axes, columns over others, copies along the axes in neither."""

    grid: Grid
    rows: Cut
    cols: Cut

    @property
    def row_axes(self) -> tuple[str, ...]:
        return self.rows.axes

    @property
    def col_axes(self) -> tuple[str, ...]:
        return self.cols.axes

    @property
    def row_range(self) -> Range:
        """Rows this rank holds, where the layout fixes the number of rows (as those of nodes do)."""
        if self.rows.parts is None:
            raise ValueError("this layout does not fix the number of rows; use ranges(shape)")
        return block(self.rows.parts, self.grid.index(*self.rows.axes))

    def col_range(self, width: int) -> Range:
        """Columns this rank holds of a matrix of ``width`` columns."""
        return self.cols.range(self.grid, width)

    def ranges(self, shape: tuple[int, int]) -> tuple[Range, Range]:
        """The (rows, columns) this rank holds of a matrix of ``shape``."""
        return self.rows.range(self.grid, shape[0]), self.cols.range(self.grid, shape[1])

    def local_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        (top, bottom), (left, right) = self.ranges(shape)
        return bottom - top, right - left

    @property
    def primary(self) -> bool:
        """True on the one rank of each set of replicas that answers for the block."""
        cut = {*self.rows.axes, *self.cols.axes}
        return all(self.grid.coords[axis] == 0 for axis in self.grid.shape if axis not in cut)

    def same(self, other: Layout, shape: tuple[int, int]) -> bool:
        """Do both cut a matrix of ``shape`` alike? Every rank gets the same answer without communication."""
        return (
            self.grid is other.grid
            and self.rows.same(other.rows, self.grid, shape[0])
            and self.cols.same(other.cols, self.grid, shape[1])
        )

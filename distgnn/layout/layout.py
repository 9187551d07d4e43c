"""Layouts: cuts of a matrix over the axes of a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from distgnn.layout.axes import Axes
from distgnn.layout.blocks import Range, as_partition, block
from distgnn.layout.order import NodeOrder

G = TypeVar("G", bound=Axes)


@dataclass(frozen=True, eq=False)
class Cut:
    """One dimension of a matrix, cut over the grid axes ``axes`` (outermost first); ``()`` leaves it whole.

    ``parts`` is the partition vector, or None for the even partition of any length (as for feature widths).
    ``order`` is the order of the nodes; None: node i at position i.
    """

    axes: tuple[str, ...] = ()
    parts: np.ndarray | None = None
    order: NodeOrder | None = None

    def vector(self, grid: Axes, n: int) -> np.ndarray:
        """Return the partition vector of a dimension of length ``n``."""
        return as_partition(self.parts, n, grid.count(*self.axes))

    def range(self, grid: Axes, n: int) -> Range:
        """Return this rank's range of a dimension of length ``n``."""
        if self.parts is None:
            index, parts = grid.index(*self.axes), grid.count(*self.axes)
            return index * n // parts, (index + 1) * n // parts
        return block(self.vector(grid, n), grid.index(*self.axes))

    def ids(self, first: int, last: int) -> np.ndarray:
        """Return the nodes at these positions, int64. Local to a rank; a store's order reads a file."""
        return np.arange(first, last) if self.order is None else self.order.permutation(first, last)

    def same(self, other: Cut, grid: Axes, n: int) -> bool:
        """Return True if both cut a dimension of length ``n`` alike, in the same order. Local to a rank."""
        alike = self.axes == other.axes and self.order == other.order
        if alike and self.parts is other.parts:
            return True
        return alike and np.array_equal(self.vector(grid, n), other.vector(grid, n))

    def words(self) -> str:
        """Describe the cut, for messages."""
        order = "" if self.order is None else f" in order {self.order.name}"
        return f"over ({', '.join(self.axes)}){order}"


@dataclass(frozen=True, eq=False)
class Layout(Generic[G]):
    """A cut of a dense matrix: rows over some grid axes, columns over others, copies along the rest."""

    grid: G
    rows: Cut
    cols: Cut

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The grid axes that cut the rows."""
        return self.rows.axes

    @property
    def col_axes(self) -> tuple[str, ...]:
        """The grid axes that cut the columns."""
        return self.cols.axes

    @property
    def row_range(self) -> Range:
        """Rows this rank holds; ValueError if the layout does not fix their number (as for nodes)."""
        if self.rows.parts is None:
            raise ValueError("this layout does not fix the number of rows; use ranges(shape)")
        return block(self.rows.parts, self.grid.index(*self.rows.axes))

    def ranges(self, shape: tuple[int, int]) -> tuple[Range, Range]:
        """Return the (rows, columns) this rank holds of a matrix of ``shape``."""
        return self.rows.range(self.grid, shape[0]), self.cols.range(self.grid, shape[1])

    def local_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the shape of this rank's block of a matrix of ``shape``."""
        if not (self.rows.axes or self.cols.axes):
            return shape
        (top, bottom), (left, right) = self.ranges(shape)
        return bottom - top, right - left

    @property
    def row_ids(self) -> np.ndarray:
        """The nodes whose rows this rank holds, from top to bottom, int64. For a store it reads a file."""
        return self.rows.ids(*self.row_range)

    @property
    def primary(self) -> bool:
        """True on the one rank of each set of replicas that answers for the block."""
        cut = {*self.rows.axes, *self.cols.axes}
        return all(self.grid.coords[axis] == 0 for axis in self.grid.shape if axis not in cut)

    def same(self, other: Layout[G], shape: tuple[int, int]) -> bool:
        """Return True if both cut a matrix of ``shape`` alike: on all ranks, without communication."""
        return self is other or (
            self.grid is other.grid
            and self.rows.same(other.rows, self.grid, shape[0])
            and self.cols.same(other.cols, self.grid, shape[1])
        )

    def words(self) -> str:
        """Describe the axes that cut rows and columns, and the order of rows, for messages."""
        return f"rows {self.rows.words()}, columns {self.cols.words()}"

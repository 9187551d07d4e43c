"""Matrices of rows by nodes, dense or sparse, of which each rank of a grid holds a block."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.csr import Shape
from distgnn.comm.grid import Grid
from distgnn.errors import check_type
from distgnn.layout import Layout, Range


class CutMatrix:
    """A matrix cut over a grid by a layout.

    Attributes:
        block: this rank's rows and columns, on the grid's backend. Its rows are in the order of the layout:
            those of the nodes ``layout.row_ids``.
        shape: the global shape.
        origin: the number of the call that made the matrix, where calls are compared (``DISTGNN_CHECK=1``).
    """

    __slots__ = ("__weakref__", "block", "layout", "origin", "shape")

    def __init__(self, block: Any, layout: Layout[Grid], shape: Shape) -> None:
        check_type("layout", layout, Layout, "a Layout, such as A.input_layout")
        expected = layout.local_shape(shape)
        if block.shape != expected:
            raise ValueError(f"rank {layout.grid.rank}: block {block.shape} where the layout says {expected}")
        self.block, self.layout, self.shape = block, layout, (int(shape[0]), int(shape[1]))
        self.origin = layout.grid.checks.number if layout.grid.checks is not None else 0

    @property
    def grid(self) -> Grid:
        """The grid that cuts the matrix."""
        return self.layout.grid

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the entries."""
        return np.dtype(self.block.dtype)

    @property
    def row_range(self) -> Range:
        """The first row that this rank holds, and the one after its last, in the layout's order."""
        return self.layout.ranges(self.shape)[0]

    @property
    def col_range(self) -> Range:
        """The first column that this rank holds, and the one after its last."""
        return self.layout.ranges(self.shape)[1]

    def as_operand(self) -> str:
        """Return what ranks compare of an operand."""
        n, f = self.shape
        return f"{n} x {f} {self.dtype}, {self.layout.words()}, of call {self.origin}"

    def __repr__(self) -> str:
        n, f = self.shape
        name, cut = type(self).__name__, self.layout.words()
        return f"<{name} {n} x {f} {self.dtype}, {cut}, on {self.grid!r}>"

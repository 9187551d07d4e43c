"""Dense matrices cut over a grid, and scatter and gather between them and the world."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.canonical import check_real
from distgnn.arrays.csr import Shape
from distgnn.comm.grid import Grid
from distgnn.layout import Layout, Range


class DistDense:
    """A dense matrix cut over the grid.

    Attributes:
        block: this rank's rows and columns (see ``layout``), 2-D and C-contiguous, on the grid's backend.
        shape: the global shape.
    """

    __slots__ = ("__weakref__", "block", "layout", "shape")

    def __init__(self, block: Any, layout: Layout[Grid], shape: Shape) -> None:
        expected = layout.local_shape(shape)
        if block.shape != expected:
            raise ValueError(f"rank {layout.grid.rank}: block {block.shape} where the layout says {expected}")
        if not block.flags.c_contiguous:
            raise ValueError("blocks of a DistDense must be C-contiguous")
        self.block, self.layout, self.shape = block, layout, (int(shape[0]), int(shape[1]))

    @classmethod
    def empty(cls, layout: Layout[Grid], shape: Shape, dtype: Any) -> DistDense:
        return cls(layout.grid.backend.empty(layout.local_shape(shape), dtype), layout, shape)

    @property
    def grid(self) -> Grid:
        return self.layout.grid

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.block.dtype)

    @property
    def row_range(self) -> Range:
        return self.layout.ranges(self.shape)[0]

    @property
    def col_range(self) -> Range:
        return self.layout.ranges(self.shape)[1]

    def like(self, block: Any) -> DistDense:
        """Another block cut the same way."""
        return DistDense(block, self.layout, self.shape)


def scatter(X: Any, layout: Layout[Grid], dtype: Any = None) -> DistDense:
    """Cut a global matrix that rank 0 has (others pass anything) over the grid. Collective."""
    on, world, rows = layout.grid.backend, layout.grid.world, layout.rows.parts
    with world.together():
        if world.rank == 0:
            check_real("X", np.asarray(X).dtype)
            X = np.ascontiguousarray(X, dtype=dtype)
            if X.ndim != 2:
                raise ValueError(f"scatter takes a matrix; got an array of shape {X.shape}")
            if rows is not None and X.shape[0] != rows[-1]:
                raise ValueError(f"scatter: the layout cuts {rows[-1]} rows, the matrix has {X.shape[0]}")
    shape, kind = world.share((X.shape, X.dtype) if world.rank == 0 else ((0, 0), np.dtype(float)))
    ranges = world.gather_objects(layout.ranges(shape))
    if world.rank != 0:
        return DistDense(world.receive(on.empty(layout.local_shape(shape), kind), 0, "H"), layout, shape)
    own, *others = (X[slice(*rows), slice(*cols)] for rows, cols in ranges)  # views
    for rank, block in enumerate(others, 1):
        world.send(on.asarray(block), rank, "H")
    return DistDense(on.asarray(own).copy(), layout, shape)


def gather(Y: DistDense) -> np.ndarray | None:
    """The global matrix as a NumPy array on rank 0, None elsewhere. Collective; for small results."""
    on, world, primary = Y.grid.backend, Y.grid.world, Y.layout.primary
    ranges = world.gather_objects(Y.layout.ranges(Y.shape) if primary else None)
    if world.rank != 0:
        if primary:
            world.send(Y.block, 0, "H")
        return None
    whole = np.empty(Y.shape, dtype=Y.dtype)
    for rank, held in enumerate(ranges):
        if held is not None:
            (top, bottom), (left, right) = held
            room = Y.block if rank == 0 else on.empty((bottom - top, right - left), Y.dtype)
            whole[top:bottom, left:right] = on.to_host(world.receive(room, rank, "H") if rank else room)
    return whole

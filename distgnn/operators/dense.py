"""Dense matrices cut over a grid, and scatter and gather between them and the world."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.csr import Shape
from distgnn.layout import Layout, Range


class DistDense:
    """A dense matrix cut over the grid.

    Attributes:
        block: this rank's rows and columns, 2-D and C-contiguous, on the grid's backend.
        layout: which rows and columns those are.
        shape: the global shape.
    """

    __slots__ = ("__weakref__", "block", "layout", "shape")

    def __init__(self, block: Any, layout: Layout, shape: Shape) -> None:
        expected = layout.local_shape(shape)
        if tuple(block.shape) != expected:
            raise ValueError(
                f"rank {layout.grid.rank}: block of shape {block.shape} where the layout says {expected}"
            )
        if not block.flags.c_contiguous:
            raise ValueError("blocks of a DistDense must be C-contiguous")
        self.block, self.layout, self.shape = block, layout, (int(shape[0]), int(shape[1]))

    @classmethod
    def empty(cls, layout: Layout, shape: Shape, dtype: Any) -> DistDense:
        return cls(layout.grid.backend.empty(layout.local_shape(shape), dtype), layout, shape)

    @property
    def grid(self) -> Any:
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


def scatter(X: Any, layout: Layout, dtype: Any = None) -> DistDense:
    """Cut a global matrix that rank 0 has (others pass anything, e.g. None) over the grid. Collective.

    Returns:
        the distributed matrix, on the grid's backend; replicas get equal copies.
    """
    grid = layout.grid
    world = grid.world
    with world.together():
        if world.rank == 0:
            X = np.ascontiguousarray(X, dtype=dtype)
            if X.ndim != 2:
                raise ValueError(f"scatter takes a matrix; got an array of shape {X.shape}")
            if layout.rows.parts is not None and X.shape[0] != layout.rows.parts[-1]:
                raise ValueError(
                    f"scatter: the layout cuts {layout.rows.parts[-1]} rows, the matrix has {X.shape[0]}"
                )
    shape, kind = world.share((X.shape, X.dtype) if world.rank == 0 else ((0, 0), np.dtype(float)))
    ranges = world.gather_objects(layout.ranges(shape))
    if world.rank == 0:
        for rank in range(1, world.size):
            (top, bottom), (left, right) = ranges[rank]
            world.send(grid.backend.asarray(X[top:bottom, left:right]), rank)
        (top, bottom), (left, right) = ranges[0]
        return DistDense(grid.backend.asarray(X[top:bottom, left:right]).copy(), layout, shape)
    return DistDense(world.receive(grid.backend.empty(layout.local_shape(shape), kind), 0), layout, shape)


def gather(Y: DistDense) -> np.ndarray | None:
    """The global matrix as a NumPy array on rank 0, None elsewhere. Collective; for tests and small results."""
    world = Y.grid.world
    ranges = world.gather_objects(Y.layout.ranges(Y.shape) if Y.layout.primary else None)
    if world.rank != 0:
        if Y.layout.primary:
            world.send(Y.block, 0)
        return None
    whole = np.empty(Y.shape, dtype=Y.dtype)
    for rank, held in enumerate(ranges):
        if held is not None:
            (top, bottom), (left, right) = held
            block = (
                Y.block
                if rank == 0
                else world.receive(Y.grid.backend.empty((bottom - top, right - left), Y.dtype), rank)
            )
            whole[top:bottom, left:right] = Y.grid.backend.to_host(block)
    return whole

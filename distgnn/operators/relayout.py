"""A dense matrix cut another way: every rank gets what it lacks from those that have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from distgnn.comm.checks import compare
from distgnn.comm.rows import all_to_all
from distgnn.layout import Axes, Cut, Layout, Range

Shape = tuple[int, int]
Window = tuple[Range, Range]


def relayout(X: Any, out: Any, matrix: str = "H") -> Any:
    """Copy the numbers of ``X`` into ``out``, which has another layout, and return ``out``. Collective.

    Both are :class:`~distgnn.operators.dense.DistDense`. ValueError, on every rank alike: their rows are in
    different orders.

    Of copies of a block, a rank asks the one whose place on the axes without a cut is its own. Cost: what a
    rank holds of the result and not of ``X``, in one all-to-allv.
    """
    grid, on = X.grid, X.grid.backend
    if X.layout.rows.order != out.layout.rows.order:
        raise ValueError(f"rows of {X!r} and {out!r} are in different orders")
    compare("redistribute", H=X, result=out)
    (top, left), (above, before) = (_corner(Y.layout.ranges(Y.shape)) for Y in (X, out))
    packed = {
        window: on.xp.ascontiguousarray(X.block[_within(window, top, left)])
        for _, window in given(X.layout, out.layout, X.shape, grid)
    }
    sent = {rank: packed[window] for rank, window in given(X.layout, out.layout, X.shape, grid)}
    wanted = list(taken(X.layout, out.layout, X.shape, grid))
    with grid.workspace.lend((out.block.size,), out.dtype) as room:
        rooms, end = {}, 0
        for rank, (rows, cols) in wanted:
            height, width = rows[1] - rows[0], cols[1] - cols[0]
            rooms[rank] = room[end : end + height * width].reshape(height, width)
            end += height * width
        all_to_all(grid.world, sent, rooms, matrix)
        for rank, window in wanted:
            out.block[_within(window, above, before)] = rooms[rank]
    return out


def taken(source: Layout, target: Layout, shape: Shape, place: Axes) -> Iterator[tuple[int, Window]]:
    """Yield the ranks, each once, from which a rank at this place gets which windows, itself included."""
    (rows, cols) = target.rows.range(place, shape[0]), target.cols.range(place, shape[1])
    for row in _overlaps(source.rows, place, shape[0], rows):
        for col in _overlaps(source.cols, place, shape[1], cols):
            yield _rank(place, place.coords | row[0] | col[0]), (row[1], col[1])


def given(source: Layout, target: Layout, shape: Shape, place: Axes) -> Iterator[tuple[int, Window]]:
    """Yield which ranks get which windows from a rank at this place: the reverse of :func:`taken`."""
    (rows, cols) = source.rows.range(place, shape[0]), source.cols.range(place, shape[1])
    of_source = {*source.row_axes, *source.col_axes}
    free = [axis for axis in place.shape if axis not in (*target.row_axes, *target.col_axes)]
    copies = [range(place.shape[a]) if a in of_source else (place.coords[a],) for a in free]
    for row in _overlaps(target.rows, place, shape[0], rows):
        for col in _overlaps(target.cols, place, shape[1], cols):
            for copy in product(*copies):
                coords = row[0] | col[0] | dict(zip(free, copy, strict=True))
                if all(coords[a] == place.coords[a] for a in place.shape if a not in of_source):
                    yield _rank(place, coords), (row[1], col[1])


def _overlaps(cut: Cut, grid: Axes, n: int, window: Range) -> Iterator[tuple[dict[str, int], Range]]:
    """Yield the blocks of a dimension that have a part of a window: their coordinates, and the part."""
    vector = cut.vector(grid, n)
    first, last = np.searchsorted(vector, window[0], "right") - 1, np.searchsorted(vector, window[1], "left")
    for number in range(int(first), int(last)):
        part = max(window[0], int(vector[number])), min(window[1], int(vector[number + 1]))
        if part[0] < part[1]:
            coords, rest = {}, number
            for axis in reversed(cut.axes):
                rest, coords[axis] = divmod(rest, grid.shape[axis])
            yield coords, part


def _rank(place: Axes, coords: Mapping[str, int]) -> int:
    rank = 0
    for axis, size in place.shape.items():
        rank = rank * size + coords[axis]
    return rank


def _corner(ranges: tuple[Range, Range]) -> tuple[int, int]:
    return ranges[0][0], ranges[1][0]


def _within(window: Window, top: int, left: int) -> tuple[slice, slice]:
    (first, last), (start, stop) = window
    return slice(first - top, last - top), slice(start - left, stop - left)

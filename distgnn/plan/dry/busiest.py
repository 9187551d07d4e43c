"""The busiest rank: ranks with blocks of equal shapes do the same work, and it has the most."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import singledispatch
from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.layout import Axes, Cut, Layout, block, shares
from distgnn.nn.gcn import GCN
from distgnn.operators.base import Operator
from distgnn.operators.block_rows import BlockRows
from distgnn.operators.split_3d import Split3D, layer_stages
from distgnn.operators.summa_2d import Panel, Summa2D

Shape = tuple[int, int]


def busiest_of(model: GCN, grid: Grid) -> int:
    """Return a rank that holds the most and, of those that do, has the largest :func:`_roles`."""
    sizes = _Sizes(grid)
    held = sum(sizes.held(layout, shape) for layout, shape in _matrices(model))
    most = np.flatnonzero(held == np.max(held)).tolist()
    roles = [_roles(getattr(A, "algorithm", A)) for A in _operators(model)]
    return max(most[::-1], key=lambda rank: [role(sizes.place(rank)) for role in roles])


def _operators(model: GCN) -> list[Operator]:
    return list({id(graph.A): graph.A for graph in model.graphs}.values())


def _matrices(model: GCN) -> Iterator[tuple[Layout, Shape]]:
    """Give the matrices that ranks hold, or multiply."""
    for graph, layer in zip(model.graphs, model.layers, strict=True):
        A, n, (below, above) = graph.A, graph.A.shape[0], layer.shape
        yield A.input_layout, (A.shape[1], below)
        yield A.input_layout, (A.shape[1], above)
        yield A.output_layout, (n, below)
        yield A.output_layout, (n, above)
        for layout, height in zip(A.inner_layouts, A.shape[::-1], strict=False):
            yield layout, (height, below)
            yield layout, (height, above)
        yield A.weights.input_layout, (n, below)
        yield A.weights.output_layout, (n, above)
        yield A.weights.weight_layout, layer.shape


@singledispatch
def _roles(A: Any) -> Callable[[Axes], Hashable]:
    """Make the function that gives a rank's role by its place on the grid: what, beside the shapes of its
    blocks, it does unlike others. The default role is the rank's place on axes that cut neither side of a
    product. The larger of two roles has more to do.
    """
    layouts = A.input_layout, A.output_layout
    cut = {axis for layout in layouts for axis in (*layout.row_axes, *layout.col_axes)}
    return lambda place: tuple(place.coords[axis] for axis in place.shape if axis not in cut)


@_roles.register
def _of_block_rows(A: BlockRows) -> Callable[[Axes], Hashable]:
    """Tell ranks apart by their stages: their number, and how many rows of others they have."""
    cuts, known = shares(A.col_parts, A.grid.shape.get("reps", 1)), dict[object, Hashable]()

    def role(place: Axes) -> Hashable:
        i = place.coords["rows"]
        if (key := (i, place.coords.get("reps", 0))) not in known:
            stages, columns = A.share(place, A.col_parts)
            rows, own = int(columns[-1] - columns[0]), int(columns[i + 1] - columns[i])
            senders = np.count_nonzero(np.diff(cuts.clip(*block(A.col_parts, i))))  # of sums, along a row
            known[key] = len(stages), rows, i not in stages, -own, senders
        return known[key]

    return role


@_roles.register
def _of_panels(A: Summa2D) -> Callable[[Axes], Hashable]:
    """Tell ranks apart by the widths of their own panels, of A by process column and of H by process row."""
    of_A, of_H = _widths(A.plane.panels, A.grid.shape)
    return lambda place: (of_A[place.coords["cols"]], of_H[place.coords["rows"]])


@_roles.register
def _of_layers(A: Split3D) -> Callable[[Axes], Hashable]:
    """Tell ranks apart by the widths of their own panels, as :func:`_of_panels`, of each layer."""
    sizes = A.grid.shape
    layers = [_widths(layer_stages(sizes, A.col_parts, k), sizes) for k in range(sizes["fibers"])]

    def role(place: Axes) -> Hashable:
        of_A, of_H = layers[place.coords["fibers"]]
        return of_A[place.coords["cols"]], of_H[place.coords["rows"]]

    return role


def _widths(panels: Iterable[Panel], sizes: Mapping[str, int]) -> tuple[list[Hashable], list[Hashable]]:
    """Return the widths of the panels of A of each process column, and of H of each process row."""
    of_A: list[Any] = [()] * sizes["cols"]
    of_H: list[Any] = [()] * sizes["rows"]
    for panel in panels:
        of_A[panel.c] += (panel.width,)
        of_H[panel.r] += (panel.width,)
    return of_A, of_H


class _Sizes:
    """Sizes of the parts of a dimension, int64 by rank; ``known``: by cut and length."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.shape = grid, grid.shape
        coords = np.unravel_index(np.arange(grid.size), tuple(self.shape.values()))
        self.coords = dict(zip(self.shape, coords, strict=True))
        self.known: dict[tuple[object, ...], np.ndarray] = {}

    def held(self, layout: Layout, shape: Shape) -> np.ndarray:
        """Return elements of a matrix by rank."""
        rows, cols = (self.of(*pair) for pair in zip((layout.rows, layout.cols), shape, strict=True))
        return rows * cols

    def of(self, cut: Cut, length: int) -> np.ndarray:
        key = cut.axes, None if cut.parts is None else cut.parts.tobytes(), length
        if key not in self.known:
            block: np.ndarray = np.zeros(self.grid.size, np.int64)
            for axis in cut.axes:
                block = block * self.shape[axis] + self.coords[axis]
            self.known[key] = np.diff(cut.vector(self.grid, length))[block]
        return self.known[key]

    def place(self, rank: int) -> Axes:
        return Axes(self.shape, rank)

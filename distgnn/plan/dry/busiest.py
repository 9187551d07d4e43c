"""The busiest rank: ranks with blocks of equal shapes do the same work, and it has the most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.layout import Axes, Cut, Layout, shares
from distgnn.nn.gcn import GCN
from distgnn.nn.sage import NeighbourMean
from distgnn.operators.block_rows import BlockRows
from distgnn.operators.split_3d import Split3D, layer_stages
from distgnn.operators.summa_2d import Panel, Summa2D

Shape = tuple[int, int]
Coords = Mapping[str, np.ndarray]  # places of all ranks, by axis


def busiest_of(model: GCN, grid: Grid) -> int:
    """Return a rank that holds the most and, of those that do, has the largest :func:`_roles`; the last."""
    sizes = _Sizes(grid)
    held = sum(sizes.held(layout, shape) for layout, shape in _matrices(model))
    most = np.flatnonzero(held == np.max(held))
    roles = [role for A in algorithms(model) for role in _roles(A, sizes.coords)]
    return int(most[np.lexsort((most, *(role[most] for role in reversed(roles))))[-1]])


def algorithms(model: GCN) -> list[Any]:
    """List the algorithms of a network's matrices, each once; of means over neighbours, that of the sums."""
    matrices = (graph.A.A if isinstance(graph.A, NeighbourMean) else graph.A for graph in model.graphs)
    every = [getattr(A, "algorithm", A) for A in matrices]
    return list({id(A): A for A in every}.values())


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
def _roles(A: Any, coords: Coords) -> list[np.ndarray]:
    """Return numbers by rank that say what ranks, beside the shapes of their blocks, do unlike others.

    The default role is the rank's place on axes that cut neither side of a product. The larger of two roles
    has more to do; the first number that differs decides.
    """
    layouts = A.input_layout, A.output_layout
    cut = {axis for layout in layouts for axis in (*layout.row_axes, *layout.col_axes)}
    return [places for axis, places in coords.items() if axis not in cut]


@_roles.register
def _of_block_rows(A: BlockRows, coords: Coords) -> list[np.ndarray]:
    """Tell ranks apart by their stages: their number, and how many rows of others they have."""
    i, j, parts = coords["rows"], coords.get("reps", coords["rows"] * 0), A.col_parts
    ranks = [int(np.flatnonzero(j == rep)[0]) for rep in range(int(j.max()) + 1)]
    vector = shares(parts, len(ranks))
    every = [A.share(Axes(A.grid.shape, rank), parts, vector) for rank in ranks]
    first, last = (np.array([getattr(stages, end) for stages, _ in every])[j] for end in ("start", "stop"))
    rows, own = np.array([int(columns[-1] - columns[0]) for _, columns in every])[j], np.diff(parts)[i]
    cuts = vector.clip(parts[:-1, None], parts[1:, None])
    senders = np.count_nonzero(np.diff(cuts), axis=1)[i]  # of sums, along a row
    return [last - first, rows, (i < first) | (i >= last), -own, senders]


@_roles.register
def _of_panels(A: Summa2D, coords: Coords) -> list[np.ndarray]:
    """Tell ranks apart by the widths of their own panels, of A by process column and of H by process row."""
    of_A, of_H = map(_places, _widths(A.plane.panels, A.grid.shape))
    return [of_A[coords["cols"]], of_H[coords["rows"]]]


@_roles.register
def _of_layers(A: Split3D, coords: Coords) -> list[np.ndarray]:
    """Tell ranks apart by the widths of their own panels, as :func:`_of_panels`, of each layer."""
    sizes, k, heights = A.grid.shape, coords["fibers"], np.diff(A.col_parts)
    known: dict[bytes, tuple[list[Any], list[Any]]] = {}  # by the heights of a layer's blocks
    keys = [heights[layer :: sizes["fibers"]].tobytes() for layer in range(sizes["fibers"])]
    for layer, key in enumerate(keys):
        if key not in known:
            known[key] = _widths(layer_stages(sizes, A.col_parts, layer), sizes)
    layers = [known[key] for key in keys]
    of_A, of_H = (_places([own for layer in layers for own in layer[side]]) for side in (0, 1))
    return [of_A[k * sizes["cols"] + coords["cols"]], of_H[k * sizes["rows"] + coords["rows"]]]


def _places(values: Sequence[Any]) -> np.ndarray:
    """Return the place of each value among the distinct ones, in rising order."""
    place = {value: number for number, value in enumerate(sorted({*values}))}
    return np.array([place[value] for value in values])


def _widths(panels: Iterable[Panel], sizes: Mapping[str, int]) -> tuple[list[Any], list[Any]]:
    """Return the widths of the panels of A of each process column, and of H of each process row."""
    of_A: list[list[int]] = [[] for _ in range(sizes["cols"])]
    of_H: list[list[int]] = [[] for _ in range(sizes["rows"])]
    for panel in panels:
        of_A[panel.c].append(panel.width)
        of_H[panel.r].append(panel.width)
    return [*map(tuple, of_A)], [*map(tuple, of_H)]


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

"""Which ranks do alike: those whose blocks have equal shapes."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.layout import Axes, Cut, Layout
from distgnn.nn.gcn import GCN


def kinds(model: GCN, grid: Grid) -> list[Hashable]:
    """The kind of every rank of the grid: ranks of equal kind are charged alike."""
    places = [Axes(grid.shape, rank) for rank in range(grid.size)]
    columns: dict[tuple[object, ...], list[int]] = {}
    for graph, layer in zip(model.graphs, model.layers, strict=True):
        A, n, (below, above) = graph.A, graph.A.shape[0], layer.shape
        shapes: list[tuple[Layout, tuple[int, int]]] = [(A.input_layout, (A.shape[1], below))]
        shapes += [(A.input_layout, (A.shape[1], above))]
        shapes += [(A.output_layout, (n, width)) for width in (below, above)]
        shapes += [(A.weights.input_layout, (n, below)), (A.weights.output_layout, (n, above))]
        shapes += [(A.weights.weight_layout, layer.shape)]
        for layout, shape in shapes:
            for cut, length in zip((layout.rows, layout.cols), shape, strict=True):
                parts = None if cut.parts is None else cut.parts.tobytes()
                key = cut.axes, parts, length
                if key not in columns:
                    columns[key] = _sizes(cut, grid, length, places)
    operators = {id(graph.A): graph.A for graph in model.graphs}.values()
    others = [[A.kind(place) for place in places] for A in operators]
    return list(zip(*columns.values(), *others, strict=True))


def _sizes(cut: Cut, grid: Grid, length: int, places: list[Axes]) -> list[int]:
    """How much of a dimension of this length each rank holds."""
    heights = np.diff(cut.vector(grid, length)).tolist()
    return [heights[place.index(*cut.axes)] for place in places]

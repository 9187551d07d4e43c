"""Road-like graphs: planar, spatially numbered, mostly nodes of degree 2, as in OpenStreetMap."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from distgnn.gallery.graph import Edges, GeneratedGraph, check
from distgnn.gallery.streams import stream


class RoadMap(GeneratedGraph):
    """A square map: streets run along every `spacing`-th row and column of a grid of cells.

    Every cell of a street is a node: junctions, joined by chains of nodes of degree 2. A share
    `missing_roads` of the streets between junctions is missing, and a share `missing_nodes` of all nodes. Up
    to 0.4 missing roads one component dominates (bonds of the square lattice percolate at 0.5).

    Nodes are numbered by tiles of `tile` x `tile` cells, row by row, as are the tiles. Non-zeros therefore
    crowd around the diagonal, and the blocks of a 2D cut are very unequal.

    The label is the nearest of `classes` random centres; features are its direction plus noise.
    """

    kind = "road"
    m = None  # the number of edges is known when the last chunk has been drawn

    def __init__(
        self, nodes: int, *, spacing: int = 4, missing_roads: float = 0.25, missing_nodes: float = 0.01,
        tile: int = 32, **common: Any,
    ):  # fmt: skip
        super().__init__(nodes, directed=False, **common)
        for name, value in (("spacing", spacing), ("tile", tile)):
            check(value >= 1, name, value, "expected at least 1")
        for name, share, most in (("missing_roads", missing_roads, 1), ("missing_nodes", missing_nodes, 0.9)):
            check(0 <= share <= most, name, share, f"expected a share between 0 and {most}")
        self.spacing, self.missing_roads, self.missing_nodes = spacing, missing_roads, missing_nodes
        per_junction = (1 + 2 * (1 - missing_roads) * (spacing - 1)) * (1 - missing_nodes)
        side = spacing * math.sqrt(self.n / per_junction)
        self.tile = spacing * max(1, math.ceil(min(tile, side) / spacing))
        self.tiles = max(1, round(side / self.tile))
        self._first = self._count_strips()
        self.edge_chunks = len(self._first) - 1
        self.parameters |= {"spacing": spacing, "missing_roads": missing_roads}
        self.parameters |= {"missing_nodes": missing_nodes, "tile": self.tile}

    def edge_chunk(self, index: int) -> Edges:
        """Draw strip `index`: one row of tiles, and the streets that lead from it to the next."""
        across, down, present = self._strip(index)
        ids = self._ids(index, present)
        below = np.full((1, ids.shape[1]), -1, np.int64)
        if index + 1 < self.edge_chunks:
            below[:] = self._ids(index + 1, self._strip(index + 1)[2])[:1]
        s = self.spacing
        rows = ids[::s]
        columns = np.concatenate([ids[:, ::s], below[:, ::s]])
        streets = (
            (rows[:, :-1], rows[:, 1:], np.repeat(across, s, axis=1)[:, :-1]),
            (columns[:-1], columns[1:], np.repeat(down, s, axis=0)),
        )
        chosen = [(a[k], b[k]) for a, b, there in streets for k in [there & (a >= 0) & (b >= 0)]]
        return np.concatenate([a for a, _ in chosen]), np.concatenate([b for _, b in chosen])

    def _strip(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the streets that lead right and down from junctions, and the cells that are nodes.

        The cells are (tile, tiles * tile).
        """
        rng = stream(self.seed, "strip", index)
        s, shape = self.spacing, (self.tile, self.tile * self.tiles)
        junctions = (shape[0] // s, shape[1] // s)
        across = rng.random(junctions, np.float32) >= self.missing_roads
        down = rng.random(junctions, np.float32) >= self.missing_roads
        present = np.zeros(shape, bool)
        present[::s] = np.repeat(across, s, axis=1)
        present[:, ::s] |= np.repeat(down, s, axis=0)
        present[::s, ::s] = True
        present &= rng.random(shape, np.float32) >= self.missing_nodes
        return across, down, present

    def _ids(self, index: int, present: np.ndarray) -> np.ndarray:
        """Return the numbers of a strip's nodes, int64 like `present`, tile by tile, -1 without a node."""
        tile, tiles = self.tile, self.tiles
        by_tile = present.reshape(tile, tiles, tile).transpose(1, 0, 2)
        ids = self._first[index] + np.cumsum(by_tile.ravel(), dtype=np.int64) - 1
        ids = ids.reshape(tiles, tile, tile).transpose(1, 0, 2).reshape(present.shape)
        return np.where(present & (ids < self.n), ids, -1)

    def _count_strips(self) -> list[int]:
        """List the first node of every strip, until there are n nodes; the last strip is cut off there."""
        first = [0]
        while first[-1] < self.n:
            first.append(first[-1] + int(np.count_nonzero(self._strip(len(first) - 1)[2])))
        return first

    @cached_property
    def _hidden(self) -> np.ndarray:
        """The nearest centre of every node, int32 (n,)."""
        shape = (self.tile * self.edge_chunks, self.tile * self.tiles)
        centres = stream(self.seed, "regions").random((max(self.classes, 1), 2)) * shape
        regions = np.empty(self.n, np.int32)
        for strip in range(self.edge_chunks):
            ids = self._ids(strip, self._strip(strip)[2])
            rows, columns = np.nonzero(ids >= 0)
            regions[ids[rows, columns]] = _nearest(rows + strip * self.tile, columns, centres)
        return regions


def _nearest(rows: np.ndarray, columns: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the index of the nearest centre, int32; memory of one distance per point for any centres."""
    best = np.full(len(rows), np.inf)
    nearest = np.zeros(len(rows), np.int32)
    for index, (row, column) in enumerate(centres):
        distance = (rows - row) ** 2 + (columns - column) ** 2
        closer = distance < best
        best[closer], nearest[closer] = distance[closer], index
    return nearest

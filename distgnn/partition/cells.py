"""Cells of a graph like a road map, which move as a whole when it is partitioned: crossings, roads, dead
ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from distgnn.partition.pattern import Pattern


@dataclass(frozen=True)
class Streets:
    """The graph of a symmetric pattern without its dead ends.

    Attributes:
        rows, columns: the edges, both ways, those of dead ends among them.
        ways: (n,) neighbours of every node that are no dead ends, or 0 where it is one.
    """

    rows: np.ndarray
    columns: np.ndarray
    ways: np.ndarray


def streets(pattern: Pattern) -> Streets:
    """What is left when nodes with at most one neighbour are taken away, again and again."""
    graph = pattern.neighbours
    degrees = np.diff(graph.indptr)
    ways, dead = degrees.copy(), np.zeros(pattern.n, bool)
    ends = np.flatnonzero(ways <= 1)
    while ends.size:
        dead[ends] = True
        before = graph[ends].indices
        np.subtract.at(ways, before, 1)
        ends = np.unique(before[(ways[before] <= 1) & ~dead[before]])
    return Streets(np.repeat(np.arange(pattern.n), degrees), graph.indices, np.where(dead, 0, ways))


def crossings(at: Streets) -> np.ndarray:
    """int32 (n,): the cell of every node: one for every node of at least three neighbours that are no dead
    ends, and with it the dead ends there and the roads that lead to crossings of higher number. What is
    connected without such a node is a cell, too.

    A cell that two of its roads leave for the same part counts as one row, where it may be two: good to begin
    with.
    """
    rows, columns, ways = at.rows, at.columns, at.ways
    joined = _no_crossing(ways[rows], ways[columns])
    count, piece = _connected(rows[joined], columns[joined], len(ways))
    leads = (ways[rows] == 2) & (ways[columns] > 2)
    first = np.full(count, len(ways))
    np.minimum.at(first, piece[rows[leads]], columns[leads])
    roads = np.flatnonzero(first < len(ways))
    return _connected(roads, piece[first[roads]], count)[1][piece]


def chains(at: Streets, part: np.ndarray) -> np.ndarray:
    """int32 (n,): the cell of every node: one for every crossing and for every road between two, as far as it
    is in one part, with their dead ends. Where on a road a boundary is makes no difference to the volume,
    unless both of its ends lead to the same other part: that is two rows where a cell counts as one.
    """
    rows, columns, ways = at.rows, at.columns, at.ways
    joined = _no_crossing(ways[rows], ways[columns]) & (part[rows] == part[columns])
    return _connected(rows[joined], columns[joined], len(ways))[1]


def taken_apart(pattern: Pattern, cell: np.ndarray, heaviest: float) -> np.ndarray:
    """The cells, but every node one of its own where they have more non-zeros than `heaviest`: few parts
    could take them in.
    """
    heavy = np.bincount(cell, pattern.row_nonzeros) > heaviest
    return np.unique(np.where(heavy[cell], len(heavy) + np.arange(pattern.n), cell), return_inverse=True)[
        1
    ].astype(np.int32)


def _no_crossing(ways: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether edges are of a road, or of a dead end."""
    return (np.maximum(ways, others) <= 2) | (np.minimum(ways, others) == 0)


def _connected(rows: np.ndarray, columns: np.ndarray, n: int) -> tuple[int, np.ndarray]:
    """How many components the graph with these edges has, and that of every node."""
    return connected_components(
        sp.coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(n, n)), directed=False
    )


def contracted(
    pattern: Pattern, cell: np.ndarray, part: np.ndarray
) -> tuple[Pattern, np.ndarray, np.ndarray]:
    """The pattern of the cells without their own entries, their non-zeros, and the parts of their nodes with
    most neighbours.
    """
    rows, columns = np.repeat(cell, pattern.row_nonzeros), cell[pattern.indices]
    apart, cells = rows != columns, cell.max() + 1
    entries = sp.coo_array((apart[apart], (rows[apart], columns[apart])), shape=(cells, cells))
    of_cells = np.empty(cells, np.int32)
    order = np.argsort(np.diff(pattern.neighbours.indptr), kind="stable")
    of_cells[cell[order]] = part[order]
    return Pattern.of(entries), np.bincount(cell, pattern.row_nonzeros).astype(np.int64), of_cells

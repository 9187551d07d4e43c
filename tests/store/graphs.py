"""Small graphs as sources, and what their stores must hold, computed the dense way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.store.format import hdf5, manifest
from distgnn.store.format.members import stamp
from distgnn.store.source import Edges, Source


class Graph(Source):
    """A source in memory that hands out its edges `chunk` at a time."""

    def __init__(
        self,
        n: int,
        edges: Any = (),
        weights: Any = None,
        *,
        directed: bool = False,
        width: int = 0,
        classes: int = 0,
        chunk: int = 7,
    ) -> None:
        rng = np.random.default_rng(n)
        self.n, self.directed, self.width, self.classes, self.chunk = n, directed, width, classes, chunk
        self.name = "test graph"
        self.pairs = np.asarray(edges, np.int64).reshape(-1, 2)
        self.weights = None if weights is None else np.asarray(weights, np.float64)
        self.X = rng.standard_normal((n, width)).astype(np.float32)
        if classes:
            self.labels = rng.integers(-1, classes, n).astype(np.int32)
            self.split = rng.integers(0, 4, n).astype(np.uint8)

    def edges(self) -> Iterator[Edges]:
        for lo in range(0, len(self.pairs), self.chunk):
            piece = slice(lo, lo + self.chunk)
            yield (
                self.pairs[piece, 0],
                self.pairs[piece, 1],
                None if self.weights is None else self.weights[piece],
            )

    def features(self, ids: np.ndarray) -> np.ndarray:
        return self.X[ids]

    def distinct_edges(self) -> int:
        pairs = self.pairs if self.directed else np.sort(self.pairs, axis=1)
        return len({tuple(pair) for pair in pairs.tolist()})


def reseal(folder: Path, content: dict[str, Any], stamped: bool = False) -> None:
    """Write an edited manifest as a forger would, with its id and checksum; with `stamped` into all files."""
    content["id"] = manifest.identity(content)
    if stamped:
        for name in content["files"]:
            with hdf5.writing(folder / name, "r+") as file:
                stamp(file, content["id"], name)
            content["files"][name] = manifest.fingerprint(folder / name)
    manifest.write(folder, content)


def random_graph(n: int, m: int, *, seed: int = 0, weighted: bool = False, **options: Any) -> Graph:
    """Draw m random edges, some repeated and some self-loops among them."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, n, (m, 2))
    edges[rng.random(m) < 0.1] = edges[0]
    loops = rng.random(m) < 0.05
    edges[loops, 1] = edges[loops, 0]
    return Graph(n, edges, rng.uniform(0.1, 3.0, m) if weighted else None, **options)


def adjacency(graph: Graph, normalize: str = "gcn", self_loops: bool = True) -> sp.csr_array:
    """Return the matrix of the store of a graph in original order, in float64."""
    A = np.full((graph.n, graph.n), -np.inf)
    src, dst = graph.pairs.T
    weights = np.ones(len(src)) if graph.weights is None else graph.weights
    np.maximum.at(A, (dst, src), weights)
    if not graph.directed:
        np.maximum.at(A, (src, dst), weights)
    if self_loops:
        missing = np.isneginf(A.diagonal())
        A[missing, missing] = 1
    there = ~np.isneginf(A)
    A[~there] = 0
    d = A.sum(axis=1)
    with np.errstate(divide="ignore"):
        if normalize == "gcn":
            s = np.where(d > 0, d**-0.5, 0)
            A = A * s[:, None] * s
        elif normalize == "row":
            A = A * np.where(d > 0, 1 / d, 0)[:, None]
    rows, cols = np.nonzero(there)  # zeros that are part of the pattern stay
    indptr = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    return sp.csr_array((A[rows, cols], cols.astype(np.int32), indptr), shape=A.shape)


def assert_same(found: sp.csr_array, expected: sp.csr_array, tolerance: float) -> None:
    """Compare the pattern, and the values within a relative tolerance."""
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.data, expected.data, rtol=tolerance, atol=0)


def permuted(A: sp.csr_array, p: np.ndarray) -> sp.csr_array:
    """Return A[p][:, p] with sorted indices, keeping stored zeros."""
    q = np.argsort(p)
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    i, j = q[rows], q[A.indices]
    order = np.lexsort((j, i))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(i, minlength=A.shape[0]))])
    return sp.csr_array((A.data[order], j[order].astype(np.int32), indptr), shape=A.shape)


def window(A: sp.csr_array, rows: Sequence[int], cols: Sequence[int]) -> sp.csr_array:
    """Return A[rows[0]:rows[1], cols[0]:cols[1]], keeping stored zeros."""
    counts = np.diff(A.indptr)
    i = np.repeat(np.arange(A.shape[0]), counts)
    keep = (i >= rows[0]) & (i < rows[1]) & (A.indices >= cols[0]) & (A.indices < cols[1])
    height = rows[1] - rows[0]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(i[keep] - rows[0], minlength=height))])
    return sp.csr_array((A.data[keep], A.indices[keep] - cols[0], indptr), shape=(height, cols[1] - cols[0]))


AWKWARD: dict[str, Graph] = {
    "prime": random_graph(31, 90, width=5, classes=3),
    "one node": Graph(1, width=2, classes=1),
    "one node with a loop": Graph(1, [[0, 0]]),
    "no edges": Graph(13, width=3, classes=2),
    "two nodes": Graph(2, [[1, 0]]),
    "loops there already": Graph(5, [[0, 0], [1, 1], [4, 4], [0, 1], [3, 4]]),
    "both directions": Graph(6, [[0, 1], [1, 0], [2, 3], [3, 2], [2, 3], [0, 1]], chunk=2),
    "hub": Graph(37, [[5, i] for i in range(37)] + [[i, 30] for i in range(37)], width=1),
    "isolated nodes": Graph(23, [[1, 2], [2, 21]]),
    "directed": random_graph(29, 80, directed=True),
    "directed acyclic": Graph(
        17, [[j, i] for i in range(17) for j in range(i) if (i * j) % 3 == 1], directed=True
    ),
    "weighted": random_graph(31, 120, weighted=True, width=2),
    "weighted directed": random_graph(26, 90, weighted=True, directed=True),
    "weighted loops": Graph(4, [[0, 0], [1, 1], [0, 1], [2, 3], [2, 3]], [0.25, 7, 2, 0.5, 0.75]),
    "zero weights": Graph(5, [[0, 1], [1, 2], [3, 3], [2, 4]], [0, 2, 0, 1.5]),
    "dense": Graph(11, [[i, j] for i in range(11) for j in range(i + 1)], classes=4),
}

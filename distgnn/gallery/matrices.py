"""Small generated graphs as SciPy matrices, from the same chunks that the streaming form writes."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import numpy as np
import scipy.sparse as sp

from distgnn.gallery.graph import GeneratedGraph
from distgnn.gallery.keywords import RMatOptions, RoadOptions, SbmOptions
from distgnn.gallery.rmat_graph import RMat
from distgnn.gallery.road_graph import RoadMap
from distgnn.gallery.sbm_graph import PlantedPartition


class Graph(NamedTuple):
    """A whole graph.

    `A`: float32 CSR (n, n) of ones, A[target, source]; `features` float32 (n, width), `labels` int32 (n,),
    `split` uint8 (n,) (1 train, 2 validation, 3 test), or None if not asked for.
    """

    A: sp.csr_array
    features: np.ndarray | None
    labels: np.ndarray | None
    split: np.ndarray | None
    classes: int


def rmat(nodes: int | None = None, **options: Unpack[RMatOptions]) -> Graph:
    """Draw an R-MAT graph; `options` are those of `RMat`."""
    return in_memory(RMat(nodes, **options))


def sbm(nodes: int, **options: Unpack[SbmOptions]) -> Graph:
    """Draw a planted partition; `options` are those of `PlantedPartition`."""
    return in_memory(PlantedPartition(nodes, **options))


def road(nodes: int, **options: Unpack[RoadOptions]) -> Graph:
    """Draw a road-like graph; `options` are those of `RoadMap`."""
    return in_memory(RoadMap(nodes, **options))


def in_memory(graph: GeneratedGraph) -> Graph:
    """Draw all of a generated graph. Memory is proportional to its edges and features."""
    chunks = list(graph.edges())
    src, dst = np.concatenate([np.empty((2, 0), np.int64), *(np.stack(chunk) for chunk in chunks)], axis=1)
    if not graph.directed:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    A = sp.coo_array((np.ones(len(src), np.float32), (dst, src)), shape=(graph.n, graph.n)).tocsr()
    A.data[:] = 1.0  # duplicates were summed
    features = np.concatenate(list(graph.features())) if graph.width else None
    return Graph(A, features, graph.labels(lambda: chunks), graph.split(), graph.classes)

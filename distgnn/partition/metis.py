"""METIS (Karypis and Kumar, SIAM J. Sci. Comput. 20, 1998) through pymetis: k-way, for edge cut or volume."""

from __future__ import annotations

import numpy as np

from distgnn.partition.packages import need
from distgnn.partition.pattern import Pattern

CUT, VOLUME = 0, 1  # METIS_OBJTYPE


def edge_cut(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Few edges between parts; of a directed graph, of the undirected one with the same edges."""
    return _run(pattern, parts, seed, imbalance, CUT)


def communication_volume(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Few (node, other part with a neighbour of it): of an undirected graph, its total volume."""
    return _run(pattern, parts, seed, imbalance, VOLUME)


def _run(pattern: Pattern, parts: int, seed: int, imbalance: float, objective: int) -> np.ndarray:
    pymetis = need("metis")
    graph = pattern.neighbours
    if parts == 1 or graph.nnz == 0:
        return pattern.even_cut(parts)
    options = pymetis.Options()
    options.objtype, options.seed = objective, seed % 2**31
    options.ufactor = max(1, round(1000 * (imbalance - 1)))
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int64))
    found = pymetis.part_graph(
        parts, adjacency=adjacency, vweights=pattern.weights, options=options, recursive=False
    )
    return np.asarray(found.vertex_part, np.int32)

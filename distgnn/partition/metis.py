"""METIS (Karypis and Kumar, SIAM J. Sci. Comput. 20, 1998) through pymetis: k-way, for edge cut or volume."""

from __future__ import annotations

import numpy as np

from distgnn.partition.packages import need
from distgnn.partition.pattern import Pattern


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float, volume: bool = False) -> np.ndarray:
    """Partition for few edges between parts or, with `volume`, for few rows that travel.

    For a directed graph, edges of the undirected graph count. `volume` counts pairs of a node and another
    part with a neighbour of it.
    """
    pymetis = need("metis")
    graph = pattern.neighbours
    if parts == 1 or graph.nnz == 0:
        return pattern.even_cut(parts)
    options = pymetis.Options()
    options.objtype, options.seed = int(volume), seed % 2**31  # METIS_OBJTYPE_CUT is 0, _VOL is 1
    options.ufactor = max(1, round(1000 * (imbalance - 1)))
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int64))
    how = {"vweights": pattern.weights, "options": options, "recursive": False}
    parted = pymetis.part_graph(parts, adjacency=adjacency, **how)
    return np.asarray(parted.vertex_part, np.int32)

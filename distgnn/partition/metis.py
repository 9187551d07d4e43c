"""METIS (Karypis and Kumar, SIAM J. Sci. Comput. 20, 1998) through pymetis: k-way, for edge cut or for
communication volume.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.partition.pattern import Pattern

CUT, VOLUME = 0, 1  # METIS_OBJTYPE


def package() -> ModuleType:
    """pymetis.

    Raises:
        UserError: it is not installed.
    """
    try:
        import pymetis
    except ImportError:
        problem = "needs pymetis; install with: pip install distgnn[partition]"
        raise ArgumentError("partition", "metis", problem) from None
    return pymetis


def edge_cut(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Few edges between parts; of a directed graph, of the undirected one with the same edges."""
    return _run(pattern, parts, seed, imbalance, CUT)


def communication_volume(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Few (node, other part with a neighbour of it): of an undirected graph, its total volume."""
    return _run(pattern, parts, seed, imbalance, VOLUME)


def _run(pattern: Pattern, parts: int, seed: int, imbalance: float, objective: int) -> np.ndarray:
    pymetis = package()
    graph = pattern.neighbours
    if parts == 1 or graph.nnz == 0:
        return even(pattern, parts)
    options = pymetis.Options()
    options.objtype, options.seed = objective, seed % 2**31
    options.ufactor = max(1, round(1000 * (imbalance - 1)))
    weights = np.maximum(pattern.row_nonzeros, 1)
    return np.asarray(_part_graph(pymetis, parts, graph, weights, options), np.int32)


def _part_graph(pymetis: ModuleType, parts: int, graph: Any, weights: np.ndarray, options: Any) -> Any:
    pointers, neighbours = graph.indptr.astype(np.int64), graph.indices.astype(np.int64)
    arrays = {"adjacency": pymetis.CSRAdjacency(pointers, neighbours)}
    return pymetis.part_graph(parts, **arrays, vweights=weights, options=options, recursive=False).vertex_part


def even(pattern: Pattern, parts: int) -> np.ndarray:
    """Nodes as they come; for graphs without edges, too."""
    return even_cut(np.maximum(pattern.row_nonzeros, 1), parts)


def even_cut(weights: np.ndarray, parts: int) -> np.ndarray:
    """int32: rows as they come, cut so that the weights of the parts are equal but for one row's."""
    middle = np.cumsum(weights) - weights / 2
    return np.minimum(middle * (parts / weights.sum()), parts - 1).astype(np.int32)

"""Generators of every kind, small, for tests that all kinds share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from distgnn.gallery import GeneratedGraph, PlantedPartition, RMat, RoadMap

SMALL: dict[str, Callable[..., GeneratedGraph]] = {
    "rmat": lambda n=397, **options: RMat(n, **options),
    "rmat directed": lambda n=397, **options: RMat(n, directed=True, **options),
    "rmat in order": lambda n=397, **options: RMat(n, scramble=False, **options),
    "sbm": lambda n=397, **options: PlantedPartition(
        n, communities=min(n, 8), mixing=0.2 * (n > 1), **options
    ),
    "sbm power laws": lambda n=397, **options: PlantedPartition(
        n, communities=min(n, 8), mixing=0.2 * (n > 1), size_exponent=2.5, degree_exponent=2.5, **options
    ),
    "road": lambda n=397, **options: RoadMap(n, tile=8, **options),
}
kinds = pytest.mark.parametrize("make", SMALL.values(), ids=SMALL.keys())


def drawn(graph: GeneratedGraph) -> np.ndarray:
    """Return all edges, int64 (2, m)."""
    return np.concatenate([np.empty((2, 0), np.int64), *(np.stack(ends) for ends in graph.edges())], axis=1)

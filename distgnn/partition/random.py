"""The baseline: parts of equal size, drawn without looking at the graph."""

from __future__ import annotations

import numpy as np

from distgnn import layout
from distgnn.partition import orders
from distgnn.partition.pattern import Pattern


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Cut the random order of this seed (the `random` order of a store) evenly; `imbalance` is ignored."""
    positions = orders.shuffled(pattern.n, seed).positions(np.arange(pattern.n))
    bounds = layout.partition(pattern.n, parts)
    return np.repeat(np.arange(parts, dtype=np.int32), np.diff(bounds))[positions]

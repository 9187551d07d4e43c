"""The baseline: parts of equal size, drawn without looking at the graph."""

from __future__ import annotations

import numpy as np

from distgnn import layout
from distgnn.partition import orders
from distgnn.partition.pattern import Pattern


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """An even cut of the random order of this seed (the `random` order of a store). `imbalance` is what comes
    out.
    """
    permutation = orders.shuffled(pattern.n, seed).permutation
    assert permutation is not None
    part = np.empty(pattern.n, np.int32)
    part[permutation] = np.repeat(
        np.arange(parts, dtype=np.int32), np.diff(layout.partition(pattern.n, parts))
    )
    return part

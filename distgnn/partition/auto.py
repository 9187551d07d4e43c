"""A choice of the method by the size of the graph."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import numpy as np

from distgnn.partition import kaminpar, metis, volume
from distgnn.partition.packages import PACKAGES
from distgnn.partition.pattern import Pattern

log = logging.getLogger(__name__)
#: Non-zeros from which on a cut of edges is taken: `volume` would take minutes, 10 to 90 times as long.
LARGE = 1 << 22


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Partition by `volume`; from ``LARGE`` non-zeros on by KaMinPar, or METIS where that is missing."""
    method, make = "volume", volume.partition
    if pattern.nnz >= LARGE:
        there = find_spec(PACKAGES["kaminpar"]) is not None
        method, make = ("kaminpar", kaminpar.partition) if there else ("metis", metis.partition)
    log.info("partition of %d non-zeros in %d parts: by %s", pattern.nnz, parts, method)
    return make(pattern, parts, seed, imbalance)

"""Hypergraph partitioning with Mt-KaHyPar (Gottesbüren, Heuer, Maas, Sanders, Schlag, ACM Trans. Algorithms
20, 2024).

One net per column of A, whose pins are the rows with an entry there and the row that owns it: its
connectivity - 1 is the number of parts to which that row of H is sent, so the sum is the total volume,
exactly, directed or not (Çatalyürek and Aykanat, IEEE TPDS 10, 1999).
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.partition.metis import even
from distgnn.partition.pattern import Pattern


def package() -> ModuleType:
    """mtkahypar.

    Raises:
        UserError: it is not installed.
    """
    try:
        import mtkahypar
    except ImportError:
        problem = "needs mtkahypar; install with: pip install distgnn[partition]"
        raise ArgumentError("partition", "hypergraph", problem) from None
    return mtkahypar


@functools.cache
def _started() -> Any:
    """The library, which can be started once in a process; on one thread, as ranks share the cores of a host."""
    return package().initialize(1)


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Small total volume."""
    mtkahypar = package()
    nets = _nets(pattern)
    if parts == 1 or not nets:
        return even(pattern, parts)
    library = _started()
    # The default preset is twice as fast on graphs with hubs, but finds other parts each time, even on one
    # thread.
    context = library.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(parts, imbalance - 1, mtkahypar.Objective.KM1)
    context.logging = False
    mtkahypar.set_seed(seed % 2**31)
    weights = np.maximum(pattern.row_nonzeros, 1).tolist()
    found = library.create_hypergraph(
        context, pattern.n, len(nets), nets, weights, [1] * len(nets)
    ).partition(context)
    return np.asarray(found.get_partition(), np.int32)


def _nets(pattern: Pattern) -> list[list[int]]:
    """The pins of every net that has at least two."""
    nets = pattern.nets
    bounds, pins = nets.indptr.tolist(), nets.indices.tolist()
    return [pins[bounds[j] : bounds[j + 1]] for j in range(pattern.n) if bounds[j + 1] - bounds[j] > 1]

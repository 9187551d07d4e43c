"""Hypergraph partitioning with Mt-KaHyPar (Gottesbüren et al., ACM Trans. Algorithms 20, 2024).

The authors are Gottesbüren, Heuer, Maas, Sanders and Schlag.

One net per column of A, whose pins are the rows with an entry there and the row that owns it: its
connectivity - 1 is the number of parts to which that row of H is sent, so the sum is the total volume,
exactly, directed or not (Çatalyürek and Aykanat, IEEE TPDS 10, 1999).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from distgnn.partition.packages import need
from distgnn.partition.pattern import Pattern


@functools.cache
def _started() -> Any:
    """Start the library once in a process, on one thread, as ranks share the cores of a host."""
    return need("hypergraph").initialize(1)


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Partition for a small total volume, with the same result for all seeds.

    The preset has a seed of its own, which cannot be set.
    """
    mtkahypar = need("hypergraph")
    nets = _nets(pattern)
    if parts == 1 or not nets:
        return pattern.even_cut(parts)
    library = _started()
    # The default preset is faster on graphs with hubs, but finds other parts each time, even on one thread.
    context = library.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(parts, imbalance - 1, mtkahypar.Objective.KM1)
    context.logging = False
    sizes, weights = (pattern.n, len(nets)), (pattern.weights.tolist(), [1] * len(nets))
    graph = library.create_hypergraph(context, *sizes, nets, *weights)
    return np.asarray(graph.partition(context).get_partition(), np.int32)


def _nets(pattern: Pattern) -> list[list[int]]:
    """List the pins of every net that has at least two."""
    nets = pattern.nets
    bounds, pins = nets.indptr.tolist(), nets.indices.tolist()
    return [pins[low:high] for low, high in zip(bounds, bounds[1:], strict=False) if high - low > 1]

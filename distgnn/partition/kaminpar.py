"""KaMinPar (Gottesbüren et al., ESA 2021): deep multilevel partitioning for edge cut, on several threads."""

from __future__ import annotations

import os
import tempfile

import numpy as np

from distgnn.local import host
from distgnn.partition.packages import need
from distgnn.partition.pattern import Pattern

#: Of the ParHIP format: no weights of edges; numbers and weights of nodes have 32 bits, offsets 64.
VERSION = 1 | 8 | 16
LEAST = 1e-3  # imbalance above 1, as METIS has


def partition(
    pattern: Pattern, parts: int, seed: int, imbalance: float, threads: int | None = None
) -> np.ndarray:  # fmt: skip
    """Partition for few edges between parts, of a directed graph between those of the undirected one.

    Threads: by default ``OMP_NUM_THREADS``, or as many as this process has cores. The same seed gives the
    same parts on one thread alone. The package takes graphs from files: a temporary one has 4 bytes per
    non-zero and 12 per node.
    """
    kaminpar = need("kaminpar")
    graph = pattern.neighbours
    if parts == 1 or graph.nnz == 0:
        return pattern.even_cut(parts)
    kaminpar.reseed(seed % 2**31)
    with tempfile.NamedTemporaryFile(suffix=".parhip") as file:
        begin = 24 + 8 * (pattern.n + 1)
        for array in ((VERSION, pattern.n, graph.nnz), begin + 4 * graph.indptr.astype(np.int64)):
            file.write(np.asarray(array, np.uint64).tobytes())
        for array in (graph.indices, pattern.weights):
            file.write(array.astype(np.uint32).tobytes())
        file.flush()
        given = kaminpar.load_graph(file.name, kaminpar.GraphFileFormat.PARHIP)
    partitioner = kaminpar.KaMinPar(threads or _threads(), kaminpar.default_context())
    eps = max(imbalance - 1, LEAST)  # it takes 0 for not given
    return np.asarray(partitioner.compute_partition(given, k=parts, eps=eps), np.int32)


def _threads() -> int:
    if os.environ.get("OMP_NUM_THREADS"):
        return host.threads()
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

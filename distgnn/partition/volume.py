"""Small total volume and a busiest sender that sends little: refinement of a good start.

Volume-balancing models put these costs into recursive bisection (Acer, Selvitopi and Aykanat, Parallel
Computing 59, 2016: Graph-VB of ``sparsity-aware.txt`` section 5.2). Here rows of all parts move one by one
(``kernels/host/volume.c``). The start is METIS's parts. Where few nodes are on boundaries, as on road maps
and meshes, rows that move one by one stay near the start, which is the hypergraph partitioner's there.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import reverse_cuthill_mckee

from distgnn.errors import UserError
from distgnn.partition import hypergraph, metis
from distgnn.partition.packages import need
from distgnn.partition.pattern import Pattern

FEW = 0.1  # share of the nodes that are sent

#: What a part should send and receive at most, relative to the average.
SENDS, RECEIVES = 1.0, 1.3

#: Rows by which a move may worsen the objective at first, for rows of one non-zero; grows with their root.
HEAT, LITTLE_HEAT = 0.6, 0.3


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Small total volume and a small largest send volume.

    Time: that of the start and at least 400 visits per node and non-zero, each of as many steps as the net
    has parts. Memory of the kernel: 45 bytes per node, 8 per non-zero, and 4 per part for every column of
    more than 11 non-zeros.
    """
    kernels = need("volume")
    part, heat = _few_edges(pattern, parts, seed, imbalance), HEAT
    if _sent(pattern, part) <= FEW * pattern.n and _installed("hypergraph"):
        part, heat = hypergraph.partition(pattern, parts, seed, imbalance), LITTLE_HEAT
    kernels.volume_refine(
        pattern.indptr, pattern.indices, part, *np.empty((2, parts), np.int64),
        capacity=int(imbalance * pattern.nnz / parts), send_bound=SENDS, receive_bound=RECEIVES,
        heat=heat * (pattern.nnz / pattern.n) ** 0.5,
        work=max(400, 3 * parts) * (pattern.n + pattern.nnz), seed=seed % 2**63,
    )  # fmt: skip
    return part


def _few_edges(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """METIS's parts, or without METIS an even cut of the reverse Cuthill-McKee order."""
    if _installed("metis"):
        return metis.edge_cut(pattern, parts, seed, imbalance)
    return pattern.even_cut(parts, reverse_cuthill_mckee(pattern.neighbours, symmetric_mode=True))


def _sent(pattern: Pattern, part: np.ndarray) -> int:
    """Nodes whose rows of H are sent to another part."""
    away = np.repeat(part, pattern.row_nonzeros) != part[pattern.indices]
    return np.unique(pattern.indices[away]).size


def _installed(method: str) -> bool:
    try:
        return need(method) is not None
    except UserError:
        return False

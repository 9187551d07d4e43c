"""Small total volume without a part that sends or receives much more than another: refinement of a good start.

Volume-balancing models put these costs into recursive bisection (Acer, Selvitopi and Aykanat, Parallel Computing 59, 2016:
Graph-VB of ``sparsity-aware.txt`` section 5.2). Here all parts are refined together (``kernels/host/volume.c``), from the best
start that is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from scipy.sparse.csgraph import reverse_cuthill_mckee

from distgnn import hostkernels
from distgnn.errors import UserError
from distgnn.partition import hypergraph, metis
from distgnn.partition.pattern import Pattern

#: Where a smaller share of the nodes is on boundaries, the start decides: it should be the best, and less work will do.
FEW_ON_BOUNDARIES = 0.1


@dataclass(frozen=True)
class Annealing:
    """How to refine a start.

    Attributes:
        heat: rows by which a move may worsen the objective at first, for a row of one non-zero; it grows with their square root.
        work: visits of every net by every row of it, at least; `per_part`: as many for each part, where that is more.
        send, receive: most of a part relative to the average; aimed at, not promised.
    """

    heat: float
    work: int
    per_part: int
    send: float
    receive: float


LONG, SHORT = Annealing(0.6, 400, 4, 1.09, 1.3), Annealing(0.27, 600, 8, 1.03, 1.4)


def kernels() -> ModuleType:
    """The compiled kernels.

    Raises:
        UserError: they are not built.
    """
    try:
        return hostkernels.built()
    except UserError:
        raise UserError("--partition volume: needs the compiled host kernels; install with a C compiler at hand") from None


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Small total volume, and no part far above the average send and receive volume.

    Time: that of METIS, where few nodes are on boundaries that of the hypergraph partitioner too, and at least 400 (600) visits
    per node and non-zero, each of as many steps as the net has parts. Memory: 90 bytes per node, 9 to 17 per non-zero, and 4 per
    part for every column of more than 11 non-zeros.
    """
    refine = kernels().volume_refine
    part, how = _start(pattern, parts, seed, imbalance)
    if parts > 1 and pattern.nnz:
        volumes = np.empty((2, parts), np.int64)
        refine(
            pattern.indptr, pattern.indices, part, *volumes, capacity=int(imbalance * pattern.nnz / parts),
            send_bound=how.send, receive_bound=how.receive, heat=how.heat * (pattern.nnz / pattern.n) ** 0.5,
            work=max(how.work, how.per_part * parts) * (pattern.n + pattern.nnz), seed=seed % 2**63,
        )  # fmt: skip
    return part


def _start(pattern: Pattern, parts: int, seed: int, imbalance: float) -> tuple[np.ndarray, Annealing]:
    """Parts to refine, and how."""
    part = _few_edges(pattern, parts, seed, imbalance)
    rows = np.repeat(part, pattern.row_nonzeros) != part[pattern.indices]
    if np.unique(pattern.indices[rows]).size > FEW_ON_BOUNDARIES * pattern.n:
        return part, LONG
    if _installed(hypergraph.package):
        part = hypergraph.partition(pattern, parts, seed, imbalance)
    return part, SHORT


def _few_edges(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """METIS's parts, or without METIS an even cut of the reverse Cuthill-McKee order."""
    if _installed(metis.package):
        return metis.edge_cut(pattern, parts, seed, imbalance)
    order = reverse_cuthill_mckee(pattern.neighbours, symmetric_mode=True)
    part = np.empty(pattern.n, np.int32)
    part[order] = metis.even_cut(np.maximum(pattern.row_nonzeros, 1)[order], parts)
    return part


def _installed(package: Callable[[], ModuleType]) -> bool:
    try:
        package()
    except UserError:
        return False
    return True

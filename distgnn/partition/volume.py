"""Small total volume without a part that sends or receives much more than another: refinement of a good start.

Volume-balancing models put these costs into recursive bisection (Acer, Selvitopi and Aykanat, Parallel Computing 59, 2016:
Graph-VB of ``sparsity-aware.txt`` section 5.2). Here all parts are refined together (``kernels/host/volume.c``), from the best
start that is installed.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from scipy.sparse.csgraph import reverse_cuthill_mckee

from distgnn import hostkernels
from distgnn.errors import UserError
from distgnn.partition import hypergraph, metis
from distgnn.partition.pattern import Pattern

#: Most that a part should send and receive, relative to the average; the bound is aimed at, not promised.
SEND_BOUND = RECEIVE_BOUND = 1.08

#: Rows by which a move may worsen the objective at first.
HEAT = 0.6

#: Look-ups per node and non-zero.
WORK = 60


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
    """Small total volume, and no part far above the average send and receive volume."""
    refine = kernels().volume_refine
    part = _start(pattern, parts, seed, imbalance)
    if parts > 1:
        volumes = np.empty((2, parts), np.int64)
        refine(
            pattern.indptr, pattern.indices, part, *volumes, capacity=int(imbalance * pattern.nnz / parts), heat=HEAT,
            send_bound=SEND_BOUND, receive_bound=RECEIVE_BOUND, work=WORK * (pattern.n + pattern.nnz), seed=seed % 2**63,
        )  # fmt: skip
    return part


def _start(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """From the hypergraph partitioner, else METIS, else an even cut of the reverse Cuthill-McKee order."""
    for package, start in ((hypergraph.package, hypergraph.partition), (metis.package, metis.communication_volume)):
        try:
            package()
        except UserError:
            continue
        return start(pattern, parts, seed, imbalance)
    order = reverse_cuthill_mckee(pattern.neighbours, symmetric_mode=True)
    weights = np.maximum(pattern.row_nonzeros, 1)[order]
    part = np.empty(pattern.n, np.int32)
    part[order] = metis.even_cut(weights, parts)
    return part

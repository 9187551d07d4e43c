"""Refinement of the smallest known total volume, so that the busiest sender sends little.

Volume-balancing models put these costs into recursive bisection (Acer, Selvitopi and Aykanat, Parallel
Computing 59, 2016: Graph-VB of ``sparsity-aware.txt`` section 5.2). Here rows of all parts move one by one
(``kernels/host/volume.c``), from KaMinPar's parts where it is installed. The result is the most even one
whose total is at most `OF_START` of the start's.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np
from scipy.sparse.csgraph import reverse_cuthill_mckee

from distgnn.errors import UserError
from distgnn.partition import kaminpar, metis
from distgnn.partition.packages import need
from distgnn.partition.pattern import Pattern
from distgnn.partition.quality import measure

OF_START = 1.03  # most rows sent in total, relative to the start
EVEN = (1.0, 1.05, 1.1, 1.2, 1.4)  # most rows sent by a part relative to the average, tried in turn
RECEIVED = 1.3  # most rows received by a part, relative to what a part may send
HEAT = 0.4  # rows by which a move may worsen the objective at first, times the root of a row's non-zeros
VISITS = 100  # visits of every node and non-zero


def partition(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Partition for a small largest send volume and a small total.

    Time: the start's, and for each of EVEN that is tried VISITS per node and non-zero, each of as many
    steps as the net has parts. Memory of the kernel: 45 bytes per node, 8 per non-zero, and 4 per part for
    every column of more than 11 non-zeros.
    """
    kernels = need("volume")
    start = _start(pattern, parts, seed, imbalance)
    before = measure(pattern, start, parts)
    for even in EVEN:
        part, sends, receives = start.copy(), *np.empty((2, parts), np.int64)
        kernels.volume_refine(
            pattern.indptr, pattern.indices, part, sends, receives,
            capacity=max(1, int(imbalance * pattern.nnz / parts)),
            send_bound=even, receive_bound=RECEIVED * even, heat=HEAT * (pattern.nnz / pattern.n) ** 0.5,
            work=VISITS * (pattern.n + pattern.nnz), seed=seed % 2**63,
        )  # fmt: skip
        if sends.sum() <= OF_START * before.volume and sends.max() <= before.sends.max():
            return part
    return start


def _start(pattern: Pattern, parts: int, seed: int, imbalance: float) -> np.ndarray:
    """Return KaMinPar's parts, on one thread, or METIS's or, without both, a cut of reverse Cuthill-McKee."""
    for method in (partial(kaminpar.partition, threads=1), metis.partition):
        with suppress(UserError):
            return method(pattern, parts, seed, imbalance)
    return pattern.even_cut(parts, reverse_cuthill_mckee(pattern.neighbours, symmetric_mode=True))

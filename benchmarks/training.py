"""Training epochs on any matrix, for benchmarks: random features and labels, every node a training node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import rng
from distgnn.comm.grid import Grid
from distgnn.nn.gcn import GCN
from distgnn.nn.optim import Adam
from distgnn.operators import distribute
from distgnn.operators.dense import DistDense
from distgnn.train.full_graph import train


def epochs(
    grid: Grid,
    A: sp.csr_array,
    algorithm: str,
    widths: Sequence[int],
    sparsity_aware: bool | str = False,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Train without end; give the records of `train`. Collective.

    Args:
        A: the normalised adjacency matrix, equal on all ranks.
        widths: of features, hidden layers and classes; options: of `GCN`.
    """
    model = GCN(distribute(A, grid, algorithm, sparsity_aware), widths, **options)
    X = DistDense.empty(model.input_layout, (A.shape[0], widths[0]), A.dtype)
    rows, cols = (grid.backend.xp.arange(*bounds) for bounds in (X.row_range, X.col_range))
    for start in range(0, len(rows), 4096):
        X.block[start : start + 4096] = rng.uniform(0, rows[start : start + 4096], cols) - 0.5
    labels = np.random.default_rng(1).integers(0, widths[-1], A.shape[0])
    targets = model.targets(labels, np.ones(A.shape[0], np.uint8))
    return train(model, X, targets, Adam(0.01), 1 << 62, eval_every=0, timing=True)

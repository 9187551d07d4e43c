"""Setups that benchmark programs share: normalised R-MAT graphs, and training epochs on any matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import gallery, rng
from distgnn.comm.grid import Grid
from distgnn.nn.gcn import GCN
from distgnn.nn.optim import Adam
from distgnn.nn.reference import normalize
from distgnn.operators import distribute
from distgnn.operators.dense import DistDense
from distgnn.train.full_graph import train


def rmat(nodes: int, degree: float) -> sp.csr_array:
    """Make the normalised adjacency matrix of an R-MAT graph with ``degree`` neighbours, repeats counted."""
    return normalize(gallery.rmat(nodes, degree=degree, features=0, classes=0).A)


def epochs(
    grid: Grid,
    A: sp.csr_array,
    algorithm: str,
    widths: Sequence[int],
    sparsity_aware: bool | str = False,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Train without end on random features and labels; give the records of `train`. Collective.

    Every node is a training node.

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

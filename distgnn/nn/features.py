"""Features made ready for training."""

from __future__ import annotations

import numpy as np

from distgnn.arrays import backend, blocking
from distgnn.operators.dense import DistDense


def normalize_rows(X: DistDense) -> None:
    """Divide every row by the sum of its absolute values, in place; rows of zeros stay. Collective.

    Sums are taken in float64, so that they do not depend on how columns are cut. Cost: an all-reduce of one
    word per local row over the axes that cut columns.
    """
    xp = backend.module(X.block)
    sums = xp.zeros(len(X.block), dtype=np.float64)
    rows = blocking.passes(X.block)
    for part in rows:
        sums[part] = xp.abs(X.block[part]).sum(axis=1, dtype=np.float64)
    X.grid.along(*X.layout.col_axes).allreduce(sums, matrix="features")
    sums[sums == 0] = 1
    factors = (1 / sums).astype(X.dtype)[:, None]
    for part in rows:
        X.block[part] *= factors[part]


def are_counts(X: DistDense) -> bool:
    """Return whether features are counts, as of words: whole numbers from 0 on, most of them 0. Collective.

    Cost: an all-reduce of two words over the axes that cut rows or columns.
    """
    xp = backend.module(X.block)
    zeros, others = 0, 0
    for rows in blocking.passes(X.block):
        part = X.block[rows]
        zeros += int((part == 0).sum())
        others += int(((part < 0) | (part != xp.floor(part))).sum())
    totals = xp.array([zeros, others], np.float64)
    X.grid.along(*X.layout.row_axes, *X.layout.col_axes).allreduce(totals, matrix="features")
    all_zeros, all_others = X.grid.backend.to_host(totals).tolist()
    return all_others == 0 and 2 * all_zeros > X.shape[0] * X.shape[1]

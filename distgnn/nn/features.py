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

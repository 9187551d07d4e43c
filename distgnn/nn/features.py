"""Features made ready for training."""

from __future__ import annotations

import numpy as np

from distgnn import rng
from distgnn.arrays import backend
from distgnn.operators.dense import DistDense


def normalize_rows(X: DistDense) -> None:
    """Divide every row by the sum of its absolute values, in place; rows of zeros stay. Collective.

    Kipf and Welling's row normalisation where features are not negative. Sums are taken in float64, so that
    they do not depend on how columns are cut. Cost: an all-reduce of one word per local row over the axes
    that cut columns.
    """
    xp = backend.module(X.block)
    sums = xp.zeros(len(X.block), dtype=np.float64)
    step = rng.block_rows(X.block.shape[1], xp)
    pieces = [slice(start, start + step) for start in range(0, len(sums), step)]
    for part in pieces:
        sums[part] = xp.abs(X.block[part]).sum(axis=1, dtype=np.float64)
    X.grid.along(*X.layout.col_axes).allreduce(sums, matrix="features")
    sums[sums == 0] = 1
    factors = (1 / sums).astype(X.dtype)[:, None]
    for part in pieces:
        X.block[part] *= factors[part]

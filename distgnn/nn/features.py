"""Features made ready for training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import blocking
from distgnn.local import edges
from distgnn.operators.dense import DistDense
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features


class OwnedFeatures(DistDense):
    """Features of which a network is the only reader: their numbers go once A X is kept in their place.

    Attributes:
        gone: whether the numbers are gone; ``block`` is then NaN, and takes no memory.
    """

    __slots__ = ("gone",)

    def __init__(self, X: DistDense) -> None:
        super().__init__(X.block, X.layout, X.shape)
        self.gone = False

    def let_go(self) -> None:
        """Let the numbers go."""
        self.block = np.broadcast_to(np.array(np.nan, self.dtype), self.block.shape)
        self.gone = True


def gone(X: object) -> bool:
    """Tell whether features are those of which A X alone is left."""
    return isinstance(X, OwnedFeatures) and X.gone


def normalize_rows(X: Features) -> None:
    """Divide every row by the sum of its absolute values, in place; rows of zeros stay. Collective.

    Sums are taken in float64, so that they do not depend on how columns are cut. Cost: an all-reduce of one
    word per local row over the axes that cut columns.
    """
    xp = X.grid.backend.xp
    if isinstance(X, SparseFeatures):
        sizes = xp.abs(X.block.data).astype(np.float64)[:, None]
        sums = edges.row_sums(X.block, sizes, xp.zeros((X.block.shape[0], 1), np.float64))[:, 0]
    else:
        sums = xp.zeros(len(X.block), dtype=np.float64)
        for part in blocking.passes(X.block):
            sums[part] = xp.abs(X.block[part]).sum(axis=1, dtype=np.float64)
    X.grid.along(*X.layout.col_axes).allreduce(sums, matrix="features")
    sums[sums == 0] = 1
    factors = (1 / sums).astype(X.dtype)[:, None]
    if isinstance(X, SparseFeatures):
        X.scale_rows(factors[:, 0])
        return
    for part in blocking.passes(X.block):
        X.block[part] *= factors[part]


def are_counts(X: Features) -> bool:
    """Return whether features are counts, as of words: whole numbers from 0 on, most of them 0. Collective.

    Cost: an all-reduce of two words over the axes that cut rows or columns.
    """
    xp, others = X.grid.backend.xp, 0
    numbers: Any = X.block.data if isinstance(X, SparseFeatures) else X.block
    zeros = X.block.shape[0] * X.block.shape[1] - numbers.size
    for rows in blocking.passes(numbers):
        part = numbers[rows]
        zeros += int((part == 0).sum())
        others += int(((part < 0) | (part != xp.floor(part))).sum())
    totals = xp.array([zeros, others], np.float64)
    X.grid.along(*X.layout.row_axes, *X.layout.col_axes).allreduce(totals, matrix="features")
    all_zeros, all_others = X.grid.backend.to_host(totals).tolist()
    return all_others == 0 and 2 * all_zeros > X.shape[0] * X.shape[1]


class Scaling(NamedTuple):
    """The mean and the spread, which is never 0, of every column, float64 (width), on the host."""

    mean: np.ndarray
    spread: np.ndarray


#: Variances of this share of the mean square are rounding: features have 24 bits.
_ROUNDING = 1e-12


def scaling_of(X: Features, rows: Any) -> tuple[Scaling, float]:
    """Return the scaling by some rows, and the largest scale of a column over the smallest. Collective.

    The spread is the standard deviation (divided by the number of rows), or 1 where a column is constant.
    The scale is the root mean square of what is not 0, so that rare words do not count as small ones. Both
    have the same bits on every rank. Cost: an all-reduce of three words per column and one.

    Args:
        rows: bool, of this rank's rows.
    """
    xp, (lo, hi) = X.grid.backend.xp, X.col_range
    totals = xp.zeros(3 * X.shape[1] + 1, np.float64)
    if X.layout.primary:
        sums = totals[1:].reshape(3, -1)[:, lo:hi]
        for some, columns in _of_rows(X, rows):
            powers = some, some * some, some != 0
            if columns is None:
                sums += xp.stack([power.sum(axis=0) for power in powers])
            elif columns.size:
                sums += xp.stack([xp.bincount(columns, power, hi - lo) for power in powers])
        totals[0] = rows.sum() if lo == 0 < hi else 0
    X.grid.world.allreduce(totals, matrix="features")
    host = X.grid.backend.to_host(totals)
    count, (sums, squares, others) = max(host[0], 1), host[1:].reshape(3, -1)
    mean, square = sums / count, squares / count
    variance = square - mean * mean
    spread = np.sqrt(np.where(variance > _ROUNDING * square, variance, 1))
    scales = np.sqrt(squares[others > 0] / others[others > 0])
    return Scaling(mean, spread), float(scales.max() / scales.min()) if len(scales) else 1.0


def _of_rows(X: Features, rows: Any) -> Iterator[tuple[Any, Any]]:
    """Yield numbers in double precision, 0 in other rows, and their columns; None: they fill some rows."""
    xp = X.grid.backend.xp
    if isinstance(X, SparseFeatures):
        yield xp.where(rows[X.row_numbers], X.block.data, 0).astype(np.float64), X.block.indices
        return
    for part in blocking.passes(X.block):
        yield xp.where(rows[part, None], X.block[part], 0).astype(np.float64), None


def standardize(X: DistDense, scaling: Scaling) -> None:
    """Take the mean off every column and divide it by its spread, in double precision, in place."""
    mean, spread = (X.grid.backend.asarray(numbers[slice(*X.col_range)]) for numbers in scaling)
    for part in blocking.passes(X.block):
        X.block[part] = (X.block[part].astype(np.float64) - mean) / spread

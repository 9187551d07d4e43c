"""Sums, norms, maxima and minima of a dense matrix: of its columns, of its rows, or of all of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distgnn.arrays.csr import Shape
from distgnn.comm.checks import compare
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout
from distgnn.operators.algebra import alike


class Reductions:
    """Reductions of a matrix: of each column with ``axis=0``, of each row with 1, of all entries with None.

    A reduction of columns is a NumPy array (f,), with the same bits on every rank. One of rows is a matrix n
    x 1, cut as the rows are, of which ranks that share the columns have copies: an operand beside this one.
    Sums and norms of rows have the dtype of the matrix if that is a float. Collective.

    Cost: an all-reduce of f words over all ranks, charged as ``reductions``, to which one copy of each block
    gives its numbers; of rows, one of this rank's rows over the ranks that share the columns. Two of them for
    maxima and minima of floats.

    Raises:
        ArgumentError: another axis. ValueError: the maximum or minimum of no entries. On every rank.
    """

    __slots__ = ()
    block: Any
    layout: Layout[Any]
    shape: Shape

    def sum(self, axis: int | None = None) -> Any:
        """Sum columns, rows, or all entries, in double precision."""
        _check(axis)
        if axis == 1:
            return _column(self, _over_rows(self, self.block.sum(axis=1, dtype=np.float64), "sum"))
        sums = _over_ranks(self, self.block.sum(axis=0, dtype=np.float64), 0.0, "sum")
        return sums if axis == 0 else float(sums.sum())

    def norm(self, axis: int | None = None) -> Any:
        """Return the Euclidean norms of columns or rows, or the Frobenius norm, in double precision."""
        _check(axis)
        squares = (self.block.astype(np.float64) ** 2).sum(axis=int(axis == 1))
        if axis == 1:
            return _column(self, _over_rows(self, squares, "sum") ** 0.5)
        sums = _over_ranks(self, squares, 0.0, "sum")
        return np.sqrt(sums) if axis == 0 else math.sqrt(sums.sum())

    def mean(self, axis: int | None = None) -> Any:
        """Return the means of columns or rows, or of all entries; NaN of none."""
        counts = {None: self.shape[0] * self.shape[1], 0: self.shape[0], 1: self.shape[1]}
        return np.divide(self.sum(axis), counts[axis])

    def dot(self, G: Any, axis: int | None = None) -> Any:
        """Return the inner products with the columns or rows of G, cut alike, or their sum: of vectors, one.

        In double precision. ``H.T @ G`` has those of all pairs of columns.
        """
        _check(axis)
        products = (self.block.astype(np.float64) * alike(self, G)).sum(axis=int(axis == 1))
        if axis == 1:
            return _column(self, _over_rows(self, products, "sum"))
        sums = _over_ranks(self, products, 0.0, "sum")
        return sums if axis == 0 else float(sums.sum())

    def max(self, axis: int | None = None) -> Any:
        """Return the largest entries of columns or rows, or the largest of all; NaN where one is NaN."""
        return _extremes(self, "max", axis)

    def min(self, axis: int | None = None) -> Any:
        """Return the smallest entries of columns or rows, or the smallest of all; NaN where one is NaN."""
        return _extremes(self, "min", axis)


def _check(axis: int | None) -> None:
    if axis not in (None, 0, 1):
        problem = "expected 0, for each column, 1, for each row, or None, for all entries"
        raise ArgumentError("axis", axis, problem)


def _over_ranks(H: Any, own: Any, neutral: Any, operation: str) -> np.ndarray:
    """Reduce this rank's numbers of its columns over the ranks; return those of all columns, on the host."""
    compare(f"{operation} of columns", H=H)
    on = H.grid.backend
    columns = on.xp.full((H.shape[1],), neutral, own.dtype)
    if H.layout.primary:
        columns[slice(*H.col_range)] = own
    return on.to_host(H.grid.world.allreduce(columns, operation, matrix="reductions"))


def _over_rows(H: Any, own: Any, operation: str) -> Any:
    """Reduce a number for each of this rank's rows over the ranks that share the columns."""
    compare(f"{operation} of rows", H=H)
    return H.grid.along(*H.layout.col_axes).allreduce(own, operation, matrix="reductions")


def _column(H: Any, numbers: Any) -> Any:
    """Make a matrix of a number for each row."""
    kind = H.dtype if H.dtype.kind == "f" else numbers.dtype
    where = Layout(H.grid, H.layout.rows, Cut())
    return type(H)(numbers.reshape(-1, 1).astype(kind, copy=False), where, (H.shape[0], 1))


def _extremes(H: Any, operation: str, axis: int | None) -> Any:
    _check(axis)
    if 0 in H.shape:
        raise ValueError(f"{H!r} has no entries, so it has no {operation}imum")
    xp, block = H.grid.backend.xp, H.block.astype(np.int8) if H.dtype.kind == "b" else H.block
    floats = block.dtype.kind == "f"
    limits: Any = np.finfo(block.dtype) if floats else np.iinfo(block.dtype)
    neutral = limits.min if operation == "max" else limits.max
    if floats:
        neutral = math.copysign(math.inf, neutral)
    by_row = axis == 1
    own = xp.full((block.shape[0 if by_row else 1],), neutral, block.dtype)
    if block.shape[int(by_row)]:
        own = getattr(block, operation)(axis=int(by_row))

    def over_ranks(own: Any, neutral: Any, operation: str) -> Any:
        return _over_rows(H, own, operation) if by_row else _over_ranks(H, own, neutral, operation)

    if floats:  # counted apart: whether a maximum of MPI's is NaN depends on the order of the ranks
        missing = over_ranks(xp.isnan(own).astype(np.float64), 0.0, "sum")
    best = over_ranks(own, neutral, operation)
    if floats:
        best[missing > 0] = math.nan
    if by_row:
        return _column(H, best)
    return best if axis == 0 else getattr(best, operation)()

"""Sums, norms, maxima and minima of the columns of a dense matrix, or of all of it, equal on every rank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distgnn.arrays.csr import Shape
from distgnn.errors import ArgumentError
from distgnn.layout import Layout
from distgnn.operators.compared import compare


class Reductions:
    """Reductions of a matrix: of each column with ``axis=0``, of all entries with ``None``.

    A reduction of columns is a NumPy array (f,), with the same bits on every rank. Collective.

    Cost: an all-reduce of f words over all ranks, charged as ``reductions``, to which one copy of each block
    gives its numbers; two of them for maxima and minima of floats.

    Raises:
        ArgumentError: another axis. ValueError: the maximum or minimum of no entries. On every rank.
    """

    __slots__ = ()
    block: Any
    layout: Layout[Any]
    shape: Shape

    def sum(self, axis: int | None = None) -> Any:
        """Sum columns, or all entries, in double precision."""
        _check(axis)
        sums = _over_ranks(self, self.block.sum(axis=0, dtype=np.float64), 0.0, "sum")
        return sums if axis == 0 else float(sums.sum())

    def norm(self, axis: int | None = None) -> Any:
        """Return the Euclidean norms of columns, or the Frobenius norm, in double precision."""
        _check(axis)
        squares = (self.block.astype(np.float64) ** 2).sum(axis=0)
        sums = _over_ranks(self, squares, 0.0, "sum")
        return np.sqrt(sums) if axis == 0 else math.sqrt(sums.sum())

    def max(self, axis: int | None = None) -> Any:
        """Return the largest entries of columns, or the largest of all; NaN where one is NaN."""
        return _extremes(self, "max", axis)

    def min(self, axis: int | None = None) -> Any:
        """Return the smallest entries of columns, or the smallest of all; NaN where one is NaN."""
        return _extremes(self, "min", axis)


def _check(axis: int | None) -> None:
    if axis not in (None, 0):
        problem = "expected 0, for each column, or None, for all entries; H @ np.ones((f, 1)) sums rows"
        raise ArgumentError("axis", axis, problem)


def _over_ranks(H: Any, own: Any, neutral: Any, operation: str) -> np.ndarray:
    """Reduce this rank's numbers of its columns over the ranks; return those of all columns, on the host."""
    compare(f"{operation} of columns", H=H)
    on = H.grid.backend
    columns = on.xp.full((H.shape[1],), neutral, own.dtype)
    if H.layout.primary:
        columns[slice(*H.col_range)] = own
    return on.to_host(H.grid.world.allreduce(columns, operation, matrix="reductions"))


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
    own = xp.full((block.shape[1],), neutral, block.dtype)
    if len(block):
        own = getattr(block, operation)(axis=0)
    if floats:  # counted apart: whether a maximum of MPI's is NaN depends on the order of the ranks
        missing = _over_ranks(H, xp.isnan(own).astype(np.float64), 0.0, "sum")
    columns = _over_ranks(H, own, neutral, operation)
    if floats:
        columns[missing > 0] = math.nan
    return columns if axis == 0 else getattr(columns, operation)()

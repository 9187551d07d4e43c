"""Entries of a sparse matrix that join different ranks, and the rows and columns that have any.

Where ranks share the rows and columns of A, an entry whose row and column are the same rank's needs no
messages. Of the others, rows and columns without entries need none either.

    A          rank 0   rank 1         near of rank 0     far: rows 0, 3 and columns 1, 2
             x x    . .         x x                . x
             . x    . .         . x                x .
             . .    x .
             . x    x x
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import index_type
from distgnn.arrays.kernels import Kernels, KernelTable


class Crossing(NamedTuple):
    """A matrix by what crosses between ranks.

    Attributes:
        near: the entries of which this rank has row and column, numbered within its block.
        far: the entries that join different ranks, without rows and columns that have none.
        rows, columns: of ``far``, by rank, each numbered within its rank's block, rising.
    """

    near: Any
    far: Any
    rows: list[np.ndarray]
    columns: list[np.ndarray]


def crossing(A: Any, rows: np.ndarray, columns: np.ndarray, rank: int) -> Crossing:
    """Divide a matrix of which ranks share rows and columns, by these partition vectors.

    A is SciPy's canonical CSR; ``rank``: of whose block ``near`` is.
    """
    return KERNELS.kernel("crossing", A.data)(A, rows, columns, rank)


def _crossing(A: sp.csr_array, rows: np.ndarray, columns: np.ndarray, rank: int) -> Crossing:
    of_row = np.repeat(np.arange(len(rows) - 1, dtype=np.int32), np.diff(rows))
    of_column = np.repeat(np.arange(len(columns) - 1, dtype=np.int32), np.diff(columns))
    counts = np.diff(A.indptr)
    away = np.repeat(of_row, counts) != of_column[A.indices]
    far_counts = np.diff(np.concatenate([[0], np.cumsum(away)])[A.indptr])
    has_row, has_column = far_counts > 0, np.zeros(A.shape[1], bool)
    has_column[A.indices[away]] = True
    shape = int(has_row.sum()), int(has_column.sum())
    kind = index_type(A.nnz, shape[1])
    pointers = np.concatenate([[0], np.cumsum(far_counts[has_row])]).astype(kind)
    indices = (np.cumsum(has_column) - 1).astype(kind)[A.indices[away]]
    far = sp.csr_array((A.data[away], indices, pointers), shape=shape)
    (top, bottom), (left, right) = rows[rank : rank + 2], columns[rank : rank + 2]
    near = sp.csr_array(A[int(top) : int(bottom), int(left) : int(right)])
    return Crossing(near, far, _by_rank(has_row, rows), _by_rank(has_column, columns))


def _by_rank(has: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(has[first:last]) for first, last in pairwise(ends.tolist())]


KERNELS = KernelTable(numpy=[Kernels({"crossing": _crossing})])

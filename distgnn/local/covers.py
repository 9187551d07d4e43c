"""Minimum vertex covers: the fewest rows that a pair of ranks must exchange in a sparse product.

A non-zero (r, c) of A_ij needs either row c of H_j at rank i, or row r of Z_i from rank j. Rows of H and rows
of Z that serve all non-zeros are a vertex cover of the pattern of A_ij, as a bipartite graph of its rows and
columns. The smallest one has as many vertices as a maximum matching has edges (König's theorem). SHIRO (arXiv
2512.20178, section 4) and SuperGCN (arXiv 2411.16025) send such covers.

    A_ij      c0 c1 c2 c3          cover: row r1, column c2: 2 rows travel instead of 4 rows of H
      r0       .  .  x  .          row c2 of H is fetched for r0, r1, r2
      r1       x  x  x  x          row r1 of Z is made where H is, from c0, c1, c3
      r2       .  .  x  .
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from distgnn.arrays.kernels import Kernels, KernelTable


def cover(A: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Find a minimum vertex cover of the pattern of A; of several, one with as many columns as can be.

    Returns:
        bool masks (rows,) and (columns,): every stored entry is in a marked row or a marked column, and as
        many are marked as a maximum matching has pairs.

    Source: König's theorem; the matching is SciPy's (Hopcroft and Karp).
    """
    ones = sp.csr_array((np.ones(A.nnz, np.int8), A.indices, A.indptr), shape=A.shape)
    column_of = maximum_bipartite_matching(ones, perm_type="column")  # of each row, -1: none
    row_of = np.full(A.shape[1], -1, np.int64)
    matched = np.flatnonzero(column_of >= 0)
    row_of[column_of[matched]] = matched
    # Alternating paths from unmatched columns: rows that they reach are in the cover, columns are not.
    transposed = ones.T.tocsr()
    reached_rows, reached_columns = np.zeros(A.shape[0], bool), row_of < 0
    frontier = np.flatnonzero(reached_columns)
    while frontier.size:
        rows = np.unique(transposed[frontier].indices)
        rows = rows[~reached_rows[rows]]
        reached_rows[rows] = True
        frontier = column_of[rows]  # all are matched, or the matching would grow
        frontier = frontier[~reached_columns[frontier]]
        reached_columns[frontier] = True
    return reached_rows, (row_of >= 0) & ~reached_columns


def split(A: Any) -> tuple[Any, Any]:
    """Divide the entries of A by a minimum vertex cover. Both results have A's shape.

    The first has the entries of covered columns, the second those of covered rows alone.
    """
    return KERNELS.kernel("split", A.data)(A)


def _split(A: Any) -> tuple[sp.csr_array, sp.csr_array]:
    A = A.tocsr()
    _, columns = cover(A)
    fetched = columns[A.indices]
    owner = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    return _entries(A, owner, fetched), _entries(A, owner, ~fetched)


def _entries(A: sp.csr_array, owner: np.ndarray, kept: np.ndarray) -> sp.csr_array:
    counts = np.bincount(owner[kept], minlength=A.shape[0])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(A.indptr.dtype)
    return sp.csr_array((A.data[kept], A.indices[kept], indptr), shape=A.shape)


KERNELS = KernelTable(numpy=[Kernels({"split": _split})])

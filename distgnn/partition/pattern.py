"""Where a square sparse matrix has entries: what partitioners look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.errors import UserError


@dataclass(frozen=True, eq=False)
class Pattern:
    """CSR positions of an (n, n) matrix: `indptr` int64 (n + 1,), `indices` int32 (nnz,), sorted and unique
    in every row.
    """

    indptr: np.ndarray
    indices: np.ndarray

    @classmethod
    def of(cls, A: Any) -> Pattern:
        """The pattern of anything SciPy turns into CSR; stored zeros count as entries, repeated ones as one.

        Raises:
            ValueError: not square. UserError: 2**31 nodes or more.
        """
        A = sp.csr_array(A)
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"partitions are of square matrices; got shape {A.shape}")
        if A.shape[0] >= 2**31:
            raise UserError(f"a graph to partition has {A.shape[0]} nodes; expected fewer than 2**31")
        if not A.has_canonical_format:
            A = A.copy()
            A.sum_duplicates()
        return cls(A.indptr.astype(np.int64), A.indices.astype(np.int32))

    @classmethod
    def of_entries(cls, n: int, pieces: Iterable[tuple[np.ndarray, np.ndarray]]) -> Pattern:
        """From pieces of (rows, columns) in any order, without repeats. Memory: 24 bytes per entry."""
        kept = [(rows.astype(np.int32), cols.astype(np.int32)) for rows, cols in pieces]
        rows, cols = (np.concatenate([np.empty(0, np.int32), *(piece[k] for piece in kept)]) for k in (0, 1))
        return cls.of(sp.coo_array((np.ones(len(rows), np.int8), (rows, cols)), shape=(n, n)))

    @property
    def n(self) -> int:
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @cached_property
    def row_nonzeros(self) -> np.ndarray:
        """int64 (n,): entries of every row, which is what its part multiplies."""
        return np.diff(self.indptr)

    def matrix(self, kind: Any = np.int32) -> sp.csr_array:
        """CSR of ones."""
        return _csr(np.ones(self.nnz, kind), self.indices, self.indptr, self.n)

    @cached_property
    def nets(self) -> sp.csr_array:
        """int32 CSR (n, n) of ones: row j has the rows of A with an entry in column j, and j itself, which
        owns row j of H.
        """
        nets = sp.csr_array(self.matrix().T.tocsr() + sp.eye_array(self.n, dtype=np.int32, format="csr"))
        nets.data[:] = 1
        return nets

    @cached_property
    def neighbours(self) -> sp.csr_array:
        """int32 CSR (n, n) of ones: the undirected graph without loops."""
        A = self.matrix()
        both = sp.coo_array(A + A.T)
        off = both.row != both.col
        graph = sp.csr_array(
            (np.ones(np.count_nonzero(off), np.int32), (both.row[off], both.col[off])), shape=both.shape
        )
        graph.sort_indices()
        return graph

    @cached_property
    def symmetric(self) -> bool:
        A = self.matrix(np.int8)
        return (A != A.T).nnz == 0


def _csr(values: np.ndarray, indices: np.ndarray, indptr: np.ndarray, n: int) -> sp.csr_array:
    matrix = sp.csr_array((values, indices, indptr), shape=(n, n))
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix

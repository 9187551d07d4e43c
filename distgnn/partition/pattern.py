"""The positions of the entries of a square sparse matrix, the input of partitioners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.canonical import canonical
from distgnn.errors import UserError


@dataclass(frozen=True, eq=False)
class Pattern:
    """A CSR structure of an (n, n) matrix without values: `indptr` int64, `indices` int32, sorted, unique."""

    indptr: np.ndarray
    indices: np.ndarray

    @classmethod
    def of(cls, A: Any) -> Pattern:
        """Take the pattern of anything SciPy turns into CSR; stored zeros count, repeated entries count once.

        Raises:
            ValueError: not square.
            UserError: 2**31 nodes or more, and what :func:`canonical` refuses.
        """
        A = canonical(A)
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"partitions are of square matrices; got shape {A.shape}")
        if A.shape[0] >= 2**31:
            raise UserError(f"partitions are of fewer than 2**31 nodes; got {A.shape[0]}")
        return cls(A.indptr.astype(np.int64), A.indices.astype(np.int32))

    @classmethod
    def of_entries(cls, n: int, chunks: Iterable[tuple[np.ndarray, np.ndarray]]) -> Pattern:
        """Build a pattern of chunks of (rows, columns) in any order, without repeats. 24 bytes per entry."""
        kept = [(rows.astype(np.int32), cols.astype(np.int32)) for rows, cols in chunks]
        rows, cols = (np.concatenate([np.empty(0, np.int32), *(chunk[k] for chunk in kept)]) for k in (0, 1))
        return cls.of(sp.coo_array((np.ones(len(rows), np.int8), (rows, cols)), shape=(n, n)))

    @property
    def n(self) -> int:
        """The number of nodes."""
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return len(self.indices)

    @cached_property
    def row_nonzeros(self) -> np.ndarray:
        """Entries of every row, int64 (n,): its part multiplies them."""
        return np.diff(self.indptr)

    @cached_property
    def weights(self) -> np.ndarray:
        """Entries of every row, but at least 1, int64 (n,), for partitioners that balance them."""
        return np.maximum(self.row_nonzeros, 1)

    @cached_property
    def matrix(self) -> sp.csr_array:
        """The matrix with ones as values, int32 CSR (n, n)."""
        ones = np.ones(self.nnz, np.int32)
        matrix = sp.csr_array((ones, self.indices, self.indptr), shape=(self.n, self.n))
        matrix.has_sorted_indices = matrix.has_canonical_format = True
        return matrix

    @cached_property
    def nets(self) -> sp.csr_array:
        """The nets, int32 CSR (n, n): row j has the rows of A with an entry in column j, and j, its owner."""
        return sp.csr_array(self.matrix.T.tocsr() + sp.eye_array(self.n, dtype=np.int32, format="csr"))

    @cached_property
    def neighbours(self) -> sp.csr_array:
        """The undirected graph without loops, sorted, int32 CSR (n, n)."""
        both = sp.coo_array(self.matrix + self.matrix.T)
        off = both.row != both.col
        graph = sp.csr_array((both.data[off], (both.row[off], both.col[off])), shape=both.shape)
        graph.sort_indices()
        return graph

    @cached_property
    def symmetric(self) -> bool:
        """True if every entry has its mirror image."""
        return (self.matrix != self.matrix.T).nnz == 0

    def even_cut(self, parts: int, order: np.ndarray | None = None) -> np.ndarray:
        """Cut the nodes, in their order or this one, into parts of equal weight but for one row's.

        Returns int32 (n,).
        """
        weights = self.weights if order is None else self.weights[order]
        middle = np.cumsum(weights) - weights / 2
        cut = np.minimum(middle * (parts / weights.sum()), parts - 1).astype(np.int32)
        part = np.empty(self.n, np.int32)
        part[slice(None) if order is None else order] = cut
        return part

"""Where a square sparse matrix has entries: what partitioners look at."""

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
    """CSR of an (n, n) matrix without values: `indptr` int64, `indices` int32, sorted and unique by row."""

    indptr: np.ndarray
    indices: np.ndarray

    @classmethod
    def of(cls, A: Any) -> Pattern:
        """The pattern of anything SciPy turns into CSR; stored zeros count as entries, repeated ones as one.

        Raises:
            ValueError: not square. UserError: 2**31 nodes or more, and what :func:`canonical` refuses.
        """
        A = canonical(A)
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"partitions are of square matrices; got shape {A.shape}")
        if A.shape[0] >= 2**31:
            raise UserError(f"partitions are of fewer than 2**31 nodes; got {A.shape[0]}")
        return cls(A.indptr.astype(np.int64), A.indices.astype(np.int32))

    @classmethod
    def of_entries(cls, n: int, chunks: Iterable[tuple[np.ndarray, np.ndarray]]) -> Pattern:
        """From chunks of (rows, columns) in any order, without repeats. Memory: 24 bytes per entry."""
        kept = [(rows.astype(np.int32), cols.astype(np.int32)) for rows, cols in chunks]
        rows, cols = (np.concatenate([np.empty(0, np.int32), *(chunk[k] for chunk in kept)]) for k in (0, 1))
        return cls.of(sp.coo_array((np.ones(len(rows), np.int8), (rows, cols)), shape=(n, n)))

    @property
    def n(self) -> int:
        """Nodes."""
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return len(self.indices)

    @cached_property
    def row_nonzeros(self) -> np.ndarray:
        """int64 (n,): entries of every row, which is what its part multiplies."""
        return np.diff(self.indptr)

    @cached_property
    def weights(self) -> np.ndarray:
        """int64 (n,): the same, but at least 1, for partitioners that balance them."""
        return np.maximum(self.row_nonzeros, 1)

    @cached_property
    def matrix(self) -> sp.csr_array:
        """int32 CSR (n, n) of ones."""
        ones = np.ones(self.nnz, np.int32)
        matrix = sp.csr_array((ones, self.indices, self.indptr), shape=(self.n, self.n))
        matrix.has_sorted_indices = matrix.has_canonical_format = True
        return matrix

    @cached_property
    def nets(self) -> sp.csr_array:
        """int32 CSR (n, n): row j has the rows of A with an entry in column j, and j, its owner."""
        return sp.csr_array(self.matrix.T.tocsr() + sp.eye_array(self.n, dtype=np.int32, format="csr"))

    @cached_property
    def neighbours(self) -> sp.csr_array:
        """int32 CSR (n, n): the undirected graph without loops, sorted."""
        both = sp.coo_array(self.matrix + self.matrix.T)
        off = both.row != both.col
        graph = sp.csr_array((both.data[off], (both.row[off], both.col[off])), shape=both.shape)
        graph.sort_indices()
        return graph

    @cached_property
    def symmetric(self) -> bool:
        """Whether every entry has its mirror image."""
        return (self.matrix != self.matrix.T).nnz == 0

    def even_cut(self, parts: int, order: np.ndarray | None = None) -> np.ndarray:
        """int32 (n,): nodes as they come, or in this order, in parts of equal weight but for one row's."""
        weights = self.weights if order is None else self.weights[order]
        middle = np.cumsum(weights) - weights / 2
        cut = np.minimum(middle * (parts / weights.sum()), parts - 1).astype(np.int32)
        part = np.empty(self.n, np.int32)
        part[slice(None) if order is None else order] = cut
        return part

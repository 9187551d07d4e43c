"""What a sampler needs of a graph: products ``Q A``, whether A is replicated (section 5.1) or partitioned (section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

#: Non-zeros of Q A that are made at a time: 2 to 4 MiB, which the step after reads from a cache.
PIECE = 1 << 18


class Graph(Protocol):
    """An (n, n) sparse matrix A that can be multiplied from the left. Stored zeros are no edges.

    Methods of a partitioned graph are collective: samplers call them in the same order on every rank.
    """

    n: int

    def multiply(self, Q: sp.csr_array) -> sp.csr_array:
        """``Q A`` for a sparse Q (m, n): CSR, columns ascending within a row, no column twice."""
        ...

    def pieces(self, Q: sp.csr_array) -> Iterator[sp.csr_array]:
        """``Q A`` as consecutive row blocks, as many rows at a time as memory suggests, at least one block."""
        ...

    def map(self, function: Callable[[Any], Any]) -> Graph:
        """The graph with the same non-zeros and ``function(values)`` as their values."""
        ...


class Replicated:
    """All of A on this rank; products communicate nothing (section 5.1).

    Args:
        A: (n, n) SciPy sparse matrix; copied where it is not CSR with sorted, distinct, non-zero entries.
    """

    def __init__(self, A: Any) -> None:
        self.A = _canonical(A)
        self.n = self.A.shape[0]
        self.indptr = self.A.indptr.astype(np.int64)

    def multiply(self, Q: sp.csr_array) -> sp.csr_array:
        """``Q A``; where Q picks one row each, the rows are copied."""
        if _selects(Q):
            return self.A[Q.indices]
        product = Q @ self.A
        product.sort_indices()
        return product

    def pieces(self, Q: sp.csr_array) -> Iterator[sp.csr_array]:
        degrees = np.diff(self.A.indptr)[Q.indices]  # an entry of Q brings so many to its row
        ends = np.concatenate(([0], np.cumsum(degrees, dtype=np.int64)))[Q.indptr]
        bounds = np.unique(np.searchsorted(ends, np.arange(PIECE, ends[-1], PIECE), side="right") - 1)
        bounds = np.concatenate(([0], bounds[(bounds > 0) & (bounds < Q.shape[0])], [Q.shape[0]]))
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield self.multiply(Q if last - first == Q.shape[0] else Q[first:last])

    def map(self, function: Callable[[Any], Any]) -> Replicated:
        return Replicated(sp.csr_array((function(self.A.data), self.A.indices, self.A.indptr), shape=self.A.shape))


def _canonical(A: Any) -> sp.csr_array:
    A = sp.csr_array(A)
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"a graph has as many rows as columns, got {A.shape}")
    if A.has_canonical_format and A.data.all():
        return A
    A = A.copy()
    A.sum_duplicates()
    A.eliminate_zeros()
    return A


def _selects(Q: sp.csr_array) -> bool:
    return Q.nnz == Q.shape[0] and bool((np.diff(Q.indptr) == 1).all()) and bool((Q.data == 1).all())


def selection(vertices: np.ndarray, n: int) -> sp.csr_array:
    """Q with one non-zero per row, 1 in column vertices[i] (sections 4.1.1 and 4.2.3): ``Q A`` are these rows of A."""
    rows = len(vertices)
    return sp.csr_array((np.ones(rows, np.float32), vertices, np.arange(rows + 1)), shape=(rows, n))


def indicator(vertices: np.ndarray, bounds: np.ndarray, n: int) -> sp.csr_array:
    """Q with one row per minibatch, 1 in the column of each of its vertices (section 4.2.1): ``Q A`` sums these rows of A."""
    return sp.csr_array((np.ones(len(vertices)), vertices, bounds), shape=(len(bounds) - 1, n))

"""What a sampler needs of a graph: products ``Q A``, whether A is replicated or partitioned (see
``spgemm.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from distgnn.layout import Range


class Graph(Protocol):
    """An (n, n) sparse matrix A that can be multiplied from the left. Stored zeros are no edges.

    Methods of a partitioned graph are collective: samplers call them in the same order on every rank.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    collective: bool  # whether the ranks of a process row sample together

    @property
    def n(self) -> int: ...

    def multiply(self, Q: sp.csr_array) -> sp.csr_array:
        """``Q A`` for a sparse Q (m, n): CSR, columns ascending within a row, no column twice."""
        ...

    def pieces(self, Q: sp.csr_array) -> Iterator[tuple[Range, sp.csr_array]]:
        """``Q A`` as consecutive row blocks ((first, last + 1), those rows), as many rows at a time as memory
        suggests.
        """
        ...

    def draw(
        self, vertices: np.ndarray, fanout: int, keys: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """`fanout` entries of each of these rows of A, all alike probable, as many rows at a time as memory
        suggests: (how many of each row, their columns, their values, the lengths of the rows).
        """
        ...

    def map(self, function: Callable[[Any], Any]) -> Graph:
        """The graph with the same non-zeros and ``function(values)`` as their values."""
        ...


def selection(vertices: np.ndarray, n: int) -> sp.csr_array:
    """Q with one non-zero per row, 1 in column vertices[i] (sections 4.1.1 and 4.2.3): ``Q A`` are these rows
    of A.
    """
    rows = len(vertices)
    return sp.csr_array((np.ones(rows, np.float32), vertices, np.arange(rows + 1)), shape=(rows, n))


def indicator(vertices: np.ndarray, bounds: np.ndarray, n: int) -> sp.csr_array:
    """Q with one row per minibatch, 1 in the column of each of its vertices (section 4.2.1): ``Q A`` sums
    these rows of A.
    """
    return sp.csr_array((np.ones(len(vertices)), vertices, bounds), shape=(len(bounds) - 1, n))

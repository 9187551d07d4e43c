"""What a sampler needs of a graph: products ``Q A``, whether A is replicated or partitioned (see
``spgemm.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp

from distgnn import ledger
from distgnn.layout import Range
from distgnn.sampling.rows import Draws

T = TypeVar("T")


class Neighbours(NamedTuple):
    """What was drawn for some vertices: how many of each, their numbers (int64), the values of A; and the
    non-zeros that each vertex's row has.
    """

    counts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    degrees: np.ndarray

    @classmethod
    def of(cls, P: sp.csr_array, drawn: Draws, degrees: np.ndarray) -> Neighbours:
        columns = P.indices[drawn.positions].astype(np.int64)
        return cls(drawn.counts, columns, P.data[drawn.positions], degrees)


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

    def draw(self, vertices: np.ndarray, fanout: int, keys: np.ndarray) -> Iterator[Neighbours]:
        """``fanout`` distinct neighbours of every vertex, all where it has no more: SAMPLE(P, b, s), P = Q A
        (Algorithm 1), for consecutive vertices at a time; keys: uint64, of :func:`rows.row_keys`.
        """
        ...

    def map(self, function: Callable[[Any], Any]) -> Graph:
        """The graph with the same non-zeros and ``function(values)`` as their values."""
        ...


def timed_each(step: str, items: Iterable[T]) -> Iterator[T]:
    """The items; the time that each takes to make is a step's of Algorithm 1."""
    left = iter(items)
    while True:
        with ledger.timed("sampling", step):
            item = next(left, None)
        if item is None:
            return
        yield item


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

"""The graph as a sampler uses it: products ``Q A`` and neighbours (``spgemm.py`` makes them)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import scipy.sparse as sp

from distgnn import ledger
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.arrays.kernels import Kernel
from distgnn.comm.steps import without_steps
from distgnn.layout import NodeOrder, Range
from distgnn.local import extract
from distgnn.local.csr_rows import lengths
from distgnn.local.draw import Draws, draw_selected, stack_keys
from distgnn.local.edges import run_sums
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from distgnn.sampling.edges import Edges, of_products, selection

T = TypeVar("T")
Array = Any
#: What was drawn for some vertices: how many neighbours of each, their numbers (int64), the values of A; and
#: the entries of each vertex's row.
Drawn = tuple[Array, Array, Array, Array]


@runtime_checkable
class Graph(Protocol):
    """An (n, n) sparse matrix A that can be multiplied from the left. Stored zeros are edges.

    Rows and columns, here and in products, are positions in its order; samplers take and give node ids.

    Methods of a partitioned graph are collective: samplers call them in the same order on every rank. `sums`,
    `edges` and `draw` are in steps, see ``comm/steps.py``, between which messages travel.

    Attributes:
        shape, dtype: of A; A: what this rank holds of it.
        backend: where the graph is, and all that is drawn from it.
        collective: all ranks sample together, each minibatches of its own.
        order: of rows and columns; None: node i in row i.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    A: Any
    backend: Backend = backends.get("numpy")
    collective: bool = False
    order: NodeOrder | None = None

    @property
    def n(self) -> int:
        """Rows of A."""
        return self.shape[0]

    def row_blocks(self, Q: sp.csr_array) -> Iterator[tuple[Range, sp.csr_array]]:
        """Yield ``Q A`` for a sparse Q (m, n) as ((first, last + 1), rows): canonical."""
        ...

    def multiply(self, Q: sp.csr_array) -> sp.csr_array:
        """Compute ``Q A`` as a whole."""
        blocks = [rows for _, rows in self.row_blocks(Q)]
        none = sp.csr_array((0, self.shape[1]), dtype=self.dtype)
        return blocks[0] if len(blocks) == 1 else sp.vstack([none, *blocks], format="csr")

    @without_steps
    def sums(self, lists: Stack) -> Any:
        """Sum the rows of each list of vertices (section 4.2.1): ``Q A`` of a Q with ones there."""
        return self.multiply(indicator(lists, self.n))

    def column_sums(self) -> np.ndarray:
        """Sum all rows, on the host: (columns)."""
        S = self.multiply(indicator(Stack.of([np.arange(self.n)]), self.n))
        sums = np.zeros(self.shape[1], self.dtype)
        sums[S.indices] = S.data
        return sums

    def row_sums(self) -> Array:
        """Sum every row, where the graph is: (rows)."""
        return run_sums(self.A.data, self.A.indptr)

    @without_steps
    def edges(self, rows: Stack, cols: Stack, scale: Array | None, labels: Relabelling) -> Edges:
        """Pick the entries in the rows and columns of each minibatch, see :func:`edges.edges`."""
        row_blocks = self.row_blocks(selection(rows.ids, self.n))
        return of_products(row_blocks, rows, cols, scale, labels, self.dtype)

    @without_steps
    def draw(self, vertices: Stack, fanout: int, keys: Array) -> Drawn:
        """Draw ``fanout`` distinct neighbours of every vertex, or all: SAMPLE(P, b, s) of P = Q A.

        keys: uint64, of the minibatches, of which and of their vertices :func:`rows.row_keys` are made.
        """
        P = self.multiply(selection(vertices.ids, self.n))  # up to a factor: 1 stands for 1 / degree
        rows, pointers = np.arange(P.shape[0]), P.indptr.astype(np.int64)
        return taken(P, draw_selected(pointers, rows, fanout, stack_keys(vertices, keys)), lengths(P))

    def kernel(self, operation: str) -> Kernel | None:
        """Return the kernel of ``local.extract`` that does several steps in one pass over rows, or None."""
        return None

    def on_host(self) -> Graph:
        """Return the graph, copied to the host if it is not there."""
        return self

    def map(self, function: Callable[[Array], Array]) -> Any:
        """Make a graph of the same entries with ``function(values)``, of floating-point numbers.

        The structure is shared. Local to a rank; all must give the same function.
        """
        other = copy.copy(self)
        other.A = with_values(self.A, function(self.A.data))
        other.dtype = other.A.dtype
        if other.dtype.kind != "f":
            raise ValueError(f"the function makes {other.dtype} of values that are {self.dtype}")
        ledger.holds(other, "adjacency", other.A.data.nbytes)
        return other


def with_values(A: Any, values: Array) -> Any:
    """Make a CSR matrix of the same structure, on the host SciPy's."""
    if isinstance(A, CSR):
        return A.with_values(values)
    return sp.csr_array((values, A.indices, A.indptr), shape=A.shape)


def taken(P: Any, drawn: Draws, degrees: Array) -> Drawn:
    """Return the entries of P that were drawn."""
    return drawn.counts, P.indices[drawn.positions].astype(np.int64), P.data[drawn.positions], degrees


def timed_each(step: str, items: Iterable[T]) -> Iterator[T]:
    """Yield the items; the time to make each is charged to a step of Algorithm 1."""
    left = iter(items)
    while True:
        with ledger.timed("sampling", step):
            item = next(left, None)
        if item is None:
            return
        yield item


def indicator(lists: Stack, n: int) -> Any:
    """Make Q with a row of ones in the vertices of each list (section 4.2.1): ``Q A`` sums rows of A."""
    bounds, vertices = lists.arrays
    ones = backends.module(vertices).ones(len(vertices))
    return extract.rows_of(bounds, vertices, ones, (len(bounds) - 1, n))

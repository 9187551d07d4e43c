"""The stored entries of a distributed matrix, and its products with other numbers in their places.

An algorithm says where a rank's entries are and how rows of dense matrices reach them (:class:`EdgePattern`);
what is done with the entries is the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise, repeat
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.blocking import every, rows_within
from distgnn.arrays.csr import CSR
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError
from distgnn.layout import Layout
from distgnn.local import edges as entries
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.edges import DistEdges, Masked, Through
from distgnn.operators.kept import cached_property

Array = Any


class EdgePattern(ABC):
    """The entries of A on this rank: blocks of the same rows, the numbers of one after those of another.

    Args:
        A: the operator.
        blocks: CSR, all with as many rows.
        across: the ranks that have other entries of the same rows.
        row_layout: of a matrix of which a rank has its rows of A, and all columns.

    Attributes:
        places: of each block's entries among the rank's; size: how many it has.
        primary: True on the one rank of each set of copies of the same entries that answers for them.
        names: numbers of the entries by which draws know them, int64, where a layer made some.
    """

    names: Array = None

    def __init__(self, A: Any, blocks: Sequence[CSR], across: Comm, row_layout: Layout[Any]) -> None:
        self.A, self.grid, self.dtype = A, A.grid, A.dtype
        self.blocks, self.across, self.row_layout = list(blocks), across, row_layout
        ends = [0, *accumulate(block.nnz for block in blocks)]
        self.places, self.size = [slice(*pair) for pair in pairwise(ends)], ends[-1]
        self.height = row_layout.local_shape((A.shape[0], 1))[0]
        self.primary = True

    # -- what an algorithm does ------------------------------------------------------------------------------

    @abstractmethod
    def rows_of(self, v: DistDense) -> AbstractContextManager[Iterator[Array]]:
        """Give, for each block in order, the rows of a narrow matrix that its columns read, all columns.

        ``v`` is in ``A.input_layout``. Collective.
        """

    @abstractmethod
    def multiply(self, E: DistEdges | Masked, H: DistDense, T: DistDense) -> None:
        """Compute ``T = A H`` with the numbers of E in place of A's. Collective."""

    @abstractmethod
    def multiply_adjoint(self, E: DistEdges | Masked, G: DistDense, F: DistDense) -> None:
        """Compute ``F = Aᵀ G`` with the numbers of E in place of A's. Collective."""

    @abstractmethod
    def dots(self, U: DistDense, V: DistDense, E: DistEdges) -> None:
        """Compute the dot products of rows of U and V, by head, in E. Collective."""

    def whole_rows(self, U: DistDense, V: DistDense) -> AbstractContextManager[tuple[Array, Array] | None]:
        """Give the rows of U and V, all columns, where this rank has all entries of its rows, in one block.

        None elsewhere, on every rank alike. Collective.
        """
        return nullcontext(None)

    # -- what is the same for all ----------------------------------------------------------------------------

    def check(self, E: Any) -> None:
        """Raise ArgumentError, on every rank alike, unless E are edges of this operator."""
        if not isinstance(E, (DistEdges, Masked)):
            problem = "expected edges, such as A.edges() or A.edge_sum(u, v)"
            raise ArgumentError("values", type(E).__name__, problem)
        if E.pattern is not self:
            raise ArgumentError("values", repr(E), f"are edges of another operator than {self.A!r}")

    def bounds(self, heads: int, X: DistDense) -> list[int]:
        """Return where the columns of each head begin and end in this rank's block of X."""
        first, last = X.col_range
        ends = np.arange(heads + 1) * (X.shape[1] // heads)
        return (np.clip(ends, first, last) - first).tolist()

    def product(
        self, k: int, A: CSR, E: DistEdges | Masked, B: Array, out: Array, bounds: Sequence[int],
        add: bool = False, transposed: bool = False,
    ) -> None:  # fmt: skip
        """Compute ``out = A B`` with the numbers of block k's entries; what masks them has some at a time.

        Args:
            A: block k, or with ``transposed`` its transpose; others: as of
                :func:`~distgnn.local.edges.multiply`.
        """
        place = self.places[k]
        order = entries.transposition(self.blocks[k]) if transposed else None
        if isinstance(E, DistEdges):
            entries.multiply(A, E.data[place], B, bounds, out, add, order)
            return
        for rows, part, A_part in _row_blocks(A, E.heads):
            values = E.part(place, part if order is None else order[part])
            entries.multiply(A_part, values, B, bounds, out[rows], add)

    def empty(self, heads: int) -> DistEdges:
        """Make edges of any numbers."""
        return DistEdges(self, self.grid.backend.empty((self.size, heads), self.dtype))

    def row_sums(self, data: Array) -> Array:
        """Sum the numbers of each of this rank's rows, over all ranks that have some. Collective."""
        sums = self.grid.backend.zeros((self.height, data.shape[1]), data.dtype)
        for block, place in zip(self.blocks, self.places, strict=True):
            entries.row_sums(block, data[place], sums)
        return self.across.allreduce(sums, matrix="sums")

    def row_maxima(self, data: Array) -> Array:
        """Return the largest number of each of this rank's rows, -inf in empty ones. Collective."""
        maxima = self.grid.backend.empty((self.height, data.shape[1]), data.dtype)
        maxima[...] = -np.inf
        for block, place in zip(self.blocks, self.places, strict=True):
            entries.row_maxima(block, data[place], maxima)
        return self.across.allreduce(maxima, "max", matrix="sums")

    def of_rows(self, numbers: Array) -> Array:
        """Give each entry the numbers of its row."""
        data = self.grid.backend.empty((self.size, numbers.shape[1]), numbers.dtype)
        for block, place in zip(self.blocks, self.places, strict=True):
            entries.of_rows(block, numbers, data[place])
        return data

    def softmax(
        self, data: Array, ends: tuple[DistDense, DistDense] | None = None, slope: float = 1,
        signs: Array = None,
    ) -> None:  # fmt: skip
        """Compute a softmax over rows in place, of these numbers or of leaky_relu(u_i + v_j). Collective.

        One pass where this rank has all entries of its rows, in one block; else three.

        Args:
            ends: u and v; slope: of the leaky ReLU; signs: of
                :func:`~distgnn.local.edges.signs_for`, set where a score is above 0, or None.
        """
        heads, on = data.shape[1], self.grid.backend
        whole = len(self.blocks) == 1 and self.across.size == 1
        maxima, sums = on.empty((self.height, heads), self.dtype), on.zeros((self.height, heads), self.dtype)
        maxima[...] = -np.inf
        first = entries.SCORES | (entries.POWERS | entries.SHARES if whole else 0)
        rows = recut(ends[0], self.row_layout).block if ends else None
        nothing = nullcontext(repeat(None, len(self.blocks)))
        with self.rows_of(ends[1]) if ends else nothing as columns:
            for block, place, read in zip(self.blocks, self.places, columns, strict=True):
                bits = {"signs": signs, "first": place.start * heads}
                beside = (rows, read) if ends else None
                entries.softmax(block, data[place], maxima, sums, first, ends=beside, slope=slope, **bits)
        if whole:
            return
        self.across.allreduce(maxima, "max", matrix="sums")
        self._each(entries.softmax, entries.POWERS, (data,), maxima, sums)
        self.across.allreduce(sums, matrix="sums")
        self._each(entries.softmax, entries.SHARES, (data,), maxima, sums)

    def softmax_back(
        self, P: Array, data: Array, slope: float = 1, signs: Array = None, totals: Array = None
    ) -> None:
        """Compute, in place, the gradient of the scores of a softmax P from that of P. Collective.

        Args:
            slope, signs: as of :meth:`softmax`; totals: where the sums of each row are added, (its rows,
                heads), those of this rank's entries alone; or None.
        """
        sums = self.grid.backend.zeros((self.height, data.shape[1]), self.dtype)
        both, options = (P, data), {"slope": slope, "signs": signs}
        if len(self.blocks) == 1 and self.across.size == 1:
            phases = entries.SUMS | entries.GRADIENT
            self._each(entries.softmax_back, phases, both, sums, totals, **options)
            return
        self._each(entries.softmax_back, entries.SUMS, both, sums, None)
        self.across.allreduce(sums, matrix="sums")
        self._each(entries.softmax_back, entries.GRADIENT, both, sums, totals, **options)

    def attention_back(
        self, P: DistEdges, U: DistDense, V: DistDense, through: Through | None, totals: Array = None,
        slope: float = 1, signs: Array = None,
    ) -> DistEdges:  # fmt: skip
        """Compute the gradient of the scores of a softmax P, where that of P are dot products. Collective.

        In the memory of P, some rows after another, where :meth:`whole_rows` gives them.

        Args:
            U, V: of :meth:`dots`; through: changes some of their products, and is told which entries they
                are of; others: as of :meth:`softmax_back`.
        """
        with self.whole_rows(U, V) as rows:
            if rows is None:
                D = self.empty(P.heads)
                self.dots(U, V, D)
                if through is not None:
                    through(D.data, slice(0, self.size))
                self.softmax_back(P.data, D.data, slope, signs, totals)
                return D
            bounds, sums = self.bounds(P.heads, V), self.grid.backend.zeros((self.height, P.heads), P.dtype)
            for own, part, A in _row_blocks(self.blocks[0], P.heads):
                D_part, P_part = self.grid.backend.empty((A.nnz, P.heads), P.dtype), P.data[part]
                entries.dots(A, rows[0][own], rows[1], bounds, D_part)
                if through is not None:
                    through(D_part, part)
                of_rows = sums[own], None if totals is None else totals[own]
                options: Any = {"slope": slope, "signs": signs, "first": part.start * P.heads}
                entries.softmax_back(A, P_part, D_part, *of_rows, **options)
                P_part[...] = D_part
        return P

    def _each(
        self, run: Any, phases: int, numbers: Sequence[Array], sums: Array, others: Array, **options: Any
    ) -> None:
        """Run phases on every block."""
        for block, place in zip(self.blocks, self.places, strict=True):
            own = [array[place] for array in numbers]
            first = place.start * own[0].shape[1]
            run(block, *own, sums, others, phases, first=first, **options)

    def end_sums(self, u: DistDense, v: DistDense) -> DistEdges:
        """Compute u_i + v_j of each entry. Collective."""
        E, rows = self.empty(u.shape[1]), recut(u, self.row_layout).block
        with self.rows_of(v) as columns:
            for block, place, read in zip(self.blocks, self.places, columns, strict=True):
                entries.end_sums(block, rows, read, E.data[place])
        return E

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the node of the row and of the column of each of this rank's entries. Collective, once."""
        return self._ends

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        on, A, layout = self.grid.backend, self.A, self.A.input_layout
        with self.grid.world.together():
            row_ids = self.row_layout.rows.ids(*self.row_layout.rows.range(self.grid, A.shape[0]))
            ids = layout.rows.ids(*layout.rows.range(self.grid, A.shape[1])).astype(np.float64)
        width = self.grid.count(*layout.col_axes)  # a column for every rank that has some
        numbers = on.asarray(np.repeat(ids[:, None], layout.local_shape((A.shape[1], width))[1], axis=1))
        rows, columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        with self.rows_of(DistDense(numbers, layout, (A.shape[1], width))) as read:
            for block, given in zip(self.blocks, read, strict=True):
                rows.append(row_ids[on.to_host(entries.rows_of(block))])
                columns.append(on.to_host(given[:, 0][block.indices]).astype(np.int64))
        return np.concatenate(rows), np.concatenate(columns)


def _row_blocks(A: CSR, heads: int) -> Iterator[tuple[slice, slice, CSR]]:
    """Give some rows after another: their places, their entries' places, and them. All have as many rows."""
    per_row, first = -(-A.nnz // max(A.shape[0], 1)), 0
    for rows in every(A.shape[0], rows_within(backend.of(A.indptr).at_a_time(), heads * max(per_row, 1))):
        part = A.rows(*rows)
        yield slice(*rows), slice(first, first + part.nnz), part
        first += part.nnz

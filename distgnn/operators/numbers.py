"""Numbers of the entries of a block, as products with other values read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distgnn.arrays import backend
from distgnn.arrays.blocking import every, rows_within
from distgnn.arrays.csr import CSR

Array = Any
#: Places of rows, the block's entries in them, their numbers, which of these each has (None: its own).
Piece = tuple[slice, CSR, Array, Array]


class Numbers:
    """Numbers of a block's entries, (entries, heads).

    Args:
        values: in the order of the block's entries; order: where the block is transposed, which of them each
            entry has.
    """

    def __init__(self, values: Array, order: Array = None) -> None:
        self.values, self.order = values, order

    def pieces(self, A: CSR) -> Iterator[Piece]:
        """Give what is multiplied at once of ``A``, the block or some of its rows."""
        values, order = self.values, self.order
        if A.nnz < len(values):
            own = slice(A.first_entry, A.first_entry + A.nnz)
            values, order = (values[own], None) if order is None else (values, order[own])
        yield slice(None), A, values, order


class PiecewiseNumbers(Numbers):
    """Numbers that are made when they are read, those of some rows at a time.

    Args:
        edges: that know them; place: of the block's entries among theirs; order: as of :class:`Numbers`.
    """

    def __init__(self, edges: Any, place: slice, order: Array = None) -> None:
        self.edges, self.place, self.order = edges, place, order

    @property
    def values(self) -> Array:
        return self.edges.part(self.place)

    def pieces(self, A: CSR) -> Iterator[Piece]:
        for rows, part, A_part in row_blocks(A, self.edges.heads):
            within = slice(A.first_entry + part.start, A.first_entry + part.stop)
            which = within if self.order is None else self.order[within]
            yield rows, A_part, self.edges.part(self.place, which), None


def row_blocks(A: CSR, heads: int) -> Iterator[tuple[slice, slice, CSR]]:
    """Give some rows after another: their places, their entries' places, and them. All have as many rows."""
    per_row, first = -(-A.nnz // max(A.shape[0], 1)), 0
    for rows in every(A.shape[0], rows_within(backend.of(A.indptr).at_a_time(), heads * max(per_row, 1))):
        part = A.rows(*rows)
        yield slice(*rows), slice(first, first + part.nnz), part
        first += part.nnz

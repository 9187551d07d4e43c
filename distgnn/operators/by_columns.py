"""Block rows of the ranks of a process row, cut by columns for a product.

Two all-to-alls: one brings each rank some columns of all rows, the other takes the product back to the rows.

               rows of X      columns of X      columns of Y      rows of Y
    rank 0     x00 x01        x00               y00               y00 y01
                              x10               y10
    rank 1     x10 x11        x01               y01               y10 y11
                              x11               y11

Columns travel in parts: the next part comes, and the last one leaves, while one is multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Take
from distgnn.comm.exchange import Exchange
from distgnn.comm.group import Comm
from distgnn.layout import partition, within
from distgnn.operators.dense import DistDense

Array = Any


@contextmanager
def by_columns(row: Comm, X: DistDense, Y: DistDense, matrix: str) -> Iterator[Iterator[tuple[Array, Array]]]:
    """Give pairs (X_k, Y_k) of all rows of the process row in some of this rank's columns.

    The caller makes Y_k of X_k; ``Y`` is complete when all were asked for. Collective over ``row``.

    Args:
        row: the process row; X, Y: in block rows, each rank its own. X stays as it is.
        matrix: what the ledger calls X; the product is T.

    Cost: of X the other ranks' rows in the own columns, of Y the own rows in other ranks' columns, in two
    all-to-alls for each part.
    """
    with X.grid.workspace.rooms() as take, ExitStack() as exchanges:
        yield _Swap(row, X, Y, take, exchanges).pairs(matrix)


class _Swap:
    """The parts of X and Y that a rank has.

    Attributes:
        columns: by part and rank, of X and Y; rows_of_X, rows_of_Y: by rank, within the process row's.
        X_k, Y_k: by part, all rows in the own columns.
        packed: by part and other rank, what is sent of X; came: what is received of Y.
    """

    def __init__(self, row: Comm, X: DistDense, Y: DistDense, take: Take, exchanges: ExitStack) -> None:
        self.row, self.X, self.Y, self.exchanges = row, X, Y, exchanges
        self.columns = column_parts(X.shape[1], row.size)
        self.rows_of_X, self.rows_of_Y = _rows(row, X), _rows(row, Y)
        own = [part[row.rank] for part in self.columns]
        others = [part[r] for part in self.columns for r in row.others()]

        def rooms(name: str, height: int, columns: Sequence[slice]) -> list[Array]:
            widths = [cut.stop - cut.start for cut in columns]
            ends = [height * end for end in accumulate(widths, initial=0)]
            room = take(name, (ends[-1],), X.dtype)
            return [room[a:b].reshape(height, w) for (a, b), w in zip(pairwise(ends), widths, strict=True)]

        self.X_k = rooms("columns", self.rows_of_X[-1].stop, own)
        self.Y_k = rooms("columns of the product", self.rows_of_Y[-1].stop, own)
        self.packed = self._by_part(rooms("columns sent", len(X.block), others))
        self.came = self._by_part(rooms("columns received", len(Y.block), others))

    def _by_part(self, rooms: list[Array]) -> list[dict[int, Array]]:
        others = self.row.others()
        return [dict(zip(others, rooms[k * len(others) :], strict=False)) for k in range(len(self.columns))]

    def pairs(self, matrix: str) -> Iterator[tuple[Array, Array]]:
        """Give the parts, the next one under way."""
        parts, others = range(len(self.columns)), self.row.others()
        arriving, leaving = [self._to_columns(0, matrix)], []
        for k in parts:
            if k + 1 in parts:
                arriving.append(self._to_columns(k + 1, matrix))
            arriving[k].wait(others)
            yield self.X_k[k], self.Y_k[k]
            leaving.append(self._to_rows(k))
        for k in parts:
            leaving[k].wait(others)
            for r in others:
                self.Y.block[:, self.columns[k][r]] = self.came[k][r]

    def _to_columns(self, k: int, matrix: str) -> Exchange:
        """Begin to exchange a part of X."""
        me, columns = self.row.rank, self.columns[k]
        self.X_k[k][self.rows_of_X[me]] = self.X.block[:, columns[me]]
        for r, room in self.packed[k].items():
            room[...] = self.X.block[:, columns[r]]
        into = {q: self.X_k[k][self.rows_of_X[q]] for q in self.row.others()}
        return self._begin(self.packed[k], into, matrix)

    def _to_rows(self, k: int) -> Exchange:
        """Begin to exchange a part of Y."""
        me = self.row.rank
        self.Y.block[:, self.columns[k][me]] = self.Y_k[k][self.rows_of_Y[me]]
        sent = {r: self.Y_k[k][self.rows_of_Y[r]] for r in self.row.others()}
        return self._begin(sent, self.came[k], "T")

    def _begin(self, sent: dict[int, Array], into: dict[int, Array], matrix: str) -> Exchange:
        overlap = self.X.grid.overlap
        begun = Exchange(self.row, list(into.items()), matrix, overlap, "alltoall", narrow=True)
        exchange = self.exchanges.enter_context(begun)
        for r in reversed(self.row.others()):
            exchange.send(sent[r], r)
        if overlap:
            self.exchanges.enter_context(exchange.flight.driven())
        else:
            exchange.finish()
        return exchange


def _rows(row: Comm, X: DistDense) -> list[slice]:
    """List the rows of each rank among those of the process row."""
    grid, cut = X.grid, X.layout.rows
    outer = grid.index(*cut.axes) // row.size
    return [slice(*ends) for ends in pairwise(within(cut.vector(grid, X.shape[0]), outer, row.size).tolist())]


def column_parts(width: int, ranks: int) -> list[list[slice]]:
    """Cut each rank's columns into the parts in which they travel, as many parts for all ranks.

    Parts have at least TUNING.part_columns columns; there are TUNING.column_parts at most.
    """
    ends = partition(width, ranks)
    number = max(min(width // ranks // TUNING.part_columns, TUNING.column_parts), 1)
    cuts = (ends[:-1] + np.outer(np.arange(number + 1), np.diff(ends)) // number).tolist()
    return [list(map(slice, first, last)) for first, last in pairwise(cuts)]

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

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Borrow
from distgnn.comm.exchange import Exchange
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.pieces import Pieces, rooms
from distgnn.comm.rows import consecutive
from distgnn.layout import partition
from distgnn.operators.prices import Price, direct

Array = Any
Heights = tuple[Sequence[int], Sequence[int]]  # of X and Y, by rank


@contextmanager
def by_columns(
    grid: Grid, row: Comm, X: Array, Y: Array, heights: Heights, matrix: str, operation: str = "alltoall"
) -> Iterator[Iterator[tuple[Array, Array]]]:  # fmt: skip
    """Give pairs (X_k, Y_k) of all rows of the process row in some of this rank's columns.

    The caller makes Y_k of X_k before it asks for the next pair; ``Y`` is complete when all were asked for.
    Collective over ``row``.

    Args:
        row: the process row; X, Y: this rank's rows. X stays as it is.
        heights: the rows of X and of Y that each rank has.
        matrix: what the ledger calls X, whose product is T; operation: what it calls an exchange.

    X begins to travel when the context is entered: what is computed before the first pair is asked for has it
    beside it.

    Cost: of X the other ranks' rows in the own columns, of Y the own rows in other ranks' columns, in two
    all-to-alls for each part.
    """
    with grid.workspace.lending() as borrow, ExitStack() as exchanges:
        begin = _Begun(exchanges, row, grid.overlap, operation, borrow)
        swap = _Swap(row, X, Y, heights, borrow, begin, matrix)
        yield swap.pairs(swap.to_columns(0))


def by_columns_price(row: Comm, heights: Heights, f: int, matrix: str) -> tuple[Price, list[int]]:
    """Price the all-to-alls of f columns; also return this rank's columns of each part."""
    widths = [[own.stop - own.start for own in part] for part in column_parts(f, row.size)]
    others, (of_X, of_Y) = row.others(), heights
    there = [of_X[q] * part[row.rank] for part in widths for q in others]
    back = [of_Y[row.rank] * part[r] for part in widths for r in others]
    return direct(row, matrix, there) + direct(row, "T", back), [part[row.rank] for part in widths]


class _Swap:
    """The parts of X and Y that a rank has.

    Attributes:
        columns: by part and rank, of X and Y; rows_of_X, rows_of_Y: by rank, within the process row's.
        X_k, Y_k: by part, all rows in the own columns. Y_k lies where X_k-1 was, which is multiplied by then.
    """

    def __init__(
        self, row: Comm, X: Array, Y: Array, heights: Heights, borrow: Borrow, begin: _Begun, matrix: str
    ) -> None:
        self.row, self.X, self.Y, self.begin, self.matrix = row, X, Y, begin, matrix
        self.columns = column_parts(X.shape[1], row.size)
        self.rows_of_X, self.rows_of_Y = (list(consecutive(dict(enumerate(h))).values()) for h in heights)
        of_X, of_Y = self.rows_of_X[-1].stop, self.rows_of_Y[-1].stop
        own = [part[row.rank].stop - part[row.rank].start for part in self.columns]
        sizes = [max(of_X * width, of_Y * after) for width, after in zip(own, [*own[1:], 0], strict=True)]
        first, *others = (borrow((size,), X.dtype) for size in (of_Y * own[0], *sizes))
        self.X_k = [_shaped(room, of_X, width) for room, width in zip(others, own, strict=True)]
        self.Y_k = [_shaped(room, of_Y, width) for room, width in zip([first, *others], own, strict=False)]

    def pairs(self, first: Exchange) -> Iterator[tuple[Array, Array]]:
        """Give the parts, the next one under way. ``first``: the exchange of the first part of X."""
        parts, others = range(len(self.columns)), self.row.others()
        arriving, leaving = [first], []
        for k in parts:
            if k + 1 in parts:
                arriving.append(self.to_columns(k + 1))
            arriving[k].wait(others)
            yield self.X_k[k], self.Y_k[k]
            leaving.append(self._to_rows(k))
        for exchange in leaving:
            exchange.wait(others)

    def to_columns(self, k: int) -> Exchange:
        """Begin to exchange a part of X."""
        me, columns = self.row.rank, self.columns[k]
        _charge_copies(self.X, columns)
        self.X_k[k][self.rows_of_X[me]] = self.X[:, columns[me]]
        into = {q: self.X_k[k][self.rows_of_X[q]] for q in self.row.others()}
        pack = lambda cut: lambda rows, room: _copy(room, self.X[rows, cut])  # noqa: E731
        return self.begin(self._pieces(self.X, columns, pack), into, self.matrix)

    def _to_rows(self, k: int) -> Exchange:
        """Begin to exchange a part of Y."""
        me = self.row.rank
        _charge_copies(self.Y, self.columns[k])
        self.Y[:, self.columns[k][me]] = self.Y_k[k][self.rows_of_Y[me]]
        sent = {r: self.Y_k[k][self.rows_of_Y[r]] for r in self.row.others()}
        unpack = lambda cut: lambda rows, room: _copy(self.Y[rows, cut], room)  # noqa: E731
        return self.begin(sent, self._pieces(self.Y, self.columns[k], unpack), "T")

    def _pieces(self, like: Array, columns: Sequence[slice], move: Callable[[slice], Any]) -> dict[int, Any]:
        """Return the own rows of other ranks' columns, by rank."""
        shapes = {r: (len(like), columns[r].stop - columns[r].start) for r in self.row.others()}
        return {r: Pieces(shape, like.dtype, move(columns[r])) for r, shape in shapes.items()}


def _charge_copies(rows: Array, columns: Sequence[slice]) -> None:
    """Charge that these columns of the own rows are read in one place and written in another."""
    numbers = len(rows) * sum(cut.stop - cut.start for cut in columns)
    ledger.charge("spmm", "copy columns", touched=2 * numbers * rows.itemsize)


def _shaped(room: Array, height: int, width: int) -> Array:
    return room[: height * width].reshape(height, width)


def _copy(into: Array, numbers: Array) -> None:
    into[...] = numbers


@dataclass(frozen=True)
class _Begun:
    """Exchanges among the ranks of a process row, complete when the stack is left."""

    stack: ExitStack
    row: Comm
    overlap: bool
    operation: str
    borrow: Borrow

    def __call__(self, sent: dict[int, Any], into: dict[int, Any], matrix: str) -> Exchange:
        """Begin an exchange of arrays and pieces, in rooms of its own."""
        in_turn = self.row.in_pieces
        moved = [x for x in [*sent.values(), *into.values()] if isinstance(x, Pieces)]
        few = rooms(self.borrow, moved, in_turn)
        how: dict[str, Any] = {"narrow": True, "in_pieces": in_turn, "rooms": few}
        begun = self.row.exchange(list(into.items()), matrix, self.overlap, self.operation, **how)
        exchange = self.stack.enter_context(begun)
        for r in reversed(self.row.others()):
            exchange.send(sent[r], r)
        exchange.all_sent()
        if self.overlap:
            self.stack.enter_context(exchange.flight.driven())
        else:
            exchange.finish()
        return exchange


def column_parts(width: int, ranks: int) -> list[list[slice]]:
    """Cut each rank's columns into the parts in which they travel, as many parts for all ranks.

    Parts have at least TUNING.part_columns columns; there are TUNING.column_parts at most.
    """
    ends = partition(width, ranks)
    number = max(min(width // ranks // TUNING.part_columns, TUNING.column_parts), 1)
    cuts = (ends[:-1] + np.outer(np.arange(number + 1), np.diff(ends)) // number).tolist()
    return [list(map(slice, first, last)) for first, last in pairwise(cuts)]

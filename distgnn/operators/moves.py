"""Moves of an algorithm: how numbers reach a rank's blocks of A, and how what blocks make gets home.

An operation of A is one loop over its blocks. Beside a block it reads or writes *rows*, a dense matrix with
a row for each row of A; *columns*, one with a row for each column; and *entries*, numbers of the stored
entries. An algorithm is six moves, whatever the operation:

               read                                     written
    rows       all rows of this rank's blocks           summed with ranks that have other columns of A
    columns    for each block, those that it reads      for each block; summed where they are kept
    entries    for each block, its numbers              for each block; summed where they are kept

    Y = A H    reads columns, writes rows               sddmm    reads rows and columns, writes entries
    F = A'G    reads rows, writes columns               A(E) H   also reads entries

The loops are :func:`onto_rows`, :func:`onto_columns` and :func:`onto_entries`; an operation calls its kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from itertools import accumulate, pairwise, repeat
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.comm.group import Comm
from distgnn.layout import Layout, Range
from distgnn.local import edges as entries
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.kept import cached_property
from distgnn.operators.numbers import Numbers
from distgnn.operators.summed import SUM, Sum

Array = Any


class Moves(ABC):
    """Blocks of A on a rank, and the six moves of an algorithm, which are collective contexts.

    Args:
        A: the matrix.
        blocks: CSR, all with as many rows.
        across: the ranks that have other entries of the same rows.
        row_layout, column_layout: of matrices of which a rank has the rows, or columns, of its blocks whole.

    Attributes:
        places: of each block's entries among the rank's; size: how many it has; height: its rows.
        left, right: how rows and columns are cut when they are moved.
        sizes: entries of each block that comes by, the rank's own or not.
        group: the ranks over which rows are summed, or None; fiber: those over which they are then scattered.
        features: the ranks that have copies of the entries and other columns of dense matrices, or None.
        primary: True on the one rank of each set of copies of the same entries that answers for them.
        piecewise: rows of dot products may be made some at a time, as this rank has all of A in one block.
        names: numbers of the entries by which draws know them, int64, where a layer made some.
    """

    group: Comm | None = None
    fiber: Comm | None = None
    shares: Any = None
    features: Comm | None = None
    primary = True
    names: Array = None

    def __init__(
        self, A: Any, blocks: Sequence[CSR], across: Comm, row_layout: Layout[Any], column_layout: Layout[Any]
    ) -> None:
        self.A, self.grid, self.dtype = A, A.grid, A.dtype
        self.blocks, self.across = list(blocks), across
        self.row_layout, self.column_layout = row_layout, column_layout
        self.left, self.right = A.output_layout, A.input_layout
        self.sizes = [block.nnz for block in blocks]
        ends = [0, *accumulate(self.sizes)]
        self.places, self.size = [slice(*pair) for pair in pairwise(ends)], ends[-1]
        self.height = row_layout.local_shape((A.shape[0], 1))[0]
        self.piecewise = A.grid.size == 1 == len(self.blocks)

    # -- blocks ----------------------------------------------------------------------------------------------

    def forward(self) -> AbstractContextManager[Iterator[CSR]]:
        """Give the blocks in turn."""
        return nullcontext(iter(self.blocks))

    @abstractmethod
    def back(self) -> AbstractContextManager[Iterator[tuple[int, CSR]]]:
        """Give the number and the transpose of each block, in the order of :meth:`columns_written`."""

    def prepare(self) -> None:  # noqa: B027
        """Make what :meth:`back` gives, before messages are under way. Collective."""

    @abstractmethod
    def ranges(self) -> list[Range]:
        """List the columns of A of each block that comes by."""

    def needed(self) -> list[list[tuple[Range, Array]]] | None:
        """List the ranges of columns, and rows within them, that each block reads; None: all of its range."""
        return None

    @property
    def order(self) -> Sequence[int]:
        """The blocks in the order of :meth:`back`."""
        return range(len(self.blocks))

    # -- rows ------------------------------------------------------------------------------------------------

    def rows_read(self, U: Array) -> AbstractContextManager[Array]:
        """Give the rows of this rank's blocks."""
        return nullcontext(U)

    def rows_room(self, T: Array) -> AbstractContextManager[Array]:
        """Give memory for the rows of this rank's blocks, of which T gets this rank's share."""
        return nullcontext(T)

    @contextmanager
    def rows_written(self, T: Array, by: Sum = SUM) -> Iterator[Room]:
        """Give room for the rows of this rank's blocks; T gets what is made there."""
        with self.rows_room(T) as array:
            by.begin(array)
            room = Room(self, array, by)
            yield room
            room.close()
            if self.fiber is not None:
                by.scatter(self.fiber, array, self.shares, T)
        by.end()

    # -- columns ---------------------------------------------------------------------------------------------

    @abstractmethod
    def columns_read(self, V: Array) -> AbstractContextManager[Iterator[Array]]:
        """Give for each block the rows of V that it reads."""

    @abstractmethod
    def columns_written(self, F: Array) -> AbstractContextManager[Iterator[Array]]:
        """Give for each block room for what it adds to F, which is complete at the end."""

    def whole_columns(self, v: DistDense) -> AbstractContextManager[Iterator[Array]]:
        """Give for each own block the rows of a narrow matrix that it reads, all columns of them."""
        return nullcontext(iter([recut(v, self.column_layout).block]))

    def parts(self, X: Array, Y: Array, matrix: str) -> AbstractContextManager[Any]:
        """Give pairs of columns of X and Y, which are cut as A's, that are made one after another."""
        return nullcontext([(X, Y)])

    # -- entries ---------------------------------------------------------------------------------------------

    def entries_read(self, E: Any, transposed: bool = False) -> AbstractContextManager[Iterator[Numbers]]:
        """Give for each block its numbers, those of the transposed blocks in the order of :meth:`back`."""
        turns = self.order if transposed else range(len(self.blocks))
        order = entries.transposition if transposed else (lambda block: None)
        return nullcontext(E.numbers(self.places[k], order(self.blocks[k])) for k in turns)

    def entries_written(self, E: Any) -> AbstractContextManager[Iterator[Array]]:
        """Give for each block room for its numbers, which are summed over ``features``."""
        return self._own_entries(E)

    @contextmanager
    def _own_entries(self, E: Any) -> Iterator[Iterator[Array]]:
        yield (E.data[place] for place in self.places)
        if self.features is not None:
            self.features.allreduce(E.data, matrix="sums")

    # -- what is the same for all ----------------------------------------------------------------------------

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
        with self.whole_columns(DistDense(numbers, layout, (A.shape[1], width))) as read:
            for block, given in zip(self.blocks, read, strict=True):
                rows.append(row_ids[on.to_host(entries.rows_of(block))])
                columns.append(on.to_host(given[:, 0][block.indices]).astype(np.int64))
        return np.concatenate(rows), np.concatenate(columns)


class Room:
    """Room for the rows of a rank's blocks, perhaps summed over a group of ranks.

    Attributes:
        array: what blocks write to.
    """

    def __init__(self, moves: Moves, array: Array, by: Sum) -> None:
        self.moves, self.array, self.by, self.summed = moves, array, by, False

    def turns(self, last: bool) -> Generator[Range, None, None]:
        """Give the rows that a block makes at a time: of the last one, some travel while others are made."""
        group = self.moves.group
        if not last or group is None:
            yield 0, len(self.array)
        else:
            self.summed = True
            yield from self.by.turns(self.moves.grid, group, self.array)

    def close(self) -> None:
        """Complete the rows."""
        moves = self.moves
        if not moves.sizes:
            self.by.nothing(self.array)
        if moves.group is not None and not self.summed:
            for _ in self.by.turns(moves.grid, moves.group, self.array):
                pass
        if moves.group is None and moves.fiber is None:
            self.by.complete(self.array)


@contextmanager
def onto_rows(moves: Moves, T: Array, H: Array = None, E: Any = None, by: Sum = SUM) -> Iterator[Any]:
    """Give (k, A_k, H_k, E_k, rows, out) for the caller to make ``out``, some rows of what block k adds to T.

    A_k has these rows of block k. From the second block on the caller adds to ``out``. Collective.

    Args:
        H: of which blocks read columns, E: edges of which they read entries; or None, as H_k and E_k then.
        by: what is done over blocks and ranks, such as their sum.
    """
    with ExitStack() as stack:
        enter = stack.enter_context
        nothing = nullcontext(repeat(None, len(moves.sizes)))
        room, blocks = enter(moves.rows_written(T, by)), enter(moves.forward())
        columns = enter(nothing if H is None else moves.columns_read(H))
        numbers = enter(nothing if E is None else moves.entries_read(E))
        yield enter(closing(_turns(room, zip(blocks, columns, numbers, strict=True))))


def _turns(room: Room, blocks: Any) -> Generator[Any, None, None]:
    last = len(room.moves.sizes) - 1
    for k, (A_k, H_k, E_k) in enumerate(blocks):
        with closing(room.turns(k == last)) as turns:
            for rows in turns:
                yield k, A_k.rows(*rows), H_k, E_k, rows, room.array[slice(*rows)]


@contextmanager
def onto_columns(moves: Moves, F: Array, G: Array = None, E: Any = None) -> Iterator[Any]:
    """Give (k, At_k, G_k, E_k, out) for the caller to make ``out``, what the transpose of block k adds to F.

    Collective.

    Args:
        G: of which blocks read rows, E: edges of which they read entries; or None, as G_k and E_k then.
    """
    moves.prepare()
    with ExitStack() as stack:
        enter = stack.enter_context
        rows = None if G is None else enter(moves.rows_read(G))
        rooms, blocks = enter(moves.columns_written(F)), enter(moves.back())
        nothing = nullcontext(repeat(None, len(moves.sizes)))
        numbers = enter(nothing if E is None else moves.entries_read(E, transposed=True))
        yield ((k, At_k, rows, E_k, out) for out, (k, At_k), E_k in zip(rooms, blocks, numbers, strict=True))


@contextmanager
def onto_entries(moves: Moves, E: Any, U: Array, V: Array) -> Iterator[Any]:
    """Give (k, A_k, U_k, V_k, out) for the caller to make ``out``, the numbers of block k in E. Collective.

    Args:
        U, V: of which blocks read rows and columns.
    """
    with ExitStack() as stack:
        enter = stack.enter_context
        rows, rooms = enter(moves.rows_read(U)), enter(moves.entries_written(E))
        blocks, columns = enter(moves.forward()), enter(moves.columns_read(V))
        triples = enumerate(zip(rooms, blocks, columns, strict=True))
        yield ((k, A_k, rows, V_k, out) for k, (out, A_k, V_k) in triples)

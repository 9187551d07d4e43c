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

The loops are :meth:`Moves.onto_rows`, :meth:`Moves.onto_columns` and :meth:`Moves.onto_entries`; an operation
calls its kernel in each :class:`Step` of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.errors import TrainingError
from distgnn.layout import Layout, Range
from distgnn.local import edges as entries
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.kept import cached_property
from distgnn.operators.prices import FREE, Price, reduced, relaid
from distgnn.operators.summed import SUM, Sum

Array = Any


class Step(NamedTuple):
    """Work of a rank on one block, or on some of its rows.

    Attributes:
        k: the number of the block; A: these rows of it, or of its transpose.
        B: the rows that A's columns read; E: the numbers of its entries, or of the transpose's; or None.
        out: where the result goes, ``rows`` of the block's; ``add``: it is added to what is there.
        part: the number of the columns that are made at a time, see `rdm`.
        last: afterwards ``out`` is as the operation leaves it.
    """

    k: int
    A: CSR
    B: Array
    E: Any
    out: Array
    rows: Range
    add: bool = False
    part: int = 0
    last: bool = False


Steps = Generator[Step, None, None]


class Loop(AbstractContextManager[Steps]):
    """Steps of all ranks. An error in one on this rank ends them, and is told to ranks that wait for it."""

    def __init__(self, grid: Grid, steps: Steps) -> None:
        self.grid, self.steps = grid, steps

    def __enter__(self) -> Steps:
        return self.steps

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None:
            tell(self.grid)
        self.steps.close()


class OneStep(AbstractContextManager[Iterable[Step]]):
    """The step of a rank that has all of A in one block: nothing travels."""

    def __init__(self, step: Step, by: Sum = SUM) -> None:
        self.step, self.by = step, by

    def __enter__(self) -> Iterable[Step]:
        self.by.begin(self.step.out)
        return (self.step,)

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.by.complete(self.step.out)
            self.by.end()


def tell(grid: Grid) -> None:
    """Tell the other ranks that this one failed: they raise where they wait for it."""
    if grid.links is not None:
        grid.links.fail()


@contextmanager
def told(grid: Grid) -> Iterator[None]:
    """Tell the other ranks of an error inside, which collectives of other ranks would wait for.

    The end of a generator, on all ranks alike, is none, nor is a TrainingError, which all raise.
    """
    try:
        yield
    except (GeneratorExit, TrainingError):
        raise
    except BaseException:
        tell(grid)
        raise


class Room:
    """Room for the rows of blocks, perhaps summed over a group of ranks; a context that completes them.

    Args:
        array: what blocks write to; by: what is done over blocks and ranks; empty: there is no block.
    """

    def __init__(
        self, grid: Grid, array: Array, group: Comm | None = None, by: Sum = SUM, empty: bool = False
    ) -> None:
        self.grid, self.array, self.group, self.by, self.empty = grid, array, group, by, empty
        self.summed = False

    def __enter__(self) -> Room:
        self.by.begin(self.array)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.complete()
            self.by.end()

    def turns(self) -> Generator[Range, None, None]:
        """Give the rows that the last block makes at a time: some travel while others are made."""
        assert self.group is not None
        self.summed = True
        return self.by.turns(self.grid, self.group, self.array)

    def complete(self) -> None:
        """End the rows. Collective."""
        if self.empty:
            self.by.nothing(self.array)
        if self.group is None:
            self.by.complete(self.array)
        elif not self.summed:
            for _ in self.turns():
                pass


class Moves(ABC):
    """Blocks of A on a rank, and the six moves of an algorithm, which are collective contexts.

    Args:
        A: the matrix.
        blocks: CSR, all with as many rows.
        across: the ranks that have other entries of the same rows.
        row_layout, column_layout: of matrices of which a rank has the rows, or columns, of its blocks whole.

    Attributes:
        places: of each block's entries among the rank's; size: how many it has; height: its rows.
        left, right: how rows and columns are cut when they are moved beside entries.
        sizes: entries of each block that comes by, the rank's own or not.
        group: the ranks over which rows are summed, or None; fiber: those over which they are then scattered.
        features: the ranks that have copies of the entries and other columns of dense matrices, or None.
        primary: True on the one rank of each set of copies of the same entries that answers for them.
        piecewise: this rank has all of A in one block, of which rows may be made some at a time.
        ends_rows: the last block of a product ends all rows, for what is to be done with them.
        names: numbers of the entries by which draws know them, int64, where a layer made some.
    """

    group: Comm | None = None
    fiber: Comm | None = None
    shares: Any = None
    features: Comm | None = None
    primary = True
    ends_rows = False
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

    def prepare(self, adjoint: bool) -> None:  # noqa: B027
        """Make what :meth:`onto_rows`, or with ``adjoint`` :meth:`onto_columns`, needs.

        Collective, before messages are under way: a rank that waits here keeps others from its rows.
        """

    @abstractmethod
    def ranges(self) -> list[Range]:
        """List the columns of A of each block that comes by."""

    def windows(self) -> list[tuple[Range, Range]]:
        """List the rows and the columns of A of each of this rank's blocks."""
        rows = self.row_layout.rows.range(self.grid, self.A.shape[0])
        return [(rows, columns) for columns in self.ranges()]

    def on_host(self) -> list[sp.csr_array]:
        """List the blocks of :meth:`windows` in SciPy's form; on a GPU, copies."""
        return [block.to_scipy() for block in self.blocks]

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

    def rows_written(self, T: Array, by: Sum = SUM, begun: bool = False) -> AbstractContextManager[Room]:
        """Give room for the rows of this rank's blocks; T gets what is made there, or what has ``begun``."""
        return Room(self.grid, T, self.group, by, not (self.sizes or begun))

    # -- columns ---------------------------------------------------------------------------------------------

    @abstractmethod
    def columns_read(self, V: Array) -> AbstractContextManager[Iterator[Array]]:
        """Give for each block the rows of V that it reads."""

    @abstractmethod
    def columns_written(self, F: Array) -> AbstractContextManager[Iterator[Any]]:
        """Give for each block an array, or a :class:`Room`, for what it adds to F, complete at the end."""

    def whole_columns(self, v: DistDense) -> AbstractContextManager[Iterator[Array]]:
        """Give for each own block the rows of a narrow matrix that it reads, all columns of them."""
        return nullcontext(iter([recut(v, self.column_layout).block]))

    # -- entries ---------------------------------------------------------------------------------------------

    def entries_read(self, E: Any, transposed: bool = False) -> AbstractContextManager[Iterator[Any]]:
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

    # -- prices: of so many own columns, or heads ------------------------------------------------------------

    def blocks_price(self, back: bool = False) -> Price:
        """Price the blocks that come by, or with ``back`` their transposes."""
        return FREE

    def rows_price(self, width: int, written: bool = False) -> Price:
        """Price :meth:`rows_read`, or with ``written`` :meth:`rows_written`."""
        return FREE

    def columns_price(self, width: int, written: bool = False) -> Price:
        """Price :meth:`columns_read`, or with ``written`` :meth:`columns_written`."""
        raise NotImplementedError(f"{self.A.name}: its moves have no prices")

    def entries_price(self, heads: int, written: bool = False) -> Price:
        """Price :meth:`entries_read`, or with ``written`` :meth:`entries_written`."""
        own = self.features if written else None
        return FREE if own is None else reduced(own, "sums", self.size * heads)

    def whole_columns_price(self, heads: int) -> Price:
        """Price :meth:`whole_columns`."""
        return relaid(self.A.input_layout, self.column_layout, (self.A.shape[1], heads), "H")

    def passes(self, f: int, back: bool = False) -> tuple[Price, list[int]]:
        """Return what a product of f columns sends beside its moves, and the own columns of each pass."""
        return FREE, [self.A.input_layout.local_shape((self.A.shape[1], f))[1]]

    # -- loops -----------------------------------------------------------------------------------------------

    def onto_rows(
        self, T: Array, H: Array = None, E: Any = None, by: Sum = SUM, rounds: bool = False
    ) -> AbstractContextManager[Iterable[Step]]:
        """Give the steps that make rows T. Collective.

        Args:
            H: of which blocks read columns, E: edges of which they read entries; or None.
            by: what is done over blocks and ranks, such as their sum.
            rounds: H is read in the 16 bits of the wire.
        """
        if self.piecewise and (by is SUM or self.fiber is None):
            numbers = None if E is None else E.numbers(self.places[0])
            return OneStep(self._step(self.blocks[0], H, numbers, T, rounds), by)
        self.prepare(adjoint=False)
        return Loop(self.grid, (self._onto_rows if E is None else self._rows_of_blocks)(T, H, E, by, rounds))

    def onto_columns(
        self, F: Array, G: Array = None, E: Any = None, rounds: bool = False
    ) -> AbstractContextManager[Iterable[Step]]:
        """Give the steps that make columns F with the transposes of blocks. Collective.

        Args:
            G: of which blocks read rows, E: edges of which they read entries; or None.
            rounds: G is read in the 16 bits of the wire.
        """
        if self.piecewise:
            order = None if E is None else entries.transposition(self.blocks[0])
            numbers = None if E is None else E.numbers(self.places[0], order)
            return OneStep(self._step(self._all_transposed, G, numbers, F, rounds))
        self.prepare(adjoint=True)
        steps = self._onto_columns if E is None else self._columns_of_blocks
        return Loop(self.grid, steps(F, G, E, rounds))

    def _step(self, A: CSR, X: Array, E: Any, out: Array, rounds: bool) -> Step:
        """Make the step of all of A, which ends all rows."""
        read = self.grid.rounded(X) if rounds else X
        return Step(0, A, read, E, out, (0, len(out)), last=True)

    @cached_property
    def _all_transposed(self) -> CSR:
        """The transpose of the one block that is all of A."""
        self.prepare(adjoint=True)
        with self.back() as blocks:
            ((_, At),) = blocks
        return At

    @contextmanager
    def onto_entries(self, E: Any, U: Array, V: Array) -> Iterator[Iterator[tuple[Step, Array]]]:
        """Give the steps that make entries E, each with the rows of U that its block reads. Collective.

        Args:
            U, V: of which blocks read rows and columns.
        """
        if self.piecewise:
            yield iter([(Step(0, self.blocks[0], V, None, E.data, (0, self.height)), U)])
            return
        with (
            told(self.grid), self.rows_read(U) as rows, self.entries_written(E) as rooms,
            self.forward() as blocks, self.columns_read(V) as columns,
        ):  # fmt: skip
            triples = enumerate(zip(blocks, columns, rooms, strict=True))
            yield ((Step(k, A, V_k, None, out, (0, A.shape[0])), rows) for k, (A, V_k, out) in triples)

    def _onto_rows(self, T: Array, H: Array, E: Any, by: Sum, rounds: bool) -> Steps:
        """Give the steps of the parts of H and T, whose columns are those of ``A @ H``."""
        return self._rows_of_blocks(T, H, E, by, rounds)

    def _onto_columns(self, F: Array, G: Array, E: Any, rounds: bool) -> Steps:
        """Give the steps of the parts of G and F, whose columns are those of ``A.T @ G``."""
        return self._columns_of_blocks(F, G, E, rounds)

    def _rows_of_blocks(
        self, T: Array, H: Array, E: Any, by: Sum, rounds: bool, begun: bool = False
    ) -> Steps:  # fmt: skip
        last = len(self.sizes) - 1
        with (
            self.rows_written(T, by, begun) as room, self.forward() as blocks,
            self._nothing() if H is None else self.columns_read(H) as columns,
            self._nothing() if E is None else self.entries_read(E) as numbers,
        ):  # fmt: skip
            whole = 0, len(room.array)
            for k, (A_k, H_k, E_k) in enumerate(zip(blocks, columns, numbers, strict=True)):
                read, add = self.grid.rounded(H_k) if rounds else H_k, begun or k > 0
                if k < last or room.group is None:
                    yield Step(k, A_k, read, E_k, room.array, whole, add, last=k == last and self.ends_rows)
                    continue
                with closing(room.turns()) as turns:
                    for rows in turns:
                        yield Step(k, A_k.rows(*rows), read, E_k, room.array[slice(*rows)], rows, add)

    def _columns_of_blocks(self, F: Array, G: Array, E: Any, rounds: bool) -> Steps:
        with (
            nullcontext() if G is None else self.rows_read(G) as rows,
            self.columns_written(F) as rooms, self.back() as blocks,
            self._nothing() if E is None else self.entries_read(E, transposed=True) as numbers,
        ):  # fmt: skip
            read = self.grid.rounded(rows) if rounds else rows
            for out, (k, At_k), E_k in zip(rooms, blocks, numbers, strict=True):
                if not isinstance(out, Room):
                    yield Step(k, At_k, read, E_k, out, (0, len(out)))
                    continue
                with closing(out.turns()) as turns:
                    for own in turns:
                        yield Step(k, At_k.rows(*own), read, E_k, out.array[slice(*own)], own)

    def _nothing(self) -> AbstractContextManager[Iterator[None]]:
        return nullcontext(repeat(None, len(self.sizes)))

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

"""Moves of block rows: 1D, 1.5D, and RDM, which is 1D on columns. Entries are where their rows are.

Lines of CAGNET's Algorithm 1 (of 1.5D's Algorithm 2), and where they are:

    line 4 (6): BROADCAST(H_j)                   RowMoves.columns_read: whole blocks, or needed rows
    line 5 (7): Z_i = Z_i + A_ij H_j             a step of Moves.onto_rows
    line (8): ALLREDUCE(Z, +, P(i, :))           Moves.rows_written, beside the last step
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.comm.group import Comm
from distgnn.comm.panels import summed
from distgnn.layout import Cut, Layout, Range, block
from distgnn.operators.by_columns import by_columns_price
from distgnn.operators.covers import CoveredRows
from distgnn.operators.dense import DistDense, recut
from distgnn.operators.joined_blocks import JoinedBlocks
from distgnn.operators.kept import cached_property
from distgnn.operators.moves import Moves, Steps
from distgnn.operators.needed_rows import NeededRows
from distgnn.operators.prices import FREE, Price, summed_rows, whole
from distgnn.operators.summed import SUM, Sum

Array = Any


class RowMoves(Moves):
    """Moves of block rows.

    Words: columns, those of ``A @ H`` without sums, either way; rows written, those of the sum over ``reps``;
    entries written, of RDM an all-reduce over ``cols`` of nnz heads/r words.

    Args:
        A: the operator; pairs: blocks of A, with what brings the rows that they read; blocks: these.
        transpose: the blocks are those of Aᵀ; partial: others sum over ``reps``.

    Attributes:
        cuts: by process column, which rows of this rank's block of ``H`` it multiplies; mine: those of this.
    """

    features: Comm

    def __init__(
        self, A: Any, pairs: Any, blocks: Sequence[CSR], transpose: bool = False, partial: bool = False
    ) -> None:
        grid, self.pairs, self.transpose = A.grid, pairs, transpose
        self.reps = grid.along("reps") if "reps" in grid.shape else None
        self.group, self.partial = None if partial else self.reps, partial
        cuts = (A.row_parts, A.row_order), (A.col_parts, A.col_order)
        parts, i = A.row_parts if transpose else A.col_parts, grid.coords["rows"]
        self.shared = A.row_shares if transpose else A.col_shares
        ends = self.shared.clip(*block(parts, i)) - parts[i]
        self.cuts = list(pairwise(ends.tolist()))
        self.mine = slice(*self.cuts[grid.coords.get("reps", 0)])
        layouts = (Layout(grid, Cut(("rows",), *cut), Cut()) for cut in cuts)
        super().__init__(A, blocks, self.reps or grid.along(), *layouts)
        self.right, self.left = A.inner_layouts or (A.input_layout, A.output_layout)
        self.features = grid.along(*(("cols",) if "cols" in grid.shape else ()))
        self.primary = self.features.rank == 0
        self.ends_rows = self.reps is None and self.features.size == 1

    @cached_property
    def transposed(self) -> list[CSR]:
        """The blocks, transposed where they are, once per node, in :attr:`order`. Collective, once."""
        return self.transposes()

    @abstractmethod
    def transposes(self) -> list[CSR]:
        """Make :attr:`transposed`. Collective."""

    def prepare(self, adjoint: bool) -> None:
        _ = self.transposed if adjoint else None

    def back(self) -> AbstractContextManager[Iterator[tuple[int, CSR]]]:
        return nullcontext(zip(self.order, self.transposed, strict=True))

    def _onto_rows(self, T: Array, H: Array, E: Any, by: Sum, rounds: bool) -> Steps:
        if self.features.size == 1:
            return self._rows_of_blocks(T, H, E, by, rounds)
        steps = lambda X, Y: self._rows_of_blocks(Y, X, E, by, rounds)  # noqa: E731
        return self._in_parts(H, T, self.transpose, steps)

    def _onto_columns(self, F: Array, G: Array, E: Any, rounds: bool) -> Steps:
        if self.features.size == 1:
            return self._columns_of_blocks(F, G, E, rounds)
        steps = lambda X, Y: self._columns_of_blocks(Y, X, E, rounds)  # noqa: E731
        return self._in_parts(G, F, not self.transpose, steps)

    def _in_parts(self, X: Array, Y: Array, adjoint: bool, steps: Callable[[Array, Array], Steps]) -> Steps:
        with self.A.parts(X, Y, adjoint) as parts:
            for number, (X_k, Y_k) in enumerate(parts):
                for step in steps(X_k, Y_k):
                    yield step._replace(part=number)

    def columns_read(self, V: Array) -> AbstractContextManager[Iterator[Array]]:
        return self.pairs.rows_of(V[self.mine])

    def columns_price(self, width: int, written: bool = False) -> Price:
        price = self.read_price(width, written)
        if not written or self.group is None:
            return price
        sizes = [last - first for first, last in self.cuts]
        away = [sizes[column] * width for column in self.group.others() if sizes[column] > 0]
        return price + whole(self.group, "sums", away)

    @abstractmethod
    def read_price(self, width: int, written: bool) -> Price:
        """Price the rows that come to this rank's blocks, or that other ranks make for this one."""

    def rows_price(self, width: int, written: bool = False) -> Price:
        if not written or self.group is None:
            return FREE
        layout = self.column_layout if self.transpose else self.row_layout
        (first, last), size = layout.row_range, self.dtype.itemsize
        return summed_rows(self.grid, self.group, (last - first, width), size)

    def whole_columns_price(self, heads: int) -> Price:
        return super().whole_columns_price(heads) + self.read_price(heads, False)

    def passes(self, f: int, back: bool = False) -> tuple[Price, list[int]]:
        if self.features.size == 1:
            return FREE, [f]
        adjoint = back != self.transpose
        between = self.A.crossing or self.A  # whose rows travel
        return by_columns_price(self.features, between.heights(adjoint), f, "G" if adjoint else "H")

    def whole_columns(self, v: DistDense) -> AbstractContextManager[Iterator[Array]]:
        return self.columns_read(recut(v, self.column_layout).block)

    @contextmanager
    def columns_written(self, F: Array) -> Iterator[Iterator[Array]]:
        with self.sums_in(F[self.mine]) as rooms:
            yield rooms
        self.share_out(F)

    @abstractmethod
    def sums_in(self, F: Array) -> AbstractContextManager[Iterator[Array]]:
        """Give for each block room for what it adds to F, which has the sum over ``rows`` at the end."""

    def share_out(self, F: Array) -> None:
        """Give F to the ranks along ``reps``: each process column has the sums of its own rows."""
        if self.group is not None:
            for column, (first, last) in enumerate(self.cuts):
                if first < last:
                    self.group.bcast(F[first:last], column, matrix="sums", narrow=True)


class WholeRowMoves(RowMoves):
    """Moves of block rows among which blocks of H travel whole."""

    def __init__(self, A: Any, pairs: Any, transpose: bool = False) -> None:
        super().__init__(A, pairs, pairs.blocks, transpose)

    @property
    def order(self) -> Sequence[int]:
        return np.argsort(self.pairs.turns).tolist()  # the same on all ranks

    def transposes(self) -> list[CSR]:
        if self.A.self_adjoint and self.grid.shape["rows"] == len(self.cuts) == 1:
            return self.blocks  # all of a symmetric matrix
        made = self.A.holders().transposed(self.blocks)
        return [made[k] for k in self.order]

    def windows(self) -> list[tuple[Range, Range]]:
        layout = self.column_layout if self.transpose else self.row_layout
        return [(layout.row_range, columns) for columns in self.ranges()]

    def ranges(self) -> list[Range]:
        p, parts = self.pairs, self.A.row_parts if self.transpose else self.A.col_parts
        starts = self.A.share(self.grid, parts, self.shared)[1].tolist()
        cuts = [(starts[p.roots[turn]], p.rows[turn]) for turn in p.turns]
        return [(first + rows.start, first + rows.stop) for first, rows in cuts]

    def sums_in(self, F: Array) -> AbstractContextManager[Iterator[Array]]:
        p, shapes = self.pairs, [(cut.stop - cut.start, F.shape[1]) for cut in self.pairs.rows]
        return summed(self.grid, p.comm, p.roots, lambda k: F[p.rows[k]], shapes, F.dtype)

    def read_price(self, width: int, written: bool) -> Price:
        p, matrix = self.pairs, "sums" if written else self.pairs.matrix
        away = (cut for cut, root in zip(p.rows, p.roots, strict=True) if root != p.comm.rank)
        return whole(p.comm, matrix, [(cut.stop - cut.start) * width for cut in away])


class JoinedRowMoves(WholeRowMoves):
    """Moves of block rows of which all blocks but the own one are joined."""

    pairs: JoinedBlocks

    @property
    def order(self) -> Sequence[int]:
        return range(len(self.blocks))

    def needed(self) -> list[list[tuple[Range, Array]]]:
        ranges = self.ranges()
        return [[(ranges[k], None) for k in group] for group in self.pairs.groups]

    def on_host(self) -> list[Any]:
        return self.pairs.by_stage()

    def sums_in(self, F: Array) -> AbstractContextManager[Iterator[Array]]:
        return self.pairs.sums_in(F)


class NeededRowMoves(RowMoves):
    """Moves of block rows among which those rows of H travel that are read."""

    pairs: NeededRows

    def __init__(self, A: Any, pairs: NeededRows, partial: bool = False) -> None:
        own = [] if pairs.diagonal is None else [pairs.diagonal]
        self.own = len(own)
        super().__init__(A, pairs, [*own, *(A_ij for A_ij, *_ in pairs.groups)], partial=partial)

    @property
    def order(self) -> Sequence[int]:
        return self.pairs.order

    def transposes(self) -> list[CSR]:
        return self.pairs.transposes()

    def ranges(self) -> list[Range]:
        raise TypeError("needed rows are not consecutive")

    def needed(self) -> list[list[tuple[Range, Array]]]:
        rows, parts = self.pairs.rows.needed, self.A.columns
        own = [[(block(parts, self.A.column.rank), None)]] * self.own
        groups = (ranks for _, ranks, _ in self.pairs.groups)
        return [*own, *([(block(parts, j), rows[j]) for j in ranks if j in rows] for ranks in groups)]

    def sums_in(self, F: Array) -> AbstractContextManager[Iterator[Array]]:
        return self.pairs.sums_in(F)

    def read_price(self, width: int, written: bool) -> Price:
        return self.pairs.price(width, written)


class CoveredMoves(NeededRowMoves):
    """Moves of block rows of which a minimum cover travels: rows of H, and rows of what other ranks make.

    A is the sum of what is ``fetched`` and of the transpose of what is ``partial``.
    """

    def __init__(self, A: Any, pairs: CoveredRows) -> None:
        super().__init__(A, pairs.fetched)
        self.others = NeededRowMoves(A, pairs.partial, partial=True)
        self.others.mine = slice(None)  # its columns are all rows of A's blocks
        self.fetched = NeededRowMoves(A, pairs.fetched, partial=True)

    def prepare(self, adjoint: bool) -> None:
        (self.fetched if adjoint else self.others).prepare(adjoint=True)

    def read_price(self, width: int, written: bool) -> Price:
        return self.fetched.pairs.price(width, written) + self.others.pairs.price(width, not written)

    def _rows_of_blocks(
        self, T: Array, H: Array, E: Any, by: Sum, rounds: bool, begun: bool = False
    ) -> Steps:  # fmt: skip
        T[...] = 0
        yield from self.others._columns_of_blocks(T, H[self.mine], None, rounds)
        yield from super()._rows_of_blocks(T, H, None, by, rounds, begun=True)

    def _columns_of_blocks(self, F: Array, G: Array, E: Any, rounds: bool) -> Steps:
        yield from self.fetched._columns_of_blocks(F, G, None, rounds)
        yield from self.others._rows_of_blocks(F[self.mine], G, None, SUM, rounds, begun=True)
        self.share_out(F)


def row_moves(A: Any, pairs: Any, **how: bool) -> RowMoves:
    """Return the moves of these blocks of A; ``how``: as of :class:`RowMoves`."""
    kinds: dict[type, type] = {
        NeededRows: NeededRowMoves, CoveredRows: CoveredMoves, JoinedBlocks: JoinedRowMoves
    }
    return kinds.get(type(pairs), WholeRowMoves)(A, pairs, **how)

"""Block rows of A, common to 1D and 1.5D, which get blocks of H whole, or only the rows that are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays.canonical import canonical
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm import fetch_costs
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.panels import broadcast
from distgnn.comm.relay import upstream
from distgnn.errors import ArgumentError
from distgnn.layout import Axes, Cut, Layout, Range, as_partition, block, partition, shares
from distgnn.local.csr_rows import compact
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.covers import CoveredRows
from distgnn.operators.joined_blocks import JoinedBlocks
from distgnn.operators.kept import cached_property
from distgnn.operators.loading import Holders, cut_columns, load, load_transposed
from distgnn.operators.moves import Moves
from distgnn.operators.needed_rows import NeededRows
from distgnn.operators.row_moves import row_moves
from distgnn.operators.sources import BlockSource, blocks
from distgnn.operators.spgemm import multiply_sparse
from distgnn.operators.weights import ReplicatedWeights

Array = Any


class BlockRows(Algorithm):
    """``A`` and ``H`` in block rows over the axis ``rows``.

    A rank multiplies the column blocks of its ``stages``, or what its process column has of these. The
    adjoint of whole blocks is the same product with block rows of Aᵀ, held from its first use on (CAGNET
    Table II). That of needed rows is the same exchange backwards, with the held blocks transposed.

    Args:
        row_parts, col_parts: partition vectors of A's rows and columns into as many blocks as ``rows`` has;
            default even.
        sparsity_aware: False: blocks of H are broadcast whole. True: a rank gets the rows that it reads.
            "auto": those or the whole block, whichever should be faster, from each rank; the same bits.
            "cover": the fewest rows of H and of partial products that a pair of ranks can do with.

    Attributes:
        column: the ranks that share ``H``, a process column; stages: the column blocks that it multiplies;
            columns: partition vector of its columns of A, cut where blocks are.
        A: the rank's blocks of A, with what brings the rows of H; panels: in which whole blocks of it travel,
            or None.
    """

    A: WholeBlocks | JoinedBlocks | NeededRows | CoveredRows

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: Any = None, col_parts: Any = None,
        sparsity_aware: bool | str = False,
    ) -> None:  # fmt: skip
        super().__init__(grid, source)
        parts, c = grid.shape["rows"], grid.shape.get("reps", 1)
        self.row_parts = self.cut("rows", as_partition(row_parts, self.shape[0], parts))
        self.col_parts = self.cut("columns", as_partition(col_parts, self.shape[1], parts))
        self.row_shares = self.cut("shares of rows", shares(self.row_parts, c))
        self.col_shares = self.cut("shares of columns", shares(self.col_parts, c))
        self.output_layout = Layout(grid, Cut(("rows",), self.row_parts, self.row_order), Cut())
        self.input_layout = Layout(grid, Cut(("rows",), self.col_parts, self.col_order), Cut())
        self.weights = ReplicatedWeights(self.output_layout)
        self.column = grid.along("rows")
        self.stages, self.columns = self.share(grid, self.col_parts, self.col_shares)
        self.sparsity_aware = sparsity_aware
        self.A = self._needed_rows() if sparsity_aware else self._whole_blocks()

    def _moves(self) -> Moves:
        return row_moves(self, self.A)

    def _edge_pattern(self) -> Moves:
        if self.sparsity_aware == "cover":
            problem = "edges lie where their rows do, which covers leave; take True, or False"
            raise ArgumentError("sparsity_aware", "cover", problem)
        return super()._edge_pattern()

    @cached_property
    def moves_of_transpose(self) -> Moves | None:
        """The moves of block rows of Aᵀ, where blocks of H travel whole. Collective the first time."""
        return None if self.sparsity_aware else row_moves(self, self.At, transpose=True)

    @cached_property
    def At(self) -> WholeBlocks | JoinedBlocks:
        """Blocks of Aᵀ on this rank, where blocks of H travel whole."""
        cols = block(self.col_parts, self.column.rank)
        _, rows = self.share(self.grid, self.row_parts, self.row_shares)
        windows = [(block(rows, j), cols) for j in self.stages]
        transposed, holders = load_transposed(self.grid, self.source, windows), Holders(self.grid, windows)
        return self._travelling(holders, rows, transposed, "G")

    def times_sparse(self, B: Algorithm) -> Algorithm | None:
        if not isinstance(B, BlockRows) or self.grid.size != self.grid.shape["rows"]:
            return None
        return multiply_sparse(self, B)

    @staticmethod
    def share(grid: Axes, parts: np.ndarray, cut: np.ndarray | None = None) -> tuple[range, np.ndarray]:
        """Return the blocks of which this rank's process column has a share, and the vector of its parts.

        ``cut``: the vector of the process columns' shares, default even.
        """
        rows, c, j = len(parts) - 1, grid.shape.get("reps", 1), grid.coords.get("reps", 0)
        stages = range(j * rows // c, -(-(j + 1) * rows // c))
        return stages, np.clip(parts, *block(shares(parts, c) if cut is None else cut, j))

    @staticmethod
    def last_panel(grid: Axes) -> float:
        """Return the part of its block that the last panel has at least, 0 for as much as the others."""
        return 0.0

    def _windows(self) -> list[tuple[Range, Range]]:
        """List the rows and columns of this rank's blocks of A."""
        rows = block(self.row_parts, self.column.rank)
        return [(rows, block(self.columns, j)) for j in self.stages]

    def holders(self) -> Holders:
        """Return the ranks that hold the same blocks, to which rows of other ranks come in the same order.

        Windows without rows or columns are alike in different stages.
        """
        alike = [self.column.nodes.index(node) for node in self.column.nodes]
        return Holders(self.grid, (list(self.stages), self._windows(), self.column.rank, alike))

    def _needed_rows(self) -> NeededRows | CoveredRows:
        costs = fetch_costs.measure(self.grid, self.column) if self.sparsity_aware == "auto" else None
        given = blocks(self.source, self._windows(), self.grid)
        holders = self.holders()
        with self.grid.world.together():
            compacted = (compact(canonical(A_ij, self.dtype)) for A_ij in given)
            held = dict(zip(self.stages, compacted, strict=True))
        self.grid.nonzeros += sum(A_ij.nnz for A_ij in held.values())
        heights = np.diff(self.columns)
        if self.sparsity_aware == "cover":
            return CoveredRows(holders, self.column, held, heights, np.diff(self.row_parts), self.dtype)
        return NeededRows(holders, self.column, held, heights, self.dtype, costs)

    def _whole_blocks(self) -> WholeBlocks | JoinedBlocks:
        windows = self._windows()
        held, holders = load(self.grid, self.source, windows, thin=True), Holders(self.grid, windows)
        self.panels = self._cut_in_panels(held)
        return self._travelling(holders, self.columns, held, "H")

    def _travelling(
        self, holders: Holders, parts: np.ndarray, held: list[CSR], matrix: str
    ) -> WholeBlocks | JoinedBlocks:
        """Return blocks of A, or of Aᵀ, with what brings whole blocks of H."""
        if self.panels is None:
            return JoinedBlocks(holders, self.column, self.stages, parts, held, matrix)
        return WholeBlocks(holders, self.column, self.stages, parts, self.panels, held, matrix)

    def _cut_in_panels(self, held: Sequence[CSR]) -> Panels | None:
        """Return how blocks of H are cut; None: all that come are multiplied at once. Collective."""
        own = sum(A_ij.nnz for A_ij in held), sum(A_ij.shape[0] for A_ij in held)
        nonzeros, rows = np.sum(self.grid.world.gather_objects(own), axis=0)
        last = self.last_panel(self.grid)
        even = int((1 - last) * nonzeros / max(rows, 1) / TUNING.panel_nonzeros)
        large = int(np.diff(self.col_parts).max()) * TUNING.fetched_row_bytes >= TUNING.halved_block
        panels = max(min(even + (last > 0), TUNING.most_panels), 1 + large)
        if self.column.size == 1:
            return Panels(1, last, False)
        received = max(self.shape) // self.grid.shape.get("reps", 1) * TUNING.fetched_row_bytes
        most = TUNING.joined_panels_on_device if self.grid.backend.queues else TUNING.joined_panels
        return None if received <= most and not large else Panels(panels, last, large)


class Panels(NamedTuple):
    """Cut of the blocks of H into panels, of which the last one has the part ``last`` or its even share.

    ``large``: memory counts more than a wait at the start. First panels of all blocks travel, then second
    ones, in one order for all ranks, for which few buffers will do; else a rank's own come first.
    """

    number: int
    last: float
    large: bool

    def bounds(self, height: int) -> list[int]:
        """Return the bounds of the panels in a block of so many rows."""
        even = partition(height, self.number).tolist()
        first = min(even[-2], round((1 - self.last) * height))
        return [*partition(first, self.number - 1).tolist(), height] if first < even[-2] else even

    def order(self, stages: Sequence[int], ring: Sequence[int]) -> list[tuple[int, int]]:
        """List the panels of all blocks: the block, and which one of it."""
        if self.large:  # descending, see relay.py
            return [(j, k) for k in range(self.number) for j in sorted(stages, key=ring.index, reverse=True)]
        return [(j, k) for j in stages for k in range(self.number)]

    @property
    def buffers(self) -> int:
        """Panels that are received at a time: one more than a rank has, where own ones come first."""
        return TUNING.relay_buffers if self.large else max(TUNING.relay_buffers, self.number + 1)


class WholeBlocks:
    """The blocks A_ij of a block row, with the blocks H_j whole: broadcast one after another, in panels.

    Args:
        comm: the ranks that share H; stages: the blocks j; parts: partition vector of H's rows.
        holders: the ranks that hold the same blocks; panels: how a block of H is cut.
        blocks: A_ij by stage; the list is emptied.
        matrix: what the ledger calls H.
    """

    def __init__(
        self, holders: Holders, comm: Comm, stages: Sequence[int], parts: np.ndarray, panels: Panels,
        blocks: list[CSR], matrix: str,
    ) -> None:  # fmt: skip
        self.grid, self.comm, self.panels, self.matrix = holders.grid, comm, panels, matrix
        cuts = {j: panels.bounds(int(parts[j + 1] - parts[j])) for j in stages}
        order = panels.order(stages, comm.ring)
        self.rows = [slice(*cuts[j][k : k + 2]) for j, k in order]
        self.roots = [j for j, _ in order]
        self.turns = range(len(order)) if panels.large else upstream(comm, self.roots)
        panels_of = lambda bounds, on: cut_columns(blocks.pop(0), bounds, on, thin=True)  # noqa: E731
        cut = lambda on: [A_jk for bounds in cuts.values() for A_jk in panels_of(bounds, on)]  # noqa: E731
        made = holders.make("columns", cut) if panels.number > 1 else [*blocks]
        blocks.clear()
        by_panel = dict(zip(((j, k) for j in stages for k in range(panels.number)), made, strict=True))
        self.blocks = [by_panel[order[turn]] for turn in self.turns]

    def rows_of(self, H: Array) -> AbstractContextManager[Iterator[Array]]:
        """Give the rows of H that each block reads, in its turn. Collective."""
        shapes = [(rows.stop - rows.start, H.shape[1]) for rows in self.rows]
        own = lambda stage: H[self.rows[stage]]  # noqa: E731
        how = own, shapes, H.dtype, self.turns, self.panels.buffers
        return broadcast(self.grid, self.comm, self.matrix, self.roots, *how)

"""What the algorithms that cut matrices in block rows have in common: layouts, which blocks of A a rank holds,
and how the blocks of H that they are multiplied with reach it: whole, or only the rows that are read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm import fetch_costs
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.panels import broadcast
from distgnn.comm.relay import upstream
from distgnn.comm.rows import Rows, after
from distgnn.layout import Cut, Layout, as_partition, block, partition
from distgnn.local.csr_rows import keep_columns
from distgnn.operators.dense import DistDense
from distgnn.operators.loading import load, pack
from distgnn.operators.operator import DistSparse
from distgnn.operators.sources import BlockSource
from distgnn.operators.weights import ReplicatedWeights

Array = Any


class BlockRows(DistSparse):
    """``A`` and ``H`` in block rows over the axis ``rows``; a rank multiplies the column blocks of its ``stages``.

    The adjoint of whole blocks is the same product with block rows of Aᵀ, held from its first use on (CAGNET
    Table II); that of needed rows is the same exchange backwards, with the held blocks transposed. A symmetric
    matrix is its own adjoint and holds nothing more.

    Args:
        grid: has the axis ``rows``.
        source: gives the blocks of A.
        row_parts, col_parts: partition vectors of A's rows and columns into as many blocks as ``rows`` has;
            default even.
        sparsity_aware: False: blocks of H are broadcast whole. True: a rank receives the rows that it reads.
            "auto": these or the whole block, from each rank to each other what is estimated to be faster.

    Attributes:
        column: the ranks that share ``H``; stages: the column blocks this rank multiplies.
        A: its block row of A, with what brings the rows of H.
    """

    A: WholeBlocks | NeededRows

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None, sparsity_aware: bool | str = False,
    ) -> None:  # fmt: skip
        super().__init__(grid, source)
        parts = grid.shape["rows"]
        self.row_parts = as_partition(row_parts, self.shape[0], parts)
        self.col_parts = as_partition(col_parts, self.shape[1], parts)
        self.output_layout = Layout(grid, Cut(("rows",), self.row_parts), Cut())
        self.input_layout = Layout(grid, Cut(("rows",), self.col_parts), Cut())
        self.weights = ReplicatedWeights(self.output_layout)
        self.column, self.stages = grid.along("rows"), self.share(grid, parts)
        self.sparsity_aware = sparsity_aware
        rows = self.output_layout.row_range
        self.windows = [(rows, block(self.col_parts, j)) for j in self.stages]
        self.A = self._needed_rows() if sparsity_aware else self._whole_blocks()

    @cached_property
    def At(self) -> WholeBlocks:
        """This rank's block row of Aᵀ, where blocks travel whole."""
        columns = self.input_layout.row_range
        windows = [(block(self.row_parts, j), columns) for j in self.stages]
        panels = self.A.panels  # type: ignore[union-attr]
        return WholeBlocks(self.grid, self.column, self.stages, self.row_parts, panels, lambda cut: pack(
            self.grid, self.dtype, lambda: cut(self.source.block(*window).T for window in windows)
        ))  # fmt: skip

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        Z = self._result(self.output_layout, (self.shape[0], H.shape[1]), out)
        return self._block_row(self.A, H, Z)

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        F = self._result(self.input_layout, (self.shape[1], G.shape[1]), out)
        return self._block_column(self.A, G, F) if self.sparsity_aware else self._block_row(self.At, G, F)

    @staticmethod
    @abstractmethod
    def share(grid: Grid, parts: int) -> range:
        """The column blocks this rank multiplies; the same for all ranks of a process column."""

    @abstractmethod
    def _block_row(self, A_i: Any, H: DistDense, Z: DistDense) -> DistDense:
        """``Z_i = Σ_j A_ij H_j``."""

    @abstractmethod
    def _block_column(self, A_i: Any, G: DistDense, F: DistDense) -> DistDense:
        """``F_j = Σ_i A_ijᵀ G_i``, where rank i has A_ij."""

    def _read(self) -> Iterator[Any]:
        """The blocks of A of this rank's stages, one after another. Local to a rank."""
        return (self.source.block(*window) for window in self.windows)

    def _needed_rows(self) -> NeededRows:
        costs = fetch_costs.measure(self.grid, self.column) if self.sparsity_aware == "auto" else None
        height = self.output_layout.local_shape((self.shape[0], 0))[0]
        with self.grid.world.together():
            blocks = dict(zip(self.stages, map(sp.csr_array, self._read()), strict=True))
        return NeededRows(self.grid, self.column, blocks, height, np.diff(self.col_parts), self.dtype, costs)

    def _whole_blocks(self) -> WholeBlocks:
        panels = self._panels()
        return WholeBlocks(self.grid, self.column, self.stages, self.col_parts, panels, lambda cut: (
            load(self.grid, self.source, self.windows) if panels == 1
            else pack(self.grid, self.dtype, lambda: cut(self._read()))
        ))  # fmt: skip

    def _panels(self) -> int:
        """Into how many panels a block of H is cut: nothing can hide the product with the last one to arrive,
        so it should be small; but each costs a pass over the product's rows, which only blocks with many
        non-zeros per row are worth.
        """
        if self.column.size == 1:
            return 1
        nonzeros = getattr(self.source, "nnz", None)  # of all of A; a source that knows need not be read twice
        if nonzeros is None:
            with self.grid.world.together():
                nonzeros = sum(A_ij.nnz for A_ij in self._read())
            nonzeros = sum(self.grid.world.gather_objects(nonzeros))
        per_row = nonzeros / max(self.shape[0] * self.column.size, 1)
        return max(min(int(per_row / TUNING.panel_nonzeros), TUNING.most_panels), 1)


class WholeBlocks:
    """The blocks A_ij of a block row, with the blocks H_j whole, broadcast one after another in panels.

    Args:
        comm: the ranks that share H; stages: the blocks j; parts: of the rows of H.
        panels: how many a block is cut into.
        make: given a function that cuts blocks alike, the CSR blocks of all stages.
    """

    def __init__(
        self, grid: Grid, comm: Comm, stages: Sequence[int], parts: np.ndarray, panels: int,
        make: Callable[[Callable[[Iterable[Any]], Iterable[Any]]], list[CSR]],
    ) -> None:  # fmt: skip
        self.grid, self.comm, self.panels = grid, comm, panels
        heights = np.diff(parts).tolist()
        self.rows = [slice(*cut) for j in stages for cut in self._cuts(heights[j])]
        self.roots = [j for j in stages for _ in range(panels)]
        self.turns = upstream(comm, self.roots)
        blocks = make(self._cut)
        self.blocks = [blocks[turn] for turn in self.turns]

    def __len__(self) -> int:
        """How many pairs :meth:`with_rows_of` gives."""
        return len(self.blocks)

    def with_rows_of(self, H: Array) -> Iterator[tuple[CSR, Array]]:
        """Pairs of which the products add up to the block row's; own panels come first. Collective."""
        shapes = [(rows.stop - rows.start, H.shape[1]) for rows in self.rows]
        own = lambda stage: H[self.rows[stage]]  # noqa: E731
        panels = broadcast(
            self.grid, self.comm, self.roots, own, shapes, H.dtype, self.turns, self.panels
        )
        return zip(self.blocks, panels, strict=True)

    def _cuts(self, height: int) -> Iterable[tuple[int, int]]:
        return pairwise(partition(height, self.panels).tolist())

    def _cut(self, blocks: Iterable[Any]) -> Iterable[Any]:
        """The columns of blocks that belong to each panel."""
        if self.panels == 1:
            return blocks
        return (A_ij[:, first:last] for A_ij in blocks for first, last in self._cuts(A_ij.shape[1]))


class NeededRows:
    """The blocks A_ij of a block row, with only those rows of H_j that they read (sparsity-aware paper, section 4).

    The diagonal block is multiplied while rows travel, the others, with their columns renumbered to where rows
    arrive, in groups of ranks.

    Args:
        comm: the ranks that share H; rank j holds ``heights[j]`` rows of it.
        blocks: A_ij by j, of which the one of this rank itself needs no communication. Ranks may hold blocks of
            different j, or none.
        height: rows of the block row.
        costs: what decides whether to fetch all rows of a rank instead of the needed ones; None: never.

    Attributes:
        rows: the rows that are fetched: NnzCols(i, j) of rank j, unless the costs said otherwise.
        groups: (blocks with renumbered columns, the ranks that send their rows, where those lie).
    """

    def __init__(
        self, grid: Grid, comm: Comm, blocks: dict[int, sp.csr_array], height: int, heights: np.ndarray,
        dtype: Any, costs: fetch_costs.Costs | None,
    ) -> None:  # fmt: skip
        self.grid = grid
        with grid.world.together():
            own = blocks.pop(comm.rank, None)
            self.diagonal = None if own is None else CSR.from_scipy(own, grid.backend, dtype)
            peers = [j for j in after(comm) if j in blocks and blocks[j].nnz]
            columns = {j: np.unique(blocks[j].indices).astype(np.int64) for j in peers}  # NnzCols(i, j)
            needed = {
                j: np.arange(heights[j]) if costs and costs.whole_is_cheaper(columns[j], heights[j]) else columns[j]
                for j in peers
            }
        self.rows = Rows(grid, comm, needed)
        with grid.world.together():
            per_row = sum(blocks[j].nnz for j in peers) / max(height, 1)
            self.groups = []
            for ranks in in_groups({j: columns[j].size for j in peers}, per_row):
                compact = [keep_columns(blocks.pop(j), needed[j]) for j in ranks]
                place = slice(self.rows.places[ranks[0]].start, self.rows.places[ranks[-1]].stop)
                matrix = CSR.from_scipy(sp.hstack(compact, format="csr"), grid.backend, dtype)
                self.groups.append((matrix, ranks, place))
            if not len(self):
                nothing = CSR.from_scipy(sp.csr_array((height, 0)), grid.backend, dtype)
                self.groups.append((nothing, [], slice(0, 0)))

    def __len__(self) -> int:
        """How many pairs :meth:`with_rows_of` gives, at least one."""
        return len(self.groups) + (self.diagonal is not None)

    def with_rows_of(self, H: Array) -> Iterator[tuple[CSR, Array]]:
        """Pairs of which the products add up to the block row's. Collective.

        Args:
            H: this rank's block, C-contiguous; must stay as it is until the pairs are through.
        """
        received = self._room(H)
        with self.rows.fetch(H, received) as arriving:
            if self.diagonal is not None:
                with arriving.driven():
                    yield self.diagonal, H
            for A_ij, ranks, place in self.groups:
                arriving.wait(ranks)
                with arriving.driven():
                    yield A_ij, received[place]

    def with_sums_in(self, F: Array) -> Iterator[tuple[CSR, Array]]:
        """The reverse: pairs (A_ijᵀ, C), for the caller to make the product of A_ijᵀ with its G_i in C. What
        becomes of all these products is summed in ``F``, this rank's block, which is left alone where no rank
        multiplies blocks of its columns. Collective.
        """
        contributions = self._room(F)
        diagonal, groups = self._transposed
        work = [(ranks, (At_ij, contributions[place])) for At_ij, ranks, place in groups]
        work += [([], (diagonal, F))] if diagonal is not None else []
        return self.rows.add_back(contributions, F, work)

    @cached_property
    def _transposed(self) -> tuple[CSR | None, list[tuple[CSR, list[int], slice]]]:
        """The diagonal block and the groups, the first to be sent first."""
        with self.grid.world.together():
            diagonal = None if self.diagonal is None else self.diagonal.transposed(self.grid.backend)
            return diagonal, [
                (A_ij.transposed(self.grid.backend), ranks[::-1], place)
                for A_ij, ranks, place in reversed(self.groups)
            ]
        raise AssertionError("unreachable: together() raises")

    def _room(self, like: Array) -> Array:
        return self.grid.workspace.take("rows received", (self.rows.received, like.shape[1]), like.dtype)


def in_groups(columns: dict[int, int], nonzeros: float) -> list[list[int]]:
    """Which ranks' rows are multiplied together, so that the first to come are while others travel. Each group
    costs a pass over the product, which only many non-zeros per row are worth.

    Args:
        columns: by rank, how many its block has, in the order in which they come; nonzeros: per row of them
            together.
    """
    if not columns:
        return []
    number = max(min(int(nonzeros / TUNING.group_nonzeros), TUNING.most_groups, len(columns)), 1)
    sizes = np.array(list(columns.values()))
    group = ((np.cumsum(sizes) - sizes / 2) * number / sizes.sum()).astype(int)
    return [[j for j, own in zip(columns, group, strict=True) if own == k] for k in dict.fromkeys(group)]

"""What the algorithms that cut matrices in block rows have in common: layouts, and which blocks of A and Aᵀ a rank holds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.algorithms.dense import ReplicatedWeights
from distgnn.algorithms.panels import broadcast
from distgnn.grid import Grid
from distgnn.layout import Cut, Layout, as_partition, block, partition
from distgnn.matrix import CSR, BlockSource, DistDense, DistSparse
from distgnn.relay import upstream

#: Non-zeros that a row of A has in the columns of one panel at least, where the rows of a rank are cut into several panels.
PANEL_NONZEROS = 16
MOST_PIECES = 4


class BlockRows(DistSparse):
    """``A`` and ``H`` in block rows over the axis ``rows``; a rank multiplies the column blocks of its ``stages``, in the order
    in which their panels of ``H`` reach it.

    A directed graph's Aᵀ is held in block rows too, from its first use on (CAGNET Table II); a symmetric one is its own adjoint.

    Args:
        grid: has the axis ``rows``.
        source: gives the blocks of A.
        row_parts, col_parts: partition vectors of A's rows and columns into as many blocks as ``rows`` has; default even.
    """

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: np.ndarray | None = None, col_parts: np.ndarray | None = None
    ) -> None:
        self._place(grid, source)
        parts = grid.shape["rows"]
        self.row_parts = as_partition(row_parts, self.shape[0], parts)
        self.col_parts = as_partition(col_parts, self.shape[1], parts)
        self.output_layout = Layout(grid, Cut(("rows",), self.row_parts), Cut())
        self.input_layout = Layout(grid, Cut(("rows",), self.col_parts), Cut())
        self.dense = ReplicatedWeights(self.output_layout)
        self.column = grid.along("rows")
        self.stages = self._stages(parts)
        rows = self.output_layout.row_range
        with grid.world.together():
            blocks = [source.block(rows, block(self.col_parts, j)) for j in self.stages]
        self.pieces = self._choose_pieces(sum(A_ij.nnz for A_ij in blocks))
        self.roots = [j for j in self.stages for _ in range(self.pieces)]
        self.turns = upstream(self.column, self.roots)
        self.A = self._load(lambda: self._in_turns(blocks))

    @cached_property
    def At(self) -> list[CSR]:
        """This rank's stages of its block row of Aᵀ."""
        cols = self.input_layout.row_range
        return self._load(lambda: self._in_turns([self.source.block(block(self.row_parts, j), cols).T for j in self.stages]))

    def _choose_pieces(self, nonzeros: int) -> int:
        """Into how many panels the rows of one rank are cut: nothing can hide the product with the last one to arrive, so it
        should be small; but each costs a pass over the product's rows, which only blocks with many non-zeros per row are worth.
        """
        per_row = sum(self.grid.world.gather_objects(nonzeros)) / max(self.shape[0] * self.column.size, 1)
        return max(min(int(per_row / PANEL_NONZEROS), MOST_PIECES), 1) if self.column.size > 1 else 1

    def _in_turns(self, blocks: list[Any]) -> list[Any]:
        """The blocks cut into pieces, in the order in which this rank multiplies them."""
        if self.pieces > 1:
            cuts = [pairwise(partition(A_ij.shape[1], self.pieces)) for A_ij in blocks]
            columns = map(sp.csc_array, blocks)
            blocks = [A_j[:, first:last] for A_j, cut in zip(columns, cuts, strict=True) for first, last in cut]
        return [blocks[turn] for turn in self.turns]

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        return self._block_row(self.A, H, self._result(self.output_layout, (self.shape[0], H.shape[1]), out))

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        return self._block_row(self.At, G, self._result(self.input_layout, (self.shape[1], G.shape[1]), out))

    def _broadcast(self, H: DistDense) -> Iterator[Any]:
        """The panels of ``H`` of this rank's stages, broadcast one after another; the own ones come first."""
        heights = np.diff(H.layout.rows.vector(self.grid, H.shape[0])).tolist()
        rows = [slice(*cut) for j in self.stages for cut in pairwise(partition(heights[j], self.pieces).tolist())]
        shapes = [(part.stop - part.start, H.block.shape[1]) for part in rows]
        own = lambda stage: H.block[rows[stage]]  # noqa: E731
        return broadcast(self.grid, self.column, self.roots, own, shapes, H.dtype, self.turns, self.pieces)

    @abstractmethod
    def _stages(self, parts: int) -> range:
        """The column blocks this rank multiplies; the same for all ranks of a process column."""

    @abstractmethod
    def _block_row(self, blocks: list[CSR], H: DistDense, T: DistDense) -> DistDense:
        """This rank's rows of the product into ``T``, whatever it holds."""

"""What the algorithms that cut matrices in block rows have in common: layouts, and which blocks of A and Aᵀ a rank holds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from distgnn.algorithms.dense import ReplicatedWeights
from distgnn.algorithms.panels import broadcast
from distgnn.grid import Grid
from distgnn.layout import Cut, Layout, as_partition, block
from distgnn.matrix import CSR, BlockSource, DistDense, DistSparse
from distgnn.relay import upstream


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
        mine = self._stages(parts)
        self.turns = upstream(self.column, mine)
        self.stages = [mine[turn] for turn in self.turns]
        rows = self.output_layout.row_range
        self.A = self._load(lambda: [source.block(rows, block(self.col_parts, j)) for j in self.stages])

    @cached_property
    def At(self) -> list[CSR]:
        """This rank's stages of its block row of Aᵀ."""
        cols = self.input_layout.row_range
        return self._load(lambda: [self.source.block(block(self.row_parts, j), cols).T for j in self.stages])

    def multiply(self, H: DistDense, out: DistDense | None = None) -> DistDense:
        return self._block_row(self.A, H, self._result(self.output_layout, (self.shape[0], H.shape[1]), out))

    def multiply_adjoint(self, G: DistDense, out: DistDense | None = None) -> DistDense:
        return self._block_row(self.At, G, self._result(self.input_layout, (self.shape[1], G.shape[1]), out))

    def _broadcast(self, H: DistDense) -> Iterator[Any]:
        """The row blocks of ``H`` of this rank's stages, broadcast one after another; the own one comes first."""
        heights = np.diff(H.layout.rows.vector(self.grid, H.shape[0])).tolist()
        roots = sorted(self.stages)
        shapes = [(heights[j], H.block.shape[1]) for j in roots]
        return broadcast(self.grid, self.column, roots, lambda stage: H.block, shapes, H.dtype, self.turns)

    @abstractmethod
    def _stages(self, parts: int) -> range:
        """The column blocks this rank multiplies; the same for all ranks of a process column."""

    @abstractmethod
    def _block_row(self, blocks: list[CSR], H: DistDense, T: DistDense) -> DistDense:
        """This rank's rows of the product into ``T``, whatever it holds."""

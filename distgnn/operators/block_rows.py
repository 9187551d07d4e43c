"""What the algorithms that cut matrices in block rows have in common: layouts, which blocks of A and Aᵀ a
rank holds, and how the blocks of H reach it, whole or only the rows it reads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm import packing
from distgnn.comm.grid import Grid
from distgnn.comm.halo import Halo
from distgnn.comm.packing import Costs
from distgnn.comm.panels import broadcast
from distgnn.comm.relay import upstream
from distgnn.layout import Cut, Layout, Range, as_partition, block, partition
from distgnn.operators.dense import DistDense
from distgnn.operators.loading import load, pack
from distgnn.operators.operator import DistSparse
from distgnn.operators.sources import BlockSource
from distgnn.operators.weights import ReplicatedWeights


class BlockRows(DistSparse):
    """``A`` and ``H`` in block rows over the axis ``rows``; a rank multiplies the column blocks of its
    ``stages``.

    A directed graph's Aᵀ is held in block rows too, from its first use on (CAGNET Table II); a symmetric one
    is its own adjoint.

    Args:
        grid: has the axis ``rows``.
        source: gives the blocks of A.
        row_parts, col_parts: partition vectors of A's rows and columns into as many blocks as ``rows`` has;
            default even.

    Attributes:
        column: the ranks that share ``H``.
        stages: the column blocks this rank multiplies.
        A, At: its block row of A and, made when asked for the first time, of Aᵀ, as ``_block_row`` takes
            them.
    """

    A: Any
    At: Any

    def __init__(
        self,
        grid: Grid,
        source: BlockSource,
        row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None,
    ) -> None:
        super().__init__(grid, source)
        parts = grid.shape["rows"]
        self.row_parts = as_partition(row_parts, self.shape[0], parts)
        self.col_parts = as_partition(col_parts, self.shape[1], parts)
        self.output_layout = Layout(grid, Cut(("rows",), self.row_parts), Cut())
        self.input_layout = Layout(grid, Cut(("rows",), self.col_parts), Cut())
        self.weights = ReplicatedWeights(self.output_layout)
        self.column = grid.along("rows")
        self.stages = self.share(grid, parts)

    def _multiply(self, H: DistDense, T: DistDense) -> None:
        self._block_row(self.A, H, T)

    def _multiply_adjoint(self, G: DistDense, F: DistDense) -> None:
        self._block_row(self.At, G, F)

    def _read(self) -> Iterator[Any]:
        """The blocks of A of this rank's stages, one after another. Local to a rank."""
        return (self.source.block(*window) for window in self._windows())

    def _read_transposed(self) -> Iterator[Any]:
        """The same of Aᵀ."""
        cols = self.input_layout.row_range
        return (self.source.block(block(self.row_parts, j), cols).T for j in self.stages)

    def _windows(self) -> list[tuple[Range, Range]]:
        """Where the blocks of A of this rank's stages are: rows and columns."""
        rows = self.output_layout.row_range
        return [(rows, block(self.col_parts, j)) for j in self.stages]

    @staticmethod
    @abstractmethod
    def share(grid: Grid, parts: int) -> range:
        """The column blocks this rank multiplies; the same for all ranks of a process column."""

    @abstractmethod
    def _block_row(self, held: Any, H: DistDense, T: DistDense) -> DistDense:
        """This rank's rows of the product into ``T``, whatever it holds."""


class BroadcastRows(BlockRows):
    """Block rows whose products broadcast the blocks of ``H`` whole, cut into panels, and multiply them as
    they reach a rank.
    """

    def __init__(
        self,
        grid: Grid,
        source: BlockSource,
        row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None,
    ) -> None:
        super().__init__(grid, source, row_parts, col_parts)
        self.pieces = self._choose_pieces()
        self.roots = [j for j in self.stages for _ in range(self.pieces)]
        self.turns = upstream(self.column, self.roots)
        whole = self.pieces == 1
        self.A = self._in_turns(
            load(grid, self.source, self._windows())
            if whole
            else pack(grid, self.dtype, lambda: self._cut(self._read()))
        )

    @cached_property
    def At(self) -> list[CSR]:
        return self._in_turns(pack(self.grid, self.dtype, lambda: self._cut(self._read_transposed())))

    def _choose_pieces(self) -> int:
        """Into how many panels the rows of one rank are cut: nothing can hide the product with the last one
        to arrive, so it should be small; but each costs a pass over the product's rows, which only blocks
        with many non-zeros per row are worth.
        """
        if self.column.size == 1:
            return 1
        per_row = self._nonzeros() / max(self.shape[0] * self.column.size, 1)
        return max(min(int(per_row / TUNING.panel_nonzeros), TUNING.most_panels), 1)

    def _nonzeros(self) -> int:
        """Of all of A. Who can say so need not read it before it is known how it will be held."""
        known = getattr(self.source, "nnz", None)
        with self.grid.world.together():
            own = sum(A_ij.nnz for A_ij in self._read()) if known is None else 0
        return sum(self.grid.world.gather_objects(own)) if known is None else known

    def _cut(self, blocks: Iterable[Any]) -> Iterator[Any]:
        """The blocks cut into pieces, for those who take one after another and need not hold them all."""
        for A_ij in blocks:
            if self.pieces == 1:
                yield A_ij
                continue
            columns = sp.csc_array(A_ij)
            for first, last in pairwise(partition(A_ij.shape[1], self.pieces).tolist()):
                yield columns[:, first:last]
            del columns

    def _in_turns(self, blocks: list[CSR]) -> list[CSR]:
        """In the order in which this rank multiplies them."""
        return [blocks[turn] for turn in self.turns]

    def _broadcast(self, H: DistDense) -> Iterator[Any]:
        """The panels of ``H`` of this rank's stages, broadcast one after another; the own ones come first."""
        heights = np.diff(H.layout.rows.vector(self.grid, H.shape[0])).tolist()
        rows = [
            slice(*cut) for j in self.stages for cut in pairwise(partition(heights[j], self.pieces).tolist())
        ]
        shapes = [(part.stop - part.start, H.block.shape[1]) for part in rows]
        own = lambda stage: H.block[rows[stage]]  # noqa: E731
        return broadcast(self.grid, self.column, self.roots, own, shapes, H.dtype, self.turns, self.pieces)


class SparsityAwareRows(BlockRows):
    """Block rows whose products fetch only the rows of ``H`` that they read (see ``halo.py``).

    Cost per product and rank: Σ_{j≠i} NnzCols(i, j) f words received, j over its stages, where NnzCols(i, j)
    is the number of columns of A_ij that are not empty. At construction, and at the first product with a
    directed graph's Aᵀ, an index for each of those rows.

    Args:
        grid, source, row_parts, col_parts: as above.
        auto: fetch a rank's whole block where that is estimated to be faster (see ``packing.py``). More
            words, the same bits.
    """

    def __init__(
        self, grid: Grid, source: BlockSource, row_parts: np.ndarray | None = None,
        col_parts: np.ndarray | None = None, auto: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(grid, source, row_parts, col_parts)
        self.auto = auto
        self.A = self._inspect(self._read, self.output_layout, self.col_parts)

    @cached_property
    def At(self) -> Halo:
        return self._inspect(self._read_transposed, self.input_layout, self.row_parts)

    @cached_property
    def _costs(self) -> Costs:
        return packing.measure(self.grid, self.column)

    def _inspect(self, read: Callable[[], Iterator[Any]], rows: Layout, inner_parts: np.ndarray) -> Halo:
        """The plan of the products with the blocks of this rank's stages. Collective."""
        with self.grid.world.together():
            blocks = dict(zip(self.stages, read(), strict=True))
        first, last = rows.row_range
        whole = (self._costs.whole_is_cheaper,) if self.auto else ()
        return Halo(
            self.grid, self.column, last - first, blocks, np.diff(inner_parts).tolist(), self.dtype, *whole
        )

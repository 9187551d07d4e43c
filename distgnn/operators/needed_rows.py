"""Needed rows: the blocks of a block row of A, with the rows of H that they read (sparsity-aware paper)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm.fetch_costs import FetchCosts
from distgnn.comm.group import Comm
from distgnn.comm.node_rows import by_nearness, rows
from distgnn.local.csr_rows import columns_read, keep_columns, side_by_side
from distgnn.operators.loading import Holders
from distgnn.operators.prices import Price, direct

Array = Any


class NeededRows:
    """The blocks A_ij of a block row, with the rows of H_j that they read (sparsity-aware paper, section 4).

    The diagonal block is multiplied while rows travel; the others in groups of ranks, their columns
    renumbered to where the rows arrive.

    Args:
        comm: the ranks that share H; rank j holds ``heights[j]`` rows of it.
        holders: the ranks that are given the same blocks; blocks: A_ij by j, or none.
        costs: what may choose all rows of a rank instead of the needed ones.
        matrix: the ledger's name for H.

    Attributes:
        rows: what is fetched: rows NnzCols(i, j) of rank j, unless the costs said otherwise.
        groups: (blocks with renumbered columns, the ranks that send their rows, where those lie).
    """

    def __init__(
        self, holders: Holders, comm: Comm, blocks: dict[int, sp.csr_array], heights: np.ndarray, dtype: Any,
        costs: FetchCosts | None, matrix: str = "H",
    ) -> None:  # fmt: skip
        self.grid, self.comm, self.holders, self.matrix = holders.grid, comm, holders, matrix
        with self.grid.world.together():
            own = blocks.pop(comm.rank, None)
            peers = [j for j in by_nearness(comm) if j in blocks and blocks[j].nnz]
            columns = {j: columns_read(blocks[j]) for j in peers}  # NnzCols(i, j)
            needed = {j: costs.choose(columns[j], heights[j]) for j in peers} if costs else columns
        self.rows, places = rows(self.grid, comm, needed), []
        per_row = sum(blocks[j].nnz / max(blocks[j].shape[0], 1) for j in peers)
        groups = in_groups({j: columns[j].size for j in peers}, per_row)
        for ranks in groups:
            places.append(slice(self.rows.places[ranks[0]].start, self.rows.places[ranks[-1]].stop))

        def make(on: Backend) -> list[CSR]:
            kept = ([keep_columns(blocks.pop(j), needed[j]) for j in ranks] for ranks in groups)
            given = chain([] if own is None else [own], map(side_by_side, kept))
            return [CSR.from_scipy(block, on, dtype) for block in given]

        made = holders.make(f"needed rows of {matrix}", make)
        self.diagonal = None if own is None else made.pop(0)
        self.groups = list(zip(made, groups, places, strict=True))

    @contextmanager
    def rows_of(self, H: Array) -> Iterator[Iterator[Array]]:
        """Give the rows of H that each block reads. ``H`` stays as it is. Collective."""
        with self._room(H) as received, self.rows.fetch(H, received, self.matrix, narrow=True) as arriving:
            yield self._arrived(H, received, arriving)

    def _arrived(self, H: Array, received: Array, arriving: Any) -> Iterator[Array]:
        if self.diagonal is not None:
            with arriving.driven():
                yield H
        for _, ranks, place in self.groups:
            arriving.wait(ranks)
            with arriving.driven():
                yield received[place]

    @contextmanager
    def sums_in(self, F: Array) -> Iterator[Iterator[Array]]:
        """Give room C for the caller to make A_ijᵀ G_i, for each block in :attr:`order`. Collective.

        The reverse of :meth:`rows_of`. At the end of the context, all ranks' products for this rank's block
        are summed in ``F``, which is left alone where nobody has blocks of its columns.
        """
        with self._room(F) as products:
            work = [(ranks[::-1], products[place]) for _, ranks, place in self.groups[::-1]]
            work += [([], F)] if self.diagonal is not None else []
            with self.rows.add_back(products, F, work) as rooms:
                yield rooms

    def price(self, width: int, written: bool) -> Price:
        """Price :meth:`rows_of`, or with ``written`` :meth:`sums_in`."""
        counts, matrix = self.rows.counts(back=written), "sums" if written else self.matrix
        return direct(self.comm, matrix, [count * width for count in counts])

    @property
    def order(self) -> list[int]:
        """The blocks in the order of :meth:`sums_in`: the groups in reverse, then the diagonal block."""
        own = int(self.diagonal is not None)
        return [*range(own, own + len(self.groups))[::-1], *range(own)]

    def transposes(self) -> list[CSR]:
        """List the transposes of the blocks, in :attr:`order`. Collective."""
        own = [] if self.diagonal is None else [self.diagonal]
        made = self.holders.transposed([*own, *(A_ij for A_ij, *_ in self.groups[::-1])])
        return [*made[len(own) :], *made[: len(own)]]

    def _room(self, like: Array) -> AbstractContextManager[Array]:
        return self.grid.workspace.lend((self.rows.received, like.shape[1]), like.dtype)


def in_groups(columns: dict[int, int], nonzeros: float) -> list[list[int]]:
    """Group the ranks whose rows are multiplied together, the first to come while others travel.

    Args:
        columns: of each rank's block, in the order in which they come; nonzeros: per row of all together.
    """
    if not columns:
        return []
    number = max(min(int(nonzeros / TUNING.group_nonzeros), TUNING.most_groups, len(columns)), 1)
    sizes = np.array(list(columns.values()))
    group = ((np.cumsum(sizes) - sizes / 2) * number / sizes.sum()).astype(int)
    return [[j for j, own in zip(columns, group, strict=True) if own == k] for k in dict.fromkeys(group)]

"""Joined blocks: the blocks of a block row of A that read other ranks' rows of H, side by side in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import CSR, column_blocks
from distgnn.comm.group import Comm
from distgnn.comm.panels import broadcast_at_once, summed_at_once
from distgnn.operators.loading import Holders, join_columns

Array = Any


class JoinedBlocks:
    """The blocks A_ij of a block row in two: the rank's own, and all others side by side.

    The own block is multiplied while the blocks H_j travel, and then the others at once: two products, which
    write Z and add to it, in place of one for each rank.

    Args:
        comm: the ranks that share H; stages: the blocks j; parts: partition vector of H's rows.
        holders: the ranks that hold the same blocks. blocks: A_ij by stage; the list is emptied.
        matrix: what the ledger calls H.

    Attributes:
        blocks: the own block, unless other process columns have it, and the joined ones, if there are any.
        rows: of each stage's block of H; roots: the rank that has it; turns: the stages, for all ranks alike.
        groups: the stages of each of ``blocks``.

    Extra memory: all blocks of H but the own one, in place of two. While blocks are joined, A twice.
    """

    def __init__(
        self, holders: Holders, comm: Comm, stages: Sequence[int], parts: np.ndarray, blocks: list[CSR],
        matrix: str,
    ) -> None:  # fmt: skip
        self.grid, self.comm, self.matrix = holders.grid, comm, matrix
        self.roots, self.turns = [*stages], range(len(stages))
        self.rows = [slice(0, int(parts[j + 1] - parts[j])) for j in stages]
        own = [[k] for k in self.turns if self.roots[k] == comm.rank]
        others = [k for k in self.turns if self.roots[k] != comm.rank]
        self.groups = [*own, others] if others else own
        given = [[blocks[k] for k in group] for group in self.groups]
        blocks.clear()
        several = [group for group in given if len(group) > 1]  # a single block is in its place
        alike = Holders(self.grid, (holders.key, comm.rank))  # ranks without rows have the same windows
        made = alike.make("joined", lambda on: [join_columns(group, on, thin=True) for group in several])
        self.blocks = [made.pop() if len(group) > 1 else group[0] for group in given]

    def rows_of(self, H: Array) -> AbstractContextManager[Iterator[Array]]:
        """Give the rows of H that each block reads. Collective."""
        return broadcast_at_once(self.grid, self.comm, self.matrix, self.roots, *self._panels(H))

    def sums_in(self, F: Array) -> AbstractContextManager[Iterator[Array]]:
        """Give room for what each block's transpose makes, to be summed over the ranks in F. Collective."""
        return summed_at_once(self.grid, self.comm, self.roots, *self._panels(F))

    def _panels(self, X: Array) -> tuple[Any, list[tuple[int, int]], Any]:
        return lambda stage: X[self.rows[stage]], [(cut.stop, X.shape[1]) for cut in self.rows], X.dtype

    def by_stage(self) -> list[sp.csr_array]:
        """List the blocks A_ij in SciPy's form, of the joined ones copies."""
        by_stage: dict[int, sp.csr_array] = {}
        for group, block in zip(self.groups, self.blocks, strict=True):
            ends = [*accumulate((self.rows[k].stop for k in group), initial=0)]
            by_stage |= zip(group, column_blocks(block.to_scipy(), ends), strict=True)
        return [by_stage[k] for k in self.turns]

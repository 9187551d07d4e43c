"""The halo of a block row: the rows of other ranks' blocks of H that its products read (sparsity-aware paper,
sections 4.1, 4.2).

Inspector and executor. The inspector looks once, at construction, which columns of the off-diagonal blocks
A_ij are not empty, ``NnzCols(i, j)``, tells every rank j which rows of its H those are, and renumbers them to
where the rows will lie in one compact buffer of those received. The executor then has nothing to search: it
packs rows, sends them, multiplies the diagonal block while they travel, and multiplies what has come.

Sums are made in an order that does not depend on when rows arrive, so that results are the same to the last
bit with and without overlap, and whichever rows beside the needed ones are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm.exchange import Exchange
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm


class Halo:
    """A rank's block row of A, ready to be multiplied by a matrix that is cut over ``comm`` in block rows.
    Collective.

    Args:
        grid: where the blocks live; says whether rows travel while others are multiplied.
        comm: the ranks that share the dense matrix; rank r holds its block r.
        height: rows of the block row.
        blocks: SciPy blocks A_ij by j, of which the one of this rank itself needs no communication. Ranks may
            hold blocks of different j, or none.
        heights: rows of the dense matrix that each rank holds.
        dtype: of the values.
        whole: ``whole(rows, height)`` says whether to ask for all of a rank's ``height`` rows instead of
            these; default: never.

    Attributes:
        needed: the rows asked for, by rank, rising: NnzCols(i, j) unless ``whole`` said otherwise.
        received: how many rows come in a product.

    Cost: one all-to-allv of as many indices as rows come in a product.
    """

    def __init__(
        self, grid: Grid, comm: Comm, height: int, blocks: Mapping[int, Any], heights: Sequence[int],
        dtype: Any, whole: Callable[[np.ndarray, int], bool] = lambda rows, height: False,
    ) -> None:  # fmt: skip
        self.grid, self.comm, self.dtype = grid, comm, np.dtype(dtype)
        with grid.world.together():
            csr = {j: sp.csr_array(A_ij) for j, A_ij in blocks.items()}
            own = csr.pop(comm.rank, None)
            # In the order in which an exchange brings what they send.
            peers = sorted((j for j in csr if csr[j].nnz), key=lambda j: (j - comm.rank) % comm.size)
            columns = {j: np.unique(csr[j].indices).astype(np.int64) for j in peers}
            self.needed = {
                j: np.arange(heights[j]) if whole(columns[j], heights[j]) else columns[j] for j in peers
            }
            compact = [renumber(csr[j], self.needed[j]) for j in peers]
            bounds = np.cumsum([0, *(self.needed[j].size for j in peers)]).tolist()
            self.received = bounds[-1]
            self.places = [(j, slice(*bounds[k : k + 2])) for k, j in enumerate(peers)]
            self.diagonal = None if own is None else CSR.from_scipy(own, grid.backend, dtype)
            groups = in_groups(
                [columns[j].size for j in peers], sum(A_ij.nnz for A_ij in compact) / max(height, 1)
            )
            self.groups = []  # (block with renumbered columns, the ranks that send its rows, where those lie)
            for first, last in groups if peers or own is not None else [(0, 0)]:
                block = (
                    sp.hstack(compact[first:last], format="csr")
                    if last > first
                    else sp.csr_array((height, 0), dtype=dtype)
                )
                place = slice(bounds[first], bounds[last])
                self.groups.append((CSR.from_scipy(block, grid.backend, dtype), peers[first:last], place))
        self._tell_peers()

    def _tell_peers(self) -> None:
        """Send every rank the list of its rows that this one needs; get those that others need of this one."""
        xp, comm = self.grid.backend, self.comm
        counts = comm.swap_objects([self.needed[j].size if j in self.needed else 0 for j in range(comm.size)])
        asked = {j: xp.empty((count,), np.int64) for j, count in enumerate(counts) if count}
        with Exchange(comm, list(asked.items())) as exchange:
            for j, rows in self.needed.items():
                exchange.send(xp.asarray(rows), j)
            exchange.wait(asked)
        # The rank that waits for this one first is sent to first.
        order = sorted(asked, key=lambda j: (comm.rank - j) % comm.size)
        # (rank, its rows here, where they are packed)
        self.asked: list[tuple[int, slice | Any, slice | None]] = []
        self.packed = 0
        for j in order:
            run = contiguous(xp.to_host(asked[j]))
            place = None if run is not None else slice(self.packed, self.packed + asked[j].size)
            self.asked.append((j, asked[j] if run is None else run, place))
            self.packed += 0 if place is None else asked[j].size

    @property
    def sent(self) -> int:
        """How many rows this rank sends in a product."""
        return sum(
            rows.stop - rows.start if isinstance(rows, slice) else rows.size for _, rows, _ in self.asked
        )

    @property
    def pairs(self) -> int:
        """How many :meth:`blocks` there are."""
        return len(self.groups) + (self.diagonal is not None)

    def blocks(self, H: Any) -> Iterator[tuple[CSR, Any]]:
        """Pairs of blocks of A and of the rows of the dense matrix to multiply by; the sum of their products
        is the block row's. At least one. Collective over ``comm``.

        Args:
            H: this rank's block (its height, f), C-contiguous; must stay as it is until the pairs are
                through.

        Cost: f words per row of ``needed`` received, in one all-to-allv.
        """
        width = H.shape[1]
        received = self.grid.workspace.take("halo received", (self.received, width), self.dtype)
        packed = self.grid.workspace.take("halo sent", (self.packed, width), self.dtype)
        with Exchange(
            self.comm, [(j, received[place]) for j, place in self.places], self.grid.overlap
        ) as exchange:
            for j, rows, place in self.asked:
                exchange.send(H[rows] if place is None else local.gather_rows(H, rows, packed[place]), j)
            if self.diagonal is not None:
                with exchange.driven():
                    yield self.diagonal, H
            for A_ij, sources, place in self.groups:
                exchange.wait(sources)
                with exchange.driven():
                    yield A_ij, received[place]


def in_groups(columns: Sequence[int], nonzeros: float) -> list[tuple[int, int]]:
    """Which ranks' rows are multiplied together, as (first, last + 1), so that the first to come are while
    others travel. Each group costs a pass over the product, which only many non-zeros per row are worth.

    Args:
        columns: how many each rank's block has, in the order in which they come; nonzeros: per row of them
            together.
    """
    if not columns:
        return []
    number = max(min(int(nonzeros / TUNING.group_nonzeros), TUNING.most_groups, len(columns)), 1)
    middles = np.cumsum(columns) - np.asarray(columns) / 2
    group = (middles * number / sum(columns)).astype(int)
    bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(columns)]
    return list(pairwise(bounds))


def renumber(A: sp.csr_array, columns: np.ndarray) -> sp.csr_array:
    """The block with only these (rising) columns, outside of which it is empty."""
    if columns.size == A.shape[1]:
        return A
    number = np.zeros(A.shape[1], A.indices.dtype)
    number[columns] = np.arange(columns.size)
    return sp.csr_array((A.data, number[A.indices], A.indptr), shape=(A.shape[0], columns.size))


def contiguous(rows: np.ndarray) -> slice | None:
    """Rising row numbers as a slice, if that is what they are."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] + 1 == rows.size else None

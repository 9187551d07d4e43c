"""Covered rows: a sparse product in which a pair of ranks exchanges a minimum vertex cover of its block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn import local
from distgnn.arrays.csr import index_type
from distgnn.arrays.kernels import Functions, Kernels, Table
from distgnn.comm.group import Comm
from distgnn.comm.rows import all_to_all
from distgnn.local.covers import split
from distgnn.operators.loading import Holders
from distgnn.operators.needed_rows import NeededRows

Array = Any


class CoveredRows:
    """The blocks A_ij of a block row, of which as few rows travel as can.

    These are rows of H_j that are fetched, and rows of partial products that rank j makes of its rows of H
    and sends.

    ``fetched`` has the entries whose columns are covered, and the own block; ``partial`` has, transposed, the
    entries of this rank's columns that other ranks left to it. Forward, `fetched` fetches and `partial` sums;
    in the adjoint `partial` fetches and `fetched` sums.

    Args:
        holders: the ranks that are given the same blocks; comm: the ranks that share H; blocks: A_ij by j;
            heights: rows of H by rank; rows: rows of Z by rank.

    Cost of a product, either way: cover(A_ij) f words of each other rank j, in two all-to-allvs. At
    construction, 3 words per entry that another rank multiplies.
    """

    def __init__(
        self, holders: Holders, comm: Comm, blocks: dict[int, sp.csr_array], heights: np.ndarray,
        rows: np.ndarray, dtype: Any,
    ) -> None:  # fmt: skip
        with holders.grid.world.together():
            away = {j: split(A_ij) for j, A_ij in blocks.items() if j != comm.rank}
            near = {j: away[j][0] if j in away else A_ij for j, A_ij in blocks.items()}
        left = {j: pair[1] for j, pair in away.items() if pair[1].nnz}
        taken = _exchanged(comm, left, rows, int(heights[comm.rank]), dtype)
        self.grid = holders.grid
        self.fetched = NeededRows(holders, comm, near, heights, dtype, None, "H")
        self.partial = NeededRows(holders, comm, taken, rows, dtype, None, "G")

    def __len__(self) -> int:
        """Return the number of pairs that :meth:`rows_of` gives."""
        return len(self.fetched)

    def prepare(self, adjoint: bool) -> None:
        """Make the blocks of the products that are summed. Collective."""
        (self.fetched if adjoint else self.partial).prepare(adjoint=True)

    def begin_sum(self, H: Array, Z: Array) -> bool:
        """Set Z to the partial products that other ranks make for this one. Collective.

        Z_i = Σ_j A'_ij H_j with the entries left to rank j. Return True: products are added to Z.
        """
        Z[...] = 0
        read = self.grid.rounded(H)
        with self.partial.sums_in(Z) as pairs:
            for A_ji, C in pairs:
                local.spmm(A_ji, read, out=C)
        return True

    @contextmanager
    def rows_of(self, H: Array) -> Iterator[Any]:
        """Give pairs of which the products add up to the rest of the block row's. Collective."""
        with self.fetched.rows_of(H) as pairs:
            yield pairs

    @contextmanager
    def sums_in(self, F: Array) -> Iterator[Any]:
        """Give pairs (A_ijᵀ, C), for the caller to make A_ijᵀ G_i in C, which is summed in F. Collective."""
        with self.fetched.sums_in(F) as pairs:
            yield pairs

    def end_sum(self, G: Array, F: Array) -> None:
        """Add the products of the entries that other ranks left to this one: F_j += Σ_i A'_ijᵀ G_i.

        Collective.
        """
        with self.partial.rows_of(G) as pairs:
            for At_ij, G_i in pairs:
                local.spmm(At_ij, self.grid.rounded(G_i), out=F, accumulate=True)


def _exchanged(
    comm: Comm, left: dict[int, sp.csr_array], rows: np.ndarray, height: int, dtype: Any
) -> dict[int, sp.csr_array]:  # fmt: skip
    """Send each block to the rank of its columns; return the transposes, by sender. Collective."""
    return KERNELS.on(comm.backend, "exchanged")(comm, left, rows, height, dtype)


def _sent_as_coordinates(
    comm: Comm, left: dict[int, sp.csr_array], rows: np.ndarray, height: int, dtype: Any
) -> dict[int, sp.csr_array]:  # fmt: skip
    counts = comm.swap_objects([left[j].nnz if j in left else 0 for j in range(comm.size)])
    senders = {i: count for i, count in enumerate(counts) if count and i != comm.rank}
    kind, on = index_type(int(max(rows, default=0)), height), comm.backend
    parts: list[dict[int, Array]] = []
    for number, part in enumerate((kind, kind, dtype)):
        arrays = {j: on.asarray(_coordinates(A)[number], part) for j, A in left.items()}
        into = {i: on.empty((count,), part) for i, count in senders.items()}
        all_to_all(comm, arrays, into, "adjacency")
        parts.append({i: on.to_host(array) for i, array in into.items()})
    shapes = {i: (height, int(rows[i])) for i in senders}
    return {
        i: sp.csr_array((parts[2][i], (parts[1][i], parts[0][i])), shape=shape) for i, shape in shapes.items()
    }


def _coordinates(A: sp.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.indices, A.data


_ANYWHERE: Functions = {"exchanged": _sent_as_coordinates}
KERNELS = Table(numpy=[Kernels(_ANYWHERE)], cupy=[Kernels(_ANYWHERE)])

"""Covered rows: a sparse product in which a pair of ranks exchanges a minimum vertex cover of its block."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import index_type
from distgnn.arrays.kernels import Functions, Kernels, KernelTable
from distgnn.comm.group import Comm
from distgnn.comm.rows import all_to_all
from distgnn.local.covers import split
from distgnn.local.csr_rows import compact
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
            away = {j: tuple(map(compact, split(A_ij))) for j, A_ij in blocks.items() if j != comm.rank}
            near = {j: away[j][0] if j in away else A_ij for j, A_ij in blocks.items()}
        left = {j: pair[1] for j, pair in away.items() if pair[1].nnz}
        taken = _exchanged(comm, left, rows, int(heights[comm.rank]), dtype)
        self.fetched = NeededRows(holders, comm, near, heights, dtype, None, "H")
        self.partial = NeededRows(holders, comm, taken, rows, dtype, None, "G")


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
        i: compact(sp.csr_array((parts[2][i], (parts[1][i], parts[0][i])), shape=shape))
        for i, shape in shapes.items()
    }


def _coordinates(A: sp.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    entries = A.tocoo()
    return entries.row, entries.col, entries.data


_ANYWHERE: Functions = {"exchanged": _sent_as_coordinates}
KERNELS = KernelTable(numpy=[Kernels(_ANYWHERE)], cupy=[Kernels(_ANYWHERE)])

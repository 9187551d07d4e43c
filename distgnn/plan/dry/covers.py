"""Minimum vertex covers in dry runs: those of blocks that are known, and expected sizes of others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from distgnn.arrays.csr import index_type
from distgnn.comm.group import Comm
from distgnn.comm.rows import all_to_all
from distgnn.plan.dry.shapes import ShapeArray, ShapeMatrix

STEPS = 1000  # of the maximum's place; it is flat there


@cache
def expected(rows: int, columns: int, nonzeros: int) -> int:
    """Return the expected size of a minimum vertex cover of a block whose non-zeros lie anywhere in it.

    That is the size of a maximum matching of a large random bipartite graph, with Poisson degrees.

    Source: Bordenave, Lelarge and Salez, Matchings on infinite graphs, 2013, Theorem 2.
    """
    if not nonzeros:
        return 0
    a, b, t = nonzeros / rows, nonzeros / columns, np.linspace(0, 1, STEPS + 1)
    alone = np.exp(-b * t)  # the chance that a column has no row of those marked
    unmatched = np.exp(-a * alone) - a / b * (1 - alone - b * t * alone)
    return min(round(rows * (1 - float(unmatched.max()))), columns)  # t = 0: at most the rows, the non-zeros


@cache
def split(A: ShapeMatrix) -> tuple[ShapeMatrix, ShapeMatrix]:
    """Divide a block whose non-zeros lie anywhere by its expected cover, half columns and half rows."""
    count = expected(*A.shape, A.nnz)
    columns, nonzeros = -(-count // 2), A.nnz * -(-count // 2) // max(count, 1)
    fetched = replace(A, nnz=nonzeros, filled=(min(nonzeros, A.shape[0]), columns))
    rest = A.nnz - nonzeros
    return fetched, replace(A, nnz=rest, filled=(count - columns, min(rest, A.shape[1])))


def exchanged(
    comm: Comm, left: dict[int, Any], rows: np.ndarray, height: int, dtype: Any
) -> dict[int, Any]:  # fmt: skip
    """Give blocks to the ranks of their columns, charged as what travels. Collective.

    A rank that runs alone takes what others leave to it to be like what it leaves to them. So it gets as many
    rows of sums as among all ranks, also where it has no columns, and there multiplies more.
    """
    given = comm.swap_objects([left.get(j) for j in range(comm.size)])
    taken = {i: A for i, A in enumerate(given) if A is not None and i != comm.rank}
    kind = index_type(int(max(rows, default=0)), height)
    for part in (kind, kind, dtype):
        sent, into = (_arrays(some, part) for some in (left, taken))
        all_to_all(comm, sent, into, "adjacency")
    return {i: _transposed(A, (height, int(rows[i]))) for i, A in taken.items()}


def _arrays(blocks: dict[int, Any], dtype: Any) -> dict[int, ShapeArray]:
    """Make an array for the entries of each block; of as many, one."""
    alike = {count: ShapeArray((count,), dtype) for count in {A.nnz for A in blocks.values()}}
    return {j: alike[A.nnz] for j, A in blocks.items()}


def _transposed(A: Any, shape: tuple[int, int]) -> Any:
    return _turned(A, shape) if isinstance(A, ShapeMatrix) else A.T.tocsr()


@cache
def _turned(A: ShapeMatrix, shape: tuple[int, int]) -> ShapeMatrix:
    return ShapeMatrix(shape, A.nnz, A.dtype, A.T.filled)

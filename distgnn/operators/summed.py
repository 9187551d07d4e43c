"""Products that are summed over a group of ranks, begun for their first rows while the next are multiplied.

Plexus section 5.2 ("blocked aggregation"), see ``comm/sums.py``. Small products are MPI's to sum, unless they
travel in 16 bits, which MPI can't add.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distgnn import local
from distgnn.arrays.blocking import every
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import Range

Array = Any


def multiply(grid: Grid, group: Comm, A: CSR, B: Array, out: Array, accumulate: bool = False) -> Array:
    """Compute in ``out`` the sum over the group of ``A B``, or of ``out + A B`` with ``accumulate``.

    Collective.

    Args:
        A: (m, k) CSR block; B: (k, f); out: (m, f) C-contiguous; m and f the same in the whole group.
    """
    blocks, read = row_blocks(grid, group, out), grid.rounded(B)
    compute = lambda rows: local.spmm(A.rows(*rows), read, out[slice(*rows)], accumulate)  # noqa: E731
    return _in_blocks(grid, group, out, blocks, compute)


def gemm(grid: Grid, group: Comm, A: Array, B: Array, out: Array, **how: Any) -> Array:
    """Multiply likewise a dense ``A`` (m, k) that is not transposed; ``how`` as of :func:`local.gemm`.

    Row blocks have a multiple of the rows that :func:`local.gemm` takes at a time: rounding depends on them.
    """
    blocks = row_blocks(grid, group, out, TUNING.gemm_rows)
    compute = lambda rows: local.gemm(A[slice(*rows)], B, out[slice(*rows)], **how)  # noqa: E731
    return _in_blocks(grid, group, out, blocks, compute)


def add_up(
    grid: Grid, group: Comm, array: Array, compute: Callable[[Range], Any] = lambda rows: None
) -> Array:  # fmt: skip
    """Sum an array over the group, in place; ``compute`` makes its row blocks, if they are not there yet."""
    return _in_blocks(grid, group, array, row_blocks(grid, group, array), compute)


def _in_blocks(
    grid: Grid, group: Comm, out: Array, blocks: list[Range], compute: Callable[[Range], Any]
) -> Array:
    if group.size == 1 or (out.nbytes <= TUNING.small_sum and not group.narrows(out)):
        for rows in blocks:
            compute(rows)
        return group.allreduce(out, matrix="sums", driving=grid.overlap)
    with group.sums(grid.workspace, grid.overlap) as sums:
        for rows in sums.in_turn(blocks):
            compute(rows)
            sums.start(out[slice(*rows)])
    return out


def row_blocks(grid: Grid, group: Comm, product: Array, multiple: int = 1) -> list[Range]:
    """Cut a product (m, f) every ``grid.block_rows`` rows, rounded up to a multiple.

    By default into TUNING.sum_blocks blocks within the sizes of a message, on a device into so few that they
    are large; not at all where the sum is MPI's affair.
    """
    height, row_bytes = len(product), max(product[:1].nbytes, 1)
    if group.size == 1 or product.nbytes <= TUNING.small_sum:
        return [(0, height)]
    if grid.backend.on_device:
        size = max(-(-height // TUNING.sum_blocks_on_device) * row_bytes, TUNING.smallest_sum_block_on_device)
    else:
        size = max(height * row_bytes // TUNING.sum_blocks, TUNING.smallest_sum_block)
        size = min(size, TUNING.sum_chunk)
    step = -(-(grid.block_rows or max(size // row_bytes, 1)) // multiple) * multiple
    return every(height, step)

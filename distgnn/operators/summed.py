"""Products that are summed over a group of ranks, begun for their first rows while the next are multiplied.

Plexus section 5.2 ("blocked aggregation") cuts the product into row blocks and all-reduces each when it is
there; here the sum of a block travels while the host multiplies the next one. Small products are MPI's to
sum. On a GPU, whose one stream runs a sum after the products queued before, little is hidden yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distgnn import local
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.sums import Array, Sums
from distgnn.layout import Range


def multiply(grid: Grid, group: Comm, A: CSR, B: Array, out: Array, accumulate: bool = False) -> Array:
    """``out``, the sum over the group of everybody's ``A B`` (of ``out + A B`` with ``accumulate``).
    Collective over the group.

    Args:
        A: (m, k) CSR block; B: (k, f); out: (m, f) C-contiguous; m and f the same in the whole group.
    """
    blocks = row_blocks(grid, group, out)
    pieces = dict(zip(blocks, A.split([bottom for _, bottom in blocks]), strict=True))
    return _in_blocks(
        grid, group, out, blocks, lambda rows: local.spmm(pieces[rows], B, _part(out, rows), accumulate)
    )


def gemm(grid: Grid, group: Comm, A: Array, B: Array, out: Array, **how: Any) -> Array:
    """The same for a dense ``A`` (m, k); ``how`` as of :func:`local.gemm`, but for a transposed ``A``. Blocks
    are made of whole pieces of that product, as rounding depends on the height of a piece.
    """
    blocks = row_blocks(grid, group, out, TUNING.gemm_rows)
    return _in_blocks(
        grid, group, out, blocks, lambda rows: local.gemm(_part(A, rows), B, _part(out, rows), **how)
    )


def add_up(grid: Grid, group: Comm, array: Array) -> Array:
    """The sum over the group of an array, in place, in the row blocks of a product with that result, which
    others multiply.
    """
    return _in_blocks(grid, group, array, row_blocks(grid, group, array), lambda rows: None)


def _in_blocks(
    grid: Grid, group: Comm, out: Array, blocks: list[Range], compute: Callable[[Range], Any]
) -> Array:
    if group.size == 1 or out.nbytes <= TUNING.small_sum:
        for rows in blocks:
            compute(rows)
        return group.allreduce(out)
    with Sums(grid, group) as sums:
        for rows in blocks:
            compute(rows)
            sums.start(_part(out, rows))
    return out


def _part(array: Array, rows: Range) -> Array:
    return array[rows[0] : rows[1]]


def row_blocks(grid: Grid, group: Comm, product: Array, multiple: int = 1) -> list[Range]:
    """Where a product (m, f) is cut: every ``grid.block_rows`` rows, or into TUNING.sum_blocks blocks that
    are neither too small for a message nor larger than one; every so many rows rounded up to a multiple. One
    range at least, and no more where the sum is MPI's affair.
    """
    height, row_bytes = len(product), max(product[:1].nbytes, 1)
    if group.size == 1 or product.nbytes <= TUNING.small_sum:
        return [(0, height)]
    size = min(max(height * row_bytes // TUNING.sum_blocks, TUNING.smallest_sum_block), TUNING.sum_chunk)
    step = -(-(grid.block_rows or max(size // row_bytes, 1)) // multiple) * multiple
    return [(top, min(top + step, height)) for top in range(0, max(height, 1), step)]

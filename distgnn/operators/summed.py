"""Products that are summed over a group of ranks, begun for their first rows while the next are multiplied.

Plexus section 5.2 ("blocked aggregation"), see ``comm/sums.py``. Small products are MPI's to sum, unless they
travel in 16 bits, which MPI can't add.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from distgnn import local
from distgnn.arrays.blocking import Blocks
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import Range
from distgnn.local.epilogue import Ending

Array = Any


class Sum:
    """Reduction of the rows that blocks of A make, over blocks and over ranks (see ``moves.py``): their sum.

    Others override what is not theirs (``aggregate_passes.py``).
    """

    def begin(self, T: Array) -> None:
        """Begin with a block of the product."""

    def turns(self, grid: Grid, group: Comm, out: Array, multiple: int = 1) -> Generator[Range, None, None]:
        """Give row blocks of ``out``, for the caller to make; each travels while the next is made.

        At the end ``out`` is the sum over the group. Collective.
        """
        blocks = row_blocks(grid, group.size, len(out), out[:1].nbytes, multiple)
        if group.size == 1 or (out.nbytes <= TUNING.small_sum and not group.narrows(out)):
            yield from blocks
            group.allreduce(out, matrix="sums", driving=grid.overlap)
            return
        with group.sums(grid.workspace, grid.overlap) as sums:
            for rows in sums.in_turn(blocks):
                yield rows
                sums.start(out[slice(*rows)])

    def scatter(self, group: Comm, partial: Array, shares: Any, T: Array) -> None:
        """Sum over the group; each rank gets its share of the rows in T. Collective."""
        group.reduce_scatter_rows(partial, shares, T, "sums", narrow=True)

    def nothing(self, T: Array) -> None:
        """Make the rows of a rank without blocks."""
        T[...] = 0

    def complete(self, T: Array) -> None:
        """End rows of which this rank has all entries."""

    def end(self) -> None:
        """End with a block of the product."""


SUM = Sum()


def gemm(
    grid: Grid, group: Comm, A: Array, B: Array, out: Array, then: Ending | None = None, **how: Any
) -> Array:  # fmt: skip
    """Compute in ``out`` the sum over the group of ``A B``, A dense or a CSR block. Collective.

    ``then``: what becomes of it, which is done, if it is, where nothing is left to sum. ``how``: as of
    :func:`local.gemm`. Row blocks have a multiple of the rows that :func:`local.gemm` takes at
    a time: rounding depends on them.
    """
    for rows in SUM.turns(grid, group, out, TUNING.gemm_rows):
        end = then if group.size == 1 else None
        local.product(local.some_rows(A, rows), B, out[slice(*rows)], then=end, **how)
    return out


def add_up(grid: Grid, group: Comm, array: Array) -> Array:
    """Sum an array over the group, in place."""
    for _ in SUM.turns(grid, group, array):
        pass
    return array


def row_blocks(grid: Grid, ranks: int, height: int, row_bytes: int, multiple: int = 1) -> Sequence[Range]:
    """Cut a product that so many ranks sum every ``grid.block_rows`` rows, rounded up to a multiple.

    By default into TUNING.sum_blocks blocks within the sizes of a message, on a device into so few that they
    are large; not at all where the sum is MPI's affair.
    """
    nbytes, row_bytes = height * row_bytes, max(row_bytes, 1)
    if ranks == 1 or nbytes <= TUNING.small_sum:
        return [(0, height)]
    if grid.backend.on_device:
        size = max(-(-height // TUNING.sum_blocks_on_device) * row_bytes, TUNING.smallest_sum_block_on_device)
    else:
        size = max(height * row_bytes // TUNING.sum_blocks, TUNING.smallest_sum_block)
        size = min(size, TUNING.sum_chunk)
    step = -(-(grid.block_rows or max(size // row_bytes, 1)) // multiple) * multiple
    return Blocks(height, step)

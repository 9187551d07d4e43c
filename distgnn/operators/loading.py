"""The blocks of a sparse matrix, from a block source to the device of a grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR, KERNELS
from distgnn.comm.grid import Grid
from distgnn.layout import Range
from distgnn.operators.sources import BlockSource, SharedSource, blocks


def load(grid: Grid, source: BlockSource, windows: Sequence[tuple[Range, Range]]) -> list[CSR]:
    """Load the blocks of A in these (rows, columns). Collective: an error on one rank is raised on all.

    Ranks of a node that ask for the same windows of a store read them together, each shard once (Plexus
    section 5.4). The ledger charges that as the broadcasts it is: 2 words per non-zero and a little per row.
    """
    if not isinstance(source, SharedSource):
        held = pack(grid, source.dtype, blocks(source, windows))
    else:  # inside, only ranks that read together communicate, and they leave together
        with grid.on_node((source.key, windows)) as readers, grid.world.together():
            held = [source.assemble(*window, grid.backend, readers) for window in windows]
    grid.nonzeros += sum(block.nnz for block in held)
    return held


def pack(grid: Grid, dtype: Any, given: Iterable[Any]) -> list[CSR]:
    """Put SciPy blocks on the device.

    Collective: an error on one rank, or in what gives them, is raised on all.
    """
    with grid.world.together():
        return [CSR.from_scipy(block, grid.backend, dtype) for block in given]
    raise AssertionError("unreachable: together() raises")


def cut_columns(A: CSR, bounds: Sequence[int], backend: Backend) -> list[CSR]:
    """Cut the columns of A between these bounds into blocks of their own."""
    return [A] if len(bounds) == 2 else KERNELS.kernel("columns", A.indptr)(A, bounds, backend)

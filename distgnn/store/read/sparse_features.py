"""Sparse features of a store on a grid: each rank its own rows and columns, none of them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.rows import Rows, by_owner
from distgnn.comm.steps import at_once
from distgnn.layout import Layout, Range, block, partition
from distgnn.local.csr_rows import unpack
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.store.read.feature_files import FeatureFiles
from distgnn.store.read.store import Store


def load_sparse(
    store: Store, files: FeatureFiles, layout: Layout, taken: np.ndarray, dtype: Any
) -> SparseFeatures:
    """Load these columns of sparse features, cut by a layout and in its order. Collective.

    Each rank reads its own rows where the store has them in this order. Else each reads a share, and gets its
    rows from those who read them: two words per entry.
    """
    grid, shape = layout.grid, (store.n, len(taken))
    with grid.world.together():
        rows, cols = layout.ranges(shape)
        own, window = own_columns(taken, cols)
    positions = store.stored_positions(layout.rows.order, rows, grid)
    some = None if positions is None else _fetched(files, grid, positions, window)
    with grid.world.together():
        if some is None and own is None:
            held = files.block(rows, window, dtype, grid.backend)
        else:
            some = files.window(rows, window) if some is None else some
            some = some if own is None else some[:, own]
            held = CSR.from_scipy(some, grid.backend, dtype, purpose="features")
    return SparseFeatures(held, layout, shape)


def own_columns(taken: np.ndarray, cols: Range) -> tuple[np.ndarray | None, Range]:
    """Return the window of the columns that a rank takes, and which of it those are; None for all of it."""
    own = taken[slice(*cols)]
    if not len(own):
        return None, (0, 0)
    first, last = int(own.min()), int(own.max()) + 1
    plain = last - first == len(own) and bool(np.all(own[1:] > own[:-1]))
    return None if plain else own - first, (first, last)


def _fetched(files: FeatureFiles, grid: Grid, positions: np.ndarray, cols: Range) -> sp.csr_array:
    """Fetch the rows at these positions from the ranks that read them, in this order. Collective."""
    comm = grid.along_on_host(*grid.shape)
    bounds, step, width = partition(files.shape[0], comm.size), files.rows_at_a_time, files.shape[1]
    with comm.together():
        mine = files.window(block(bounds, comm.rank), (0, width))
    arrangement = np.argsort(positions, kind="stable")
    ascending = positions[arrangement]
    parts = [mine[:0, slice(*cols)]]
    for first in range(0, -comm.lowest(-len(positions)), step):
        rows = Rows(grid, comm, by_owner(ascending[first : first + step], bounds))
        packed = at_once(rows.fetch_ragged(mine, "features"))
        parts.append(unpack(packed, width, mine)[:, slice(*cols)])
    inverse = np.empty(len(positions), np.int64)
    inverse[arrangement] = np.arange(len(positions))
    return sp.vstack(parts, format="csr")[inverse]

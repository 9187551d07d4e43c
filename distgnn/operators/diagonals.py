"""Diagonals of distributed matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.operators.dense import DistDense
from distgnn.operators.sources import BlockSource, blocks


def diagonal(A: Any, source: BlockSource) -> DistDense:
    """Return the entry (i, i) of each node i; see :meth:`~distgnn.operators.operator.DistSparse.diagonal`.

    A rank asks the source for what stands on the diagonal beside its rows. Where rows and columns are in two
    orders, it asks for whole rows, and looks for the columns of their nodes.
    """
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"{A.name}: only square matrices have a diagonal of nodes, this one is {A.shape}")
    shape, layout, columns = (A.shape[0], 1), A.output_layout, A.input_layout.rows
    rows, (left, right) = layout.ranges(shape)
    alike = layout.rows.order == columns.order
    window = rows, rows if alike else (0, A.shape[1])
    given = blocks(source, [window] if left < right else [])
    with A.grid.world.together():
        entries = np.zeros((rows[1] - rows[0], right - left), A.dtype)
        for block in given:
            entries[:, 0] = block.diagonal() if alike else _of_nodes(block, layout.rows.ids(*rows), columns)
    return DistDense(A.grid.backend.asarray(entries), layout, shape)


def _of_nodes(block: Any, nodes: np.ndarray, columns: Any) -> np.ndarray:
    """Return the entries of these rows, of these nodes, in the columns of the same nodes."""
    row = np.repeat(np.arange(len(nodes)), np.diff(block.indptr))
    own = columns.ids(0, block.shape[1])[block.indices] == nodes[row]
    entries = np.zeros(len(nodes), block.dtype)
    entries[row[own]] = block.data[own]
    return entries

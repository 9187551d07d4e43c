"""All stored entries of a graph, put together by one process."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.layout import block as block_range
from distgnn.store.read.node_files import INDICES
from distgnn.store.read.root import RootStore
from distgnn.store.read.store import Store


def stored_matrix(store: Store, order: Any, dtype: Any) -> sp.csr_array:
    """Put the stored entries together, zeros among them: (n, n), at the order's positions."""
    if isinstance(store, RootStore):
        entries = store.held.matrix.whole().tocoo()
        parts = [(order.positions(entries.row), order.positions(entries.col), entries.data)]
    else:
        places = product(range(len(order.rows) - 1), range(len(order.cols) - 1))
        parts = [_shard(order, name, *place) for name, place in zip(order.files, places, strict=True)]
    rows, columns, values = map(np.concatenate, zip(*parts, strict=True))
    return sp.csr_array((values.astype(dtype), (rows, columns)), shape=order.shape)


def _shard(order: Any, name: str, i: int, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    (top, bottom), left = block_range(order.rows, i), block_range(order.cols, j)[0]
    nnz = int(order.shard_nnz[i, j])
    with order.members.open(name) as file:
        counts = np.diff(file.array("indptr", (bottom - top + 1,), *INDICES)[:])
        columns = file.array("indices", (nnz,), *INDICES)[:].astype(np.int64)
        values = file.array("values", (nnz,), order.stored_dtype)[:]
    return np.repeat(np.arange(top, bottom), counts), columns + left, values

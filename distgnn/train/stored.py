"""The matrix of a store as its files have it, for the check: read by none of the loaders that a run uses."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.layout import block as block_range
from distgnn.sampling.block import Sample
from distgnn.store.read.node_files import INDICES
from distgnn.store.read.root import RootStore
from distgnn.store.read.store import Store


class SampleError(Exception):
    """A sample that is not what its sampler draws from the stored matrix."""


def stored_matrix(store: Store, order: Any, dtype: Any) -> sp.csr_array:
    """Put the stored entries together, zeros among them: (n, n), at the order's positions."""
    if isinstance(store, RootStore):
        entries = store.held.matrix.tocoo()
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


def off_diagonal(A: sp.csr_array) -> sp.csr_array:
    """Put ones in place of all entries off the diagonal, and nothing on it."""
    entries = A.tocoo()
    others = entries.row != entries.col
    ones = np.ones(np.count_nonzero(others), A.dtype)
    return sp.csr_array((ones, (entries.row[others], entries.col[others])), shape=A.shape)


def check_sample(A: sp.csr_array, sample: Sample, fanout: tuple[int, ...] | None) -> None:
    """Raise SampleError unless the blocks of a sample have entries of A only, each once.

    They must be all between a block's rows and columns, or with `fanout`, so many of each row or all.
    """
    for number, block in enumerate(reversed(sample.blocks)):
        whole = A[block.rows]
        stored, drawn = _ones(whole[:, block.cols], 1), _ones(block.A, 2)
        kinds = (stored + drawn).data  # 1: stored, 2: drawn, 3: both; drawn twice: more
        degrees = np.diff(whole.indptr)
        wanted = stored.nnz if fanout is None else int(np.minimum(degrees, fanout[number]).sum())
        if np.isin(kinds, (1, 3)).all() and drawn.nnz == wanted:
            continue
        where = f"layer {len(sample.blocks) - 1 - number} of a sample has {drawn.nnz} entries"
        raise SampleError(f"{where}, expected {wanted} of the {stored.nnz} stored there")


def _ones(A: Any, value: int) -> sp.csr_array:
    return sp.csr_array((np.full(A.nnz, value), A.indices, A.indptr), shape=A.shape)

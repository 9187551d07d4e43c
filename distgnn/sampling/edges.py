"""All edges between rows and columns of minibatches: Q_R A Q_C (section 4.2.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays import backend
from distgnn.arrays.csr import index_type
from distgnn.layout import Range
from distgnn.local import extract
from distgnn.local.csr_rows import joined, owners, row_pointers
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack

Array = Any
#: Row pointers, one more than there are rows; positions among the columns of each minibatch; values.
Edges = tuple[Array, Stack, Array]


def edges(
    A: Any, indptr: Array, rows: Stack, cols: Stack, scale: Array | None, labels: Relabelling,
    entries: int | None,
) -> Edges:  # fmt: skip
    """Pick the entries of A in the rows and columns of each minibatch: Q_R A Q_C.

    Args:
        indptr: A's row pointers, int64; rows: numbers of its rows; cols: of its columns, rising.
        scale: float64, by which the values of each of the columns are multiplied; None: they are A's.
        entries: of a row block of Q_R A at most; a GPU makes no such product.
    """
    kernel = extract.KERNELS.find("edges", A.data)
    if kernel is not None and (backend.of(rows.ids).on_device or A.shape[0] == A.shape[1]):
        return kernel(A, indptr, rows, cols, scale, labels)
    row_blocks = extract.row_blocks(selection(rows.ids, len(indptr) - 1), A, indptr, entries)
    return of_products(row_blocks, rows, cols, scale, labels, A.dtype)


def of_products(
    row_blocks: Iterator[tuple[Range, Any]], rows: Stack, cols: Stack, scale: Array | None,
    labels: Relabelling, dtype: Any,
) -> Edges:  # fmt: skip
    """Pick the entries in the columns of each minibatch from row blocks of Q_R A, on the host."""
    picked, top = [], 0
    for _, R in row_blocks:
        bounds = R.indptr[np.clip(rows.bounds - top, 0, R.shape[0])].astype(np.int64)
        places = labels.find(Stack(R.indices.astype(np.int64), bounds), cols)
        kept = np.flatnonzero(places >= 0)
        values = R.data[kept]
        if scale is not None:
            batch = owners(np.diff(np.searchsorted(kept, bounds)))
            values *= scale[cols.bounds[batch] + places[kept]].astype(values.dtype)
        picked.append((np.diff(np.searchsorted(kept, R.indptr)), places[kept], values))
        top += R.shape[0]
    counts, places, values = joined(picked, dtype, backend.of(rows.ids))
    indptr = row_pointers(counts)
    return indptr, Stack(places, indptr[rows.bounds]), values


def selection(vertices: np.ndarray, n: int) -> sp.csr_array:
    """Make Q with a 1 in column vertices[i] of row i (sections 4.1.1, 4.2.3): ``Q A`` are these rows of A."""
    rows, kind = len(vertices), index_type(n, len(vertices))
    entries = np.ones(rows, np.float32), vertices.astype(kind), np.arange(rows + 1, dtype=kind)
    return sp.csr_array(entries, shape=(rows, n))

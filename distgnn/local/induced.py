"""Extraction of an induced subgraph's entries from a block of a sparse matrix: ``Q_r A Q_cᵀ``."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from distgnn.local.csr_rows import gather, owners, row_pointers


def induced(A: sp.csr_array, rows: np.ndarray, columns: np.ndarray) -> sp.csr_array:
    """Extract these rows and columns of a matrix on the host, both rising: canonical where A is."""
    counts, indices, values = gather(A, rows)
    number = np.full(A.shape[1], -1, indices.dtype)
    number[columns] = np.arange(columns.size)
    places = number[indices]
    kept = places >= 0
    pointers = row_pointers(kept)[row_pointers(counts)].astype(indices.dtype)
    return sp.csr_array((values[kept], places[kept], pointers), shape=(rows.size, columns.size))


def divide_off_diagonal(A: sp.csr_array, divisor: float, diagonal: int) -> None:
    """Divide, in place, all entries but those of row i in column ``i + diagonal``."""
    rows = owners(np.diff(A.indptr))
    off = A.indices != rows + diagonal
    A.data[off] /= A.dtype.type(divisor)

"""Rows of sparse matrices: pick them, pack them, count the entries that a product of two makes of them.

Matrices are SciPy's ``csr_array`` or CuPy's ``csr_matrix``; results are of the same kind, on the same device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from distgnn.arrays import backend
from distgnn.arrays.backend import Backend
from distgnn.arrays.canonical import canonical
from distgnn.arrays.csr import index_type
from distgnn.arrays.kernels import Kernels, KernelTable

Array = Any
Packed = tuple[Array, Array, Array]  # of rows, one after another: lengths, column numbers, values


def row_pointers(counts: Array) -> Array:
    """Return where rows of so many entries begin and end: int64 (rows + 1)."""
    pointers = backend.of(counts).zeros((counts.size + 1,), np.int64)
    pointers[1:] = backend.module(counts).cumsum(counts, dtype=np.int64)
    return pointers


def with_indices(A: Any, kind: Any) -> Any:
    """Return the matrix with indices of this integer type, where they fit; values are shared.

    SciPy would otherwise convert all of a large B of int32 in every product with a small A of int64.
    """
    if A.indices.dtype == kind == A.indptr.dtype or max(A.nnz, *A.shape) > np.iinfo(kind).max:
        return A
    return type(A)((A.data, A.indices.astype(kind), A.indptr.astype(kind)), shape=A.shape)


def lengths(A: Any, rows: Array | slice | None = None) -> Array:
    """Count the entries in every row of A, or in each of these."""
    if rows is None or isinstance(rows, slice):
        return (A.indptr[1:] - A.indptr[:-1])[rows or slice(None)]
    return A.indptr[rows + 1] - A.indptr[rows]


def unpack(rows: Packed, width: int, like: Any) -> Any:
    """Return packed rows as a CSR matrix of ``width`` columns, of the kind of ``like``."""
    counts, columns, values = rows
    kind = index_type(values.size, width)
    pointers = row_pointers(counts).astype(kind)
    return type(like)((values, columns.astype(kind, copy=False), pointers), shape=(counts.size, width))


def gather(B: Any, rows: Array | slice) -> Packed:
    """Gather rows of ``B`` in this order, which may repeat; of a slice, views."""
    counts = lengths(B, rows)
    if isinstance(rows, slice):
        entries = slice(int(B.indptr[rows.start]), int(B.indptr[rows.stop]))
        return counts, B.indices[entries], B.data[entries]
    return counts, *KERNELS.kernel("gather", B.data)(B, rows, counts)


def joined(blocks: Sequence[Packed], dtype: Any, on: Backend) -> Packed:
    """Join packed rows, with values of this dtype; of no blocks there are none."""
    none = on.empty((0,), np.int64), on.empty((0,), np.int64), on.empty((0,), dtype)
    if len(blocks) == 1:
        return blocks[0]
    parts = zip(*(blocks or [none]), strict=True)  # counts may be on the host, where sizes are known
    counts, columns, values = (backend.module(part[0]).concatenate(part) for part in parts)
    return counts, columns, values


def owners(counts: Array, total: int | None = None) -> Array:
    """Return, for each entry of rows of so many entries, the row it stands in: int64 (sum of counts).

    A GPU has to be waited for where the caller does not know this sum.
    """
    return KERNELS.kernel("owners", counts)(counts, total)


def repeated(values: Array, counts: Array, total: int) -> Array:
    """Repeat ``values[i]`` as often as ``counts[i]`` says; `total` is the sum of the counts."""
    return KERNELS.kernel("repeated", values)(values, counts, total)


def at_most_one_per_row(A: Any) -> bool:
    """Tell whether no row has more than one entry, as in GraphSAGE's Q (matrix sampling, section 4.1.1)."""
    return A.nnz <= A.shape[0] and bool((lengths(A) <= 1).all())


def scaled_rows(A: Any, B: Any) -> Any:
    """Compute ``A B`` for an ``A`` with at most one entry per row."""
    xp = backend.module(B.data)
    taken, columns, values = gather(B, A.indices)
    dtype = np.result_type(A.dtype, B.dtype)
    values = values.astype(dtype, copy=False)
    if bool((A.data != 1).any()):
        values *= A.data.astype(dtype, copy=False)[owners(taken)]
    counts = xp.zeros(A.shape[0], np.int64)
    counts[lengths(A) > 0] = taken
    return unpack((counts, columns, values), B.shape[1], B)


def sort_rows(A: Any) -> Any:
    """Return the matrix with rising columns in every row, in place or anew.

    Two transpositions are a counting sort: as many steps as there are entries and columns.
    """
    return KERNELS.kernel("sort_rows", A.data)(A)


def sorted_rows(P: Any, like: Array) -> Any:
    """Convert a sparse matrix of any format to CSR with rising columns in every row, on an array's backend.

    The caller's matrix is left as it is.
    """
    return KERNELS.kernel("sorted_rows", like)(P)


def multiplications(A: Any, counts: Array) -> Array:
    """Count the multiplications in each row of ``A B``, which has no more entries: int64 (rows of A).

    ``counts``: of each entry of A, how many entries the row of B has that it is multiplied with.
    """
    totals = row_pointers(counts)
    return totals[A.indptr[1:]] - totals[A.indptr[:-1]]


def compact(A: Any) -> Any:
    """Return a matrix on the host as coordinates, where it has fewer entries than rows."""
    return KERNELS.kernel("compact", A.data)(A)


def columns_read(A: Any) -> Array:
    """Return the columns of a matrix on the host that have an entry: int64, rising."""
    return KERNELS.kernel("columns_read", A.data)(A)


def keep_columns(A: Any, columns: np.ndarray) -> Any:
    """Keep only these (rising) columns of a matrix on the host, outside of which it is empty, renumbered."""
    return A if columns.size == A.shape[1] else KERNELS.kernel("keep_columns", A.data)(A, columns)


def side_by_side(blocks: Sequence[Any]) -> Any:
    """Join matrices on the host, of equal height, side by side."""
    return KERNELS.kernel("side_by_side", blocks[0].data)(blocks)


def _gather_on_host(B: Any, rows: Array, counts: Array) -> tuple[Array, Array]:
    """Call the routine behind SciPy's ``B[rows]``, without what that costs more."""
    total, kind = int(counts.sum()), B.indices.dtype
    columns, values = np.empty(total, kind), np.empty(total, B.dtype)
    numbers, pointers = np.ascontiguousarray(rows, kind), B.indptr.astype(kind, copy=False)
    _sparsetools.csr_row_index(rows.size, numbers, pointers, B.indices, B.data, columns, values)
    return columns, values


def _gather_on_gpu(B: Any, rows: Array, counts: Array) -> tuple[Array, Array]:
    ends = row_pointers(counts)
    owner = owners(counts)
    places = (B.indptr[rows] - ends[:-1])[owner] + backend.module(rows).arange(owner.size)
    return B.indices[places], B.data[places]


def _owners_on_host(counts: Array, total: int | None) -> Array:
    return np.repeat(np.arange(counts.size), counts)


def _owners_on_gpu(counts: Array, total: int | None) -> Array:
    """Search for each entry in the sums of the counts: CuPy cannot repeat."""
    xp, total = backend.module(counts), int(counts.sum()) if total is None else total
    return xp.searchsorted(xp.cumsum(counts), xp.arange(total), side="right")


def _repeated_on_host(values: Array, counts: Array, total: int) -> Array:
    return np.repeat(values, counts)


def _repeated_on_gpu(values: Array, counts: Array, total: int) -> Array:
    return values[_owners_on_gpu(counts, total)]


def _sort_rows_on_host(A: Any) -> Any:
    if A.nnz < A.shape[1]:
        return _sort_rows_in_place(A)
    return A.tocsc().tocsr()


def _sort_rows_in_place(A: Any) -> Any:
    A.sort_indices()
    return A


def _sorted_copy(P: Any) -> Any:
    P = P.tocsr()
    return P if P.has_sorted_indices else _sort_rows_in_place(P.copy())


def _compact(A: Any) -> Any:
    return A.tocoo() if A.nnz < A.shape[0] else A


def _columns(A: Any) -> np.ndarray:
    """Return the columns of all entries."""
    return A.col if A.format == "coo" else A.indices


def _columns_read(A: Any) -> np.ndarray:
    return np.unique(_columns(A)).astype(np.int64)


def _keep_columns(A: Any, columns: np.ndarray) -> Any:
    kind, shape = index_type(A.nnz, columns.size), (A.shape[0], columns.size)
    if A.nnz < A.shape[1]:
        places = np.searchsorted(columns, _columns(A)).astype(kind)
    else:
        number = np.zeros(A.shape[1], kind)
        number[columns] = np.arange(columns.size)
        places = number[_columns(A)]
    if A.format == "coo":
        return sp.coo_array((A.data, (A.row, places)), shape=shape)
    return sp.csr_array((A.data, places, A.indptr.astype(kind)), shape=shape)


def _side_by_side(blocks: Sequence[Any]) -> Any:
    return sp.hstack(blocks, format="csr")


KERNELS = KernelTable(
    numpy=[
        Kernels({
            "gather": _gather_on_host, "owners": _owners_on_host, "repeated": _repeated_on_host,
            "sort_rows": _sort_rows_on_host, "columns_read": _columns_read, "keep_columns": _keep_columns,
            "side_by_side": _side_by_side, "sorted_rows": canonical, "compact": _compact,
        })
    ],
    cupy=[
        Kernels({
            "gather": _gather_on_gpu, "owners": _owners_on_gpu, "repeated": _repeated_on_gpu,
            "sorted_rows": _sorted_copy,
        })
    ],
)  # fmt: skip

"""Products of two sparse matrices on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from distgnn import ledger
from distgnn.arrays import backend
from distgnn.arrays.blocking import bounded
from distgnn.arrays.csr import index_type
from distgnn.arrays.kernels import Kernels, KernelTable
from distgnn.layout import Range
from distgnn.local import csr_rows, cuda, host


def spgemm(A: Any, B: Any) -> Any:
    """Compute ``A B`` of two sparse matrices: sorted rows, no duplicates.

    An entry stands wherever an entry of A meets one of B, whatever their values: where these are 0, or sums
    cancel, it is 0. Where no row of ``A`` has more than one entry, as in GraphSAGE's Q
    (matrix-sampling paper, section 4.1.1), rows of ``B`` are copied and scaled. Else ``spgemm.c`` multiplies,
    on a GPU ``extract.cu``, and SciPy where neither will do; all sum in the same order.

    Args:
        A: (m, k), B: (k, n): both SciPy's or both CuPy's CSR matrices, canonical. Shapes that don't fit raise
            ValueError.

    Returns:
        (m, n) of the common dtype.

    Cost: 2 flops for every pair of an entry of A and an entry of B that it meets.
    """
    _check(A, B)
    return _product(A, B, int(csr_rows.lengths(B, A.indices).sum()))


def spgemm_row_blocks(A: Any, B: Any, entries: int | None) -> Iterator[tuple[Range, Any]]:
    """Yield ``A B`` in row blocks of at most ``entries`` estimated non-zeros, or single rows; None: whole.

    The estimate is the number of multiplications, which is never too low. Yields ((first, last + 1), those
    rows of the product), each made when asked for.
    """
    _check(A, B)
    estimates = csr_rows.multiplications(A, csr_rows.lengths(B, A.indices))
    for first, last in bounded(backend.of(estimates).to_host(estimates), entries):
        rows = A if last - first == A.shape[0] else A[first:last]
        yield (first, last), _product(rows, B, int(estimates[first:last].sum()))


def _product(A: Any, B: Any, multiplications: int) -> Any:
    ledger.charge("spmm", "spgemm", flops=2 * multiplications)
    with ledger.timed("spmm", "spgemm", on=backend.of(B.data)):
        return KERNELS.kernel("spgemm", B.data)(A, B)


def _on_host(A: Any, B: Any) -> Any:
    A = csr_rows.with_indices(A, B.indices.dtype)
    if csr_rows.at_most_one_per_row(A):
        return csr_rows.scaled_rows(A, B)
    if B.dtype.char in "fd" and B.dtype == np.result_type(A.dtype, B.dtype) and host.usable():
        return _compiled(A, B)
    return csr_rows.sort_rows(_by_sparsetools(A, B))


def _compiled(A: Any, B: Any) -> sp.csr_array:
    built, (m, k) = host.built(), (A.shape[0], B.shape[1])
    estimates = csr_rows.multiplications(A, csr_rows.lengths(B, A.indices))
    room = int(np.minimum(estimates, k).sum())
    pointers, columns = np.empty(m + 1, np.int64), np.empty(room, B.indices.dtype)
    values = np.empty(room, B.dtype)
    left = A.indptr.astype(np.int64), A.indices.astype(np.int64), A.data.astype(B.dtype, copy=False)
    sums = np.zeros(k, B.dtype), np.zeros(built.spgemm_bits(k), np.uint64)
    built.spgemm(*left, B.indptr, B.indices, B.data, *sums, pointers, columns, values)
    for array in (columns, values):
        array.resize(int(pointers[-1]), refcheck=False)
    kind = np.result_type(columns, index_type(int(pointers[-1])))
    return sp.csr_array((values, columns.astype(kind, copy=False), pointers.astype(kind)), shape=(m, k))


def _by_sparsetools(A: Any, B: Any) -> sp.csr_array:
    """Call the routines behind SciPy's ``A @ B``, which drops sums that are 0, and put these back."""
    kind, (m, k) = np.result_type(A.indptr, A.indices, B.indptr), (A.shape[0], B.shape[1])
    factors = [np.asarray(array, kind) for M in (A, B) for array in (M.indptr, M.indices)]
    count = _sparsetools.csr_matmat_maxnnz(m, k, *factors)
    kind = np.result_type(kind, index_type(count))
    (a, columns_a, b, columns_b) = (np.asarray(array, kind) for array in factors)
    pointers, columns = np.empty(m + 1, kind), np.empty(count, kind)
    values = np.empty(count, np.result_type(A.dtype, B.dtype))
    entries = a, columns_a, A.data, b, columns_b, B.data, pointers, columns, values
    _sparsetools.csr_matmat(m, k, *entries)
    kept = int(pointers[-1])
    C = sp.csr_array((values[:kept], columns[:kept], pointers), shape=(m, k))
    return C if kept == count else _with_zeros(C, _ones(A) @ _ones(B))


def _ones(A: Any) -> sp.csr_array:
    return sp.csr_array((np.ones(A.nnz, np.float32), A.indices, A.indptr), shape=A.shape)


def _with_zeros(C: sp.csr_array, pattern: sp.csr_array) -> sp.csr_array:
    """Return C with the entries of a pattern, of which its own are some."""
    C, pattern = csr_rows.sort_rows(C), csr_rows.sort_rows(pattern)
    keys = (csr_rows.owners(csr_rows.lengths(M)) * C.shape[1] + M.indices for M in (pattern, C))
    values = np.zeros(pattern.nnz, C.dtype)
    values[np.searchsorted(*keys)] = C.data
    return sp.csr_array((values, pattern.indices, pattern.indptr), shape=C.shape)


def _on_gpu(A: Any, B: Any) -> Any:
    """Multiply by our own kernels: by way of CuPy, cuSPARSE's product lost an entry now and then."""
    kind = np.result_type(A.dtype, B.dtype)
    A, B = (
        M if M.dtype == kind else type(M)((M.data.astype(kind), M.indices, M.indptr), shape=M.shape)
        for M in (A, B)
    )
    C, _ = cuda.spgemm(A, B, B.indptr.astype(np.int64, copy=False))
    integers = np.dtype(index_type(C.data.size, C.shape[1]))
    arrays = C.data, C.indices.astype(integers), C.indptr.astype(integers)
    return type(B)(arrays, shape=C.shape)


KERNELS = KernelTable(numpy=[Kernels({"spgemm": _on_host})], cupy=[Kernels({"spgemm": _on_gpu})])


def _check(A: Any, B: Any) -> None:
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"spgemm: shapes {A.shape} and {B.shape} don't multiply")

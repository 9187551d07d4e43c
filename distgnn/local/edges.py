"""Passes over the entries of a sparse block, each of which has one number per head.

Numbers of entries are arrays (nnz, heads), C-contiguous, in the order of the block. A head has some columns
of the dense matrices beside it: head k has those between ``bounds[k]`` and ``bounds[k + 1]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn import ledger, progress
from distgnn.arrays import backend
from distgnn.arrays.blocking import rows_within
from distgnn.arrays.csr import CSR
from distgnn.arrays.kernels import Functions, Kernels, Table
from distgnn.local import host
from distgnn.local.spmm import spmm

Array = Any


def multiply(A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool = False) -> Array:
    """Compute ``out = A B``, or ``out += A B`` with ``add``, where the entries of A have other values.

    Args:
        A: (m, k), of which the pattern counts; values: (nnz, heads); B: (k, f); out: (m, f), C-contiguous.
        bounds: the columns of B and ``out`` of each head.
    """
    if values.shape[1] == 1:
        return spmm(A.with_values(values.reshape(-1)), B, out, add)
    on = backend.of(B)
    touched = A.nbytes(*A.header()) + values.nbytes + A.nnz * B.shape[1] * B.itemsize + (1 + add) * out.nbytes
    taken = *A.shape, A.nnz, B.shape[1]
    ledger.charge("spmm", "spmm", flops=2 * A.nnz * B.shape[1], touched=touched, shape=taken)
    with ledger.timed("spmm", "spmm", synchronize=on.synchronize):
        KERNELS.kernel("multiply", B)(A, values, B, bounds, out, add)
    progress.poll()
    return out


def dots(A: CSR, U: Array, V: Array, bounds: Sequence[int], out: Array) -> Array:
    """Compute, for each entry (i, j) of A and each head, the product of the rows U_i and V_j: SDDMM.

    Args:
        A: (m, k), of which the pattern counts; U: (m, f); V: (k, f); out: (nnz, heads).
        bounds: the columns of U and V of each head; a head without columns gets zeros.
    """
    on = backend.of(U)
    touched = A.nbytes(*A.header()) + U.nbytes + A.nnz * V.shape[1] * V.itemsize + out.nbytes
    ledger.charge("spmm", "sddmm", flops=2 * A.nnz * V.shape[1], touched=touched)
    with ledger.timed("spmm", "sddmm", synchronize=on.synchronize):
        KERNELS.kernel("dots", U)(A, U, V, bounds, out)
    progress.poll()
    return out


def end_sums(A: CSR, u: Array, v: Array, out: Array) -> Array:
    """Compute ``out = u_i + v_j`` of each entry (i, j) of A; u: (m, heads); v: (k, heads)."""
    return _pass("end_sums", A, out, u, v)


def row_sums(A: CSR, values: Array, out: Array) -> Array:
    """Add the sums of each row's values to ``out`` (m, heads)."""
    return _pass("row_sums", A, out, values)


def row_maxima(A: CSR, values: Array, out: Array) -> Array:
    """Compute in ``out`` (m, heads) the largest of it and of each row's values."""
    return _pass("row_maxima", A, out, values)


def of_rows(A: CSR, numbers: Array, out: Array) -> Array:
    """Give each entry the numbers (m, heads) of its row, in ``out`` (nnz, heads)."""
    return _pass("of_rows", A, out, numbers)


def transposition(A: CSR) -> Array:
    """Return where each entry of the transposed block, its rows sorted, stands in A: int64 (nnz,)."""
    if "transposition" not in A.cached:
        A.cached["transposition"] = KERNELS.kernel("transposition", A.indptr)(A)
    return A.cached["transposition"]


def _pass(name: str, A: CSR, out: Array, *given: Array) -> Array:
    on = backend.of(out)
    touched = A.nnz * A.indices.itemsize + out.nbytes + sum(array.nbytes for array in given)
    ledger.charge("spmm", name.replace("_", " "), touched=touched)
    with ledger.timed("spmm", name.replace("_", " "), synchronize=on.synchronize):
        KERNELS.kernel(name, out)(A, *given, out)
    progress.poll()
    return out


def rows_of(A: CSR) -> Array:
    """Return the row of each entry, int64 (nnz,), kept with the block."""
    if "rows of entries" not in A.cached:
        xp = backend.of(A.indptr).xp
        places = xp.arange(A.nnz, dtype=A.indptr.dtype)
        A.cached["rows of entries"] = xp.searchsorted(A.indptr[1:], places, side="right")
    return A.cached["rows of entries"]


def _multiply(A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool) -> None:
    xp = backend.of(B).xp
    for head, (first, last) in enumerate(pairwise(bounds)):
        own = A.with_values(xp.ascontiguousarray(values[:, head]))
        product = spmm(own, xp.ascontiguousarray(B[:, first:last]))
        out[:, first:last] = out[:, first:last] + product if add else product


def _dots(A: CSR, U: Array, V: Array, bounds: Sequence[int], out: Array) -> None:
    rows = rows_of(A)
    step = rows_within(backend.of(U).at_a_time(), V.shape[1])
    for start in range(0, A.nnz, step):
        part = slice(start, start + step)
        products = U[rows[part]] * V[A.indices[part]]
        for head, (first, last) in enumerate(pairwise(bounds)):
            out[part, head] = products[:, first:last].sum(axis=1)


def _multiply_compiled(
    A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool
) -> None:
    for own, (first, last) in zip(np.ascontiguousarray(values.T), pairwise(bounds), strict=True):
        if first < last:
            columns = slice(first, last)
            host.multiply(A.indptr, A.indices, own, B[:, columns], out[:, columns], accumulate=add)


def _dots_compiled(A: CSR, U: Array, V: Array, bounds: Sequence[int], out: Array) -> None:
    ends = np.array(bounds, np.int64)
    host.built().edge_dots(A.indptr, A.indices, U, V, ends, out, isa=host.isa())


def _end_sums(A: CSR, u: Array, v: Array, out: Array) -> None:
    out[...] = u[rows_of(A)]
    out += v[A.indices]


def _of_rows(A: CSR, numbers: Array, out: Array) -> None:
    out[...] = numbers[rows_of(A)]


def _filled(A: CSR) -> tuple[Array, Array]:
    """Return the rows with entries, and where each begins."""
    xp = backend.of(A.indptr).xp
    rows = xp.flatnonzero(A.indptr[1:] > A.indptr[:-1])
    return rows, A.indptr[rows]


def _row_sums(A: CSR, values: Array, out: Array) -> None:
    rows, starts = _filled(A)
    if rows.size:
        out[rows] += np.add.reduceat(values, starts, axis=0)


def _row_maxima(A: CSR, values: Array, out: Array) -> None:
    rows, starts = _filled(A)
    if rows.size:
        out[rows] = np.maximum(out[rows], np.maximum.reduceat(values, starts, axis=0))


def _row_sums_on_gpu(A: CSR, values: Array, out: Array) -> None:
    ones = backend.of(out).xp.ones((A.shape[1], 1), values.dtype)  # a product adds in a fixed order
    for head in range(values.shape[1]):
        own = A.with_values(backend.of(out).xp.ascontiguousarray(values[:, head]))
        out[:, head] += spmm(own, ones)[:, 0]


def _row_maxima_on_gpu(A: CSR, values: Array, out: Array) -> None:
    backend.of(out).xp.maximum.at(out, rows_of(A), values)


def _transposition(A: CSR) -> Array:
    return backend.of(A.indices).xp.argsort(A.indices, kind="stable")


_ANYWHERE: Functions = {
    "multiply": _multiply, "dots": _dots, "end_sums": _end_sums, "of_rows": _of_rows,
    "transposition": _transposition,
}  # fmt: skip
KERNELS = Table(
    numpy=[
        Kernels({"multiply": _multiply_compiled, "dots": _dots_compiled}, "fd", host.usable),
        Kernels({**_ANYWHERE, "row_sums": _row_sums, "row_maxima": _row_maxima}),
    ],
    cupy=[Kernels({**_ANYWHERE, "row_sums": _row_sums_on_gpu, "row_maxima": _row_maxima_on_gpu})],
)

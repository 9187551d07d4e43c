"""Passes of additive attention over the entries of a sparse block: a · leaky_relu(L_i + R_j), and back.

They take some entries at a time, so that no array has all entries and columns. The way back needs one bit for
each entry and column, 1 where the sum is positive: uint8 (nnz, columns / 8), an entry after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from distgnn import ledger, progress
from distgnn.arrays import backend
from distgnn.arrays.blocking import every, rows_within
from distgnn.arrays.csr import CSR
from distgnn.arrays.kernels import Functions, Kernels, Table
from distgnn.local.edges import rows_of
from distgnn.local.spmm import spmm

Array = Any


def sign_bytes(columns: int) -> int:
    """Return the bytes of the signs of so many columns."""
    return -(-columns // 8)


def scores(A: CSR, L: Array, R: Array, weights: Array, slope: float, out: Array, signs: Array) -> Array:
    """Compute, for each entry (i, j) of A and each head, leaky_relu(L_i + R_j) times the head's weights.

    Args:
        A: (m, k), of which the pattern counts; L: (m, f); R: (k, f).
        weights: (f, heads), which are 0 in the columns of other heads.
        out: (nnz, heads); signs: uint8 (nnz, sign_bytes(f)), written as well.
    """
    touched = A.nbytes(*A.header()) + L.nbytes + A.nnz * R.shape[1] * R.itemsize + out.nbytes + signs.nbytes
    with _charged("additive scores", A, L.shape[1], touched, L):
        KERNELS.kernel("scores", L)(A, L, R, weights, slope, out, signs)
    progress.poll()
    return out


def slope_sums(
    A: CSR, values: Array, signs: Array, slope: float, heads: Array, out: Array, add: bool = False
) -> Array:
    """Compute in ``out`` (m, f), by row and column, the sum of the entries' values times 1, or ``slope``.

    The slope where the entry's sum is not positive; the values are those of the column's head.

    Args:
        A: (m, k), of which the pattern counts; values: (nnz, heads); signs: of :func:`scores`.
        heads: the head of each column, int (f), on the host. add: to what is in ``out``.
    """
    touched = A.nbytes(*A.header()) + values.nbytes + signs.nbytes + (1 + add) * out.nbytes
    if not add:
        out[...] = 0
    with _charged("slope sums", A, out.shape[1], touched, out):
        KERNELS.kernel("slope_sums", out)(A, values, signs, slope, heads, out)
    progress.poll()
    return out


def _charged(name: str, A: CSR, columns: int, touched: int, like: Array) -> Any:
    ledger.charge("spmm", name, flops=4 * A.nnz * columns, touched=touched)
    return ledger.timed("spmm", name, synchronize=backend.of(like).synchronize)


def _parts(A: CSR, columns: int, like: Array) -> Iterator[slice]:
    step = rows_within(backend.of(like).at_a_time(), columns) if columns else max(A.nnz, 1)
    return (slice(*ends) for ends in every(A.nnz, step))


def _scores(A: CSR, L: Array, R: Array, weights: Array, slope: float, out: Array, signs: Array) -> None:
    xp, rows, slopes = backend.of(L).xp, rows_of(A), _slopes(slope, L.dtype)
    for part in _parts(A, L.shape[1], L):
        X = L[rows[part]]
        X += R[A.indices[part]]
        positive = X > 0
        signs[part] = _packed(positive)
        X *= xp.where(positive, *slopes)
        out[part] = X @ weights


def _slopes(slope: float, dtype: Any) -> tuple[Any, Any]:
    return dtype.type(1), dtype.type(slope)


def _packed(positive: Array) -> Array:
    xp, (count, columns) = backend.of(positive).xp, positive.shape
    padded = xp.zeros((count, 8 * sign_bytes(columns)), bool)
    padded[:, :columns] = positive
    return xp.packbits(padded.reshape(-1)).reshape(count, sign_bytes(columns))


def _terms(values: Array, signs: Array, slope: float, heads: Array) -> Array:
    """Return each entry's value, times its slope, by column."""
    xp = backend.of(values).xp
    bits = xp.unpackbits(signs.reshape(-1)).reshape(len(signs), 8 * signs.shape[1])
    terms = xp.where(bits[:, : len(heads)], *_slopes(slope, values.dtype))
    terms *= values[:, backend.of(values).asarray(heads)]
    return terms


def _slope_sums(A: CSR, values: Array, signs: Array, slope: float, heads: Array, out: Array) -> None:
    rows = rows_of(A)
    for part in _parts(A, len(heads), out) if len(heads) else ():
        terms, of = _terms(values[part], signs[part], slope, heads), rows[part]
        starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
        out[of[starts]] += np.add.reduceat(terms, starts, axis=0)


def _slope_sums_on_gpu(A: CSR, values: Array, signs: Array, slope: float, heads: Array, out: Array) -> None:
    """Sum by products with ones, which add in a fixed order, of as many columns at a time as fit."""
    xp, step = backend.of(out).xp, 8 * max(backend.of(out).at_a_time() // max(8 * A.nnz, 1), 1)
    rows = A.with_values(xp.ones(A.nnz, values.dtype))
    rows.shape, rows.indices = (A.shape[0], A.nnz), xp.arange(A.nnz, dtype=A.indices.dtype)
    for first, last in every(len(heads), step):
        own = xp.ascontiguousarray(signs[:, first // 8 : sign_bytes(last)])
        out[:, first:last] += spmm(rows, _terms(values, own, slope, heads[first:last]))


_ANYWHERE: Functions = {"scores": _scores}
KERNELS = Table(
    numpy=[Kernels({**_ANYWHERE, "slope_sums": _slope_sums})],
    cupy=[Kernels({**_ANYWHERE, "slope_sums": _slope_sums_on_gpu})],
)

"""Passes of additive attention over the entries of a sparse block: a · leaky_relu(L_i + R_j), and back.

The way back needs one bit for each entry and column, 1 where the sum is positive: uint8 (nnz, columns / 8),
an entry after the other. No array has all entries and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from distgnn import ledger, progress
from distgnn.arrays import backend
from distgnn.arrays.blocking import every, rows_within
from distgnn.arrays.csr import CSR
from distgnn.arrays.kernels import Functions, Kernels, KernelTable
from distgnn.local import cuda, host
from distgnn.local.array_edges import rows_of
from distgnn.local.spmm import spmm

Array = Any


def sign_bytes(columns: int) -> int:
    """Return the bytes of the signs of so many columns."""
    return -(-columns // 8)


def scores(
    A: CSR, L: Array, R: Array, a: Array, bounds: Sequence[int], slope: float, out: Array, signs: Array
) -> Array:
    """Compute, for each entry (i, j) of A and each head, the head's part of a · leaky_relu(L_i + R_j).

    Args:
        A: (m, k), of which the pattern counts; L: (m, f); R: (k, f); a: (f).
        bounds: the columns of each head, from 0 to f.
        out: (nnz, heads); signs: uint8 (nnz, sign_bytes(f)), written as well.
    """
    touched = A.nbytes(*A.header()) + L.nbytes + A.nnz * R.shape[1] * R.itemsize + out.nbytes + signs.nbytes
    with _charged("additive scores", A, L.shape[1], touched, L):
        KERNELS.kernel("scores", L)(A, L, R, a, bounds, slope, out, signs)
    progress.poll()
    return out


def slope_sums(
    A: CSR, values: Array, signs: Array, slope: float, bounds: Sequence[int], out: Array, add: bool = False,
    order: Array = None,
) -> Array:  # fmt: skip
    """Compute in ``out`` (m, f), by row and column, the sum of the entries' values times 1, or ``slope``.

    The slope where the entry's sum is not positive; the values are those of the column's head.

    Args:
        A: (m, k), of which the pattern counts; values: (nnz, heads); signs, bounds: of :func:`scores`.
        add: to what is in ``out``. order: the signs of entry e are in row ``order[e]``, without it in row e.
    """
    touched = A.nbytes(*A.header()) + values.nbytes + signs.nbytes + (1 + add) * out.nbytes
    with _charged("slope sums", A, out.shape[1], touched, out):
        KERNELS.kernel("slope_sums", out)(A, values, signs, slope, bounds, out, add, order)
    progress.poll()
    return out


def _charged(name: str, A: CSR, columns: int, touched: int, like: Array) -> Any:
    ledger.charge("spmm", name, flops=4 * A.nnz * columns, touched=touched, shape=(A.nnz, columns))
    return ledger.timed("spmm", name, on=backend.of(like))


# -- kernels of the host -------------------------------------------------------------------------------------


def _scores(
    A: CSR, L: Array, R: Array, a: Array, bounds: Sequence[int], slope: float, out: Array, signs: Array
) -> None:
    ends = np.array(bounds, np.int64)
    host.built().edge_scores(A.indptr, A.indices, L, R, a, ends, slope, out, signs, isa=host.isa())


def _slope_sums(
    A: CSR, values: Array, signs: Array, slope: float, bounds: Sequence[int], out: Array, add: bool,
    order: Array,
) -> None:  # fmt: skip
    ends, options = np.array(bounds, np.int64), {"accumulate": add, "isa": host.isa()}
    host.built().edge_slopes(A.indptr, A.indices, values, signs, ends, slope, out, order=order, **options)


# -- array operations ----------------------------------------------------------------------------------------


def _heads(bounds: Sequence[int]) -> np.ndarray:
    """Return the head of each column."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def _parts(A: CSR, columns: int, like: Array) -> Iterator[slice]:
    step = rows_within(backend.of(like).at_a_time(), columns) if columns else max(A.nnz, 1)
    return (slice(*ends) for ends in every(A.nnz, step))


def _scores_anywhere(
    A: CSR, L: Array, R: Array, a: Array, bounds: Sequence[int], slope: float, out: Array, signs: Array
) -> None:
    on, heads, rows, slopes = backend.of(L), _heads(bounds), rows_of(A), _slopes(slope, L.dtype)
    weights = on.zeros((len(heads), len(bounds) - 1), L.dtype)
    weights[on.xp.arange(len(heads)), on.asarray(heads)] = a
    for part in _parts(A, L.shape[1], L):
        X = L[rows[part]]
        X += R[A.indices[part]]
        positive = X > 0
        signs[part] = _packed(positive)
        X *= on.xp.where(positive, *slopes)
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


def _slope_sums_anywhere(
    A: CSR, values: Array, signs: Array, slope: float, bounds: Sequence[int], out: Array, add: bool,
    order: Array,
) -> None:  # fmt: skip
    """Sum by products with ones, which add in a fixed order, of as many columns at a time as fit."""
    xp, step = backend.of(out).xp, 8 * max(backend.of(out).at_a_time() // max(8 * A.nnz, 1), 1)
    heads, rows = _heads(bounds), A.with_values(xp.ones(A.nnz, values.dtype))
    rows.shape, rows.indices = (A.shape[0], A.nnz), xp.arange(A.nnz, dtype=A.indices.dtype)
    signs = signs if order is None else signs[order]
    for first, last in every(len(heads), step):
        own = xp.ascontiguousarray(signs[:, first // 8 : sign_bytes(last)])
        sums = spmm(rows, _terms(values, own, slope, heads[first:last]))
        out[:, first:last] = out[:, first:last] + sums if add else sums


_CUDA: Functions = {"scores": cuda.edge_scores, "slope_sums": cuda.edge_slopes}
_ANYWHERE: Functions = {"scores": _scores_anywhere, "slope_sums": _slope_sums_anywhere}
KERNELS = KernelTable(
    numpy=[Kernels({"scores": _scores, "slope_sums": _slope_sums}, "fd", host.usable), Kernels(_ANYWHERE)],
    cupy=[Kernels(_CUDA, "fd"), Kernels(_ANYWHERE)],
)

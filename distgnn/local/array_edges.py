"""Passes over entries by array operations of NumPy or CuPy: those of :mod:`distgnn.local.edges`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.blocking import rows_within
from distgnn.arrays.csr import CSR
from distgnn.local.spmm import spmm

Array = Any
Ends = tuple[Array, Array]
SCORES, POWERS, SHARES = 1, 2, 4  # phases of a softmax
SUMS, GRADIENT = 1, 2  # and of its adjoint


def rows_of(A: CSR) -> Array:
    """Return the row of each entry, int64 (nnz,), kept with the block."""
    if "rows of entries" not in A.pattern:
        xp = backend.of(A.indptr).xp
        places = xp.arange(A.nnz, dtype=A.indptr.dtype)
        A.pattern["rows of entries"] = xp.searchsorted(A.indptr[1:], places, side="right")
    return A.pattern["rows of entries"]


def multiply(
    A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool, order: Array
) -> None:
    """Multiply a head at a time."""
    xp = backend.of(B).xp
    values = values if order is None else values[order]
    for head, (first, last) in enumerate(pairwise(bounds)):
        own = A.with_values(xp.ascontiguousarray(values[:, head]))
        product = spmm(own, xp.ascontiguousarray(B[:, first:last]))
        out[:, first:last] = out[:, first:last] + product if add else product


def dots(A: CSR, U: Array, V: Array, bounds: Sequence[int], out: Array) -> None:
    """Compute dot products, some entries at a time."""
    rows = rows_of(A)
    step = rows_within(backend.of(U).at_a_time(), V.shape[1])
    for start in range(0, A.nnz, step):
        part = slice(start, start + step)
        products = U[rows[part]] * V[A.indices[part]]
        for head, (first, last) in enumerate(pairwise(bounds)):
            out[part, head] = products[:, first:last].sum(axis=1)


def end_sums(A: CSR, u: Array, v: Array, out: Array) -> None:
    """Add the numbers of both ends."""
    of_rows(A, u, out)
    out += v[A.indices]


def of_rows(A: CSR, numbers: Array, out: Array) -> None:
    """Spread the numbers of rows. On a host no array of rows is kept for it."""
    if backend.of(out).on_device:
        out[...] = numbers[rows_of(A)]
    else:
        out[...] = np.repeat(numbers, np.diff(A.indptr), axis=0)


def _filled(A: CSR) -> tuple[Array, Array]:
    """Return the rows with entries, and where each begins."""
    xp = backend.of(A.indptr).xp
    rows = xp.flatnonzero(A.indptr[1:] > A.indptr[:-1])
    return rows, A.indptr[rows]


def row_sums(A: CSR, values: Array, out: Array) -> None:
    """Add up rows on the host."""
    rows, starts = _filled(A)
    if rows.size:
        out[rows] += np.add.reduceat(values, starts, axis=0)


def row_maxima(A: CSR, values: Array, out: Array) -> None:
    """Take the maxima of rows on the host."""
    rows, starts = _filled(A)
    if rows.size:
        out[rows] = np.maximum(out[rows], np.maximum.reduceat(values, starts, axis=0))


def row_sums_on_gpu(A: CSR, values: Array, out: Array) -> None:
    """Add up rows by products, which add in a fixed order."""
    ones = backend.of(out).xp.ones((A.shape[1], 1), values.dtype)
    for head in range(values.shape[1]):
        own = A.with_values(backend.of(out).xp.ascontiguousarray(values[:, head]))
        out[:, head] += spmm(own, ones)[:, 0]


def row_maxima_on_gpu(A: CSR, values: Array, out: Array) -> None:
    """Take the maxima of rows, in any order."""
    backend.of(out).xp.maximum.at(out, rows_of(A), values)


def beginnings(A: CSR, x: Array, maxima: Array, sums: Array) -> tuple[Array, Array]:
    """Return the maxima and sums of rows that a softmax begins with, made where there are none."""
    shape = A.shape[0], x.shape[1]
    maxima = np.full(shape, -np.inf, x.dtype) if maxima is None else maxima
    return maxima, np.zeros(shape, x.dtype) if sums is None else sums


def softmax(
    A: CSR, x: Array, maxima: Array, sums: Array, phases: int, ends: Ends | None, slope: float,
    signs: Array, first: int,
) -> None:  # fmt: skip
    """Run phases of a softmax over rows on the host."""
    rows = rows_of(A)
    maxima, sums = beginnings(A, x, maxima, sums)
    if phases & SCORES:
        if ends is not None:
            end_sums(A, *ends, x)
            x *= np.where(x > 0, x.dtype.type(1), x.dtype.type(slope))
        if signs is not None:
            bits = np.packbits(np.concatenate([np.zeros(first % 8, bool), x.reshape(-1) > 0]))
            signs[first // 8 :][: bits.size] |= bits
        row_maxima(A, x, maxima)
    if phases & POWERS:
        np.exp(x - maxima[rows], out=x)
        row_sums(A, x, sums)
    if phases & SHARES:
        x /= sums[rows]


def softmax_back(
    A: CSR, P: Array, x: Array, sums: Array, totals: Array, phases: int, slope: float, signs: Array,
    first: int,
) -> None:  # fmt: skip
    """Run phases of the adjoint of :func:`softmax` on the host."""
    _, sums = beginnings(A, x, sums, sums)
    if phases & SUMS:
        row_sums(A, P * x, sums)
    if phases & GRADIENT:
        x -= sums[rows_of(A)]
        x *= P
        if signs is not None:
            above = np.unpackbits(signs, count=first + x.size)[first:].reshape(x.shape)
            x *= np.where(above, x.dtype.type(1), x.dtype.type(slope))
        if totals is not None:
            row_sums(A, x, totals)

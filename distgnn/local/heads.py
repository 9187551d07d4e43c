"""Products of a matrix with a vector for each of its heads, and their adjoints.

A matrix X, (m, f), has the columns from ``first`` on of a whole one, whose head h has ``width`` columns,
from ``h * width`` on. Of numbers for each row and head, (m, heads), there are
the heads from ``head`` on. Vectors are (f,), a number for each column of X.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn import ledger, progress
from distgnn.arrays import backend, blocking
from distgnn.arrays.blocking import every
from distgnn.arrays.kernels import Functions, Kernels, KernelTable
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda

Array = Any


def sums(
    X: Array, vectors: Sequence[Array], out: Sequence[Array], first: int, width: int, head: int, add: bool
) -> None:  # fmt: skip
    """Compute, for each vector a, the sums of X[i, c] a[c] over the columns c of heads: ``out``, (m, heads).

    ``add``: to what is there.
    """
    with _charged(X, out):
        KERNELS.kernel("sums", X)(X, vectors, out, first, width, head, add)
    progress.poll()


def add(
    X: Array, numbers: Sequence[Array], vectors: Sequence[Array], first: int, width: int, head: int
) -> None:  # fmt: skip
    """Add numbers, (m, heads) for each vector a, times a[c] to X, in the columns c of a head."""
    with _charged(X, numbers):
        KERNELS.kernel("add", X)(X, numbers, vectors, first, width, head)
    progress.poll()


def dots(X: Array, numbers: Sequence[Array], first: int, width: int, head: int) -> Array:
    """Return the sums over rows of X[i, c] times the numbers of the column's head: (numbers, f).

    They are 0 in columns whose heads are not there.
    """
    with _charged(X, numbers):
        made = KERNELS.kernel("dots", X)(X, numbers, first, width, head)
    progress.poll()
    return made


def scaled_dots(X: Array, D: Array, scale: Array) -> Array:
    """Return the sums over rows of X times D, both (m, f): (1, f); scale the columns of D, in place."""
    return KERNELS.kernel("scaled_dots", X)(X, D, scale)


def _charged(X: Array, numbers: Sequence[Array]) -> Any:
    """Charge a pass as the product of matrices that it stands for."""
    (m, f), heads = X.shape, len(numbers) * numbers[0].shape[1]
    touched = X.nbytes + sum(array.nbytes for array in numbers)
    ledger.charge("gemm", "gemm", flops=2 * m * f * heads, touched=touched, shape=(m, f, heads))
    return ledger.timed("gemm", "gemm", on=backend.of(X))


# -- array operations: products with matrices (f, heads) that are 0 outside the columns of a head ------------


def _columns_of(X: Array, first: int, width: int, head: int, heads: int) -> Array:
    """Return which columns are those of each head that is there: (f, heads)."""
    xp = backend.of(X).xp
    return ((first + xp.arange(X.shape[1])) // max(width, 1) - head)[:, None] == xp.arange(heads)


def _matrix(X: Array, vector: Array, columns: Array) -> Array:
    return backend.of(X).xp.where(columns, vector[:, None], X.dtype.type(0))


def _rows(X: Array) -> list[slice]:
    """Cut X into rows that stay in a cache."""
    step = max(len(X), 1) if backend.of(X).on_device else TUNING.gemm_rows
    return [slice(*rows) for rows in every(len(X), step)]


def _sums(
    X: Array, vectors: Sequence[Array], out: Sequence[Array], first: int, width: int, head: int, add: bool
) -> None:  # fmt: skip
    on, columns = backend.of(X), _columns_of(X, first, width, head, out[0].shape[1])
    matrices = [_matrix(X, vector, columns) for vector in vectors]
    for rows in _rows(X):
        for matrix, made in zip(matrices, out, strict=True):
            on.matmul(X[rows], matrix, made[rows], add)


def _add(
    X: Array, numbers: Sequence[Array], vectors: Sequence[Array], first: int, width: int, head: int
) -> None:  # fmt: skip
    on, columns = backend.of(X), _columns_of(X, first, width, head, numbers[0].shape[1])
    matrices = [_matrix(X, vector, columns).T for vector in vectors]
    for rows in _rows(X):
        for D, matrix in zip(numbers, matrices, strict=True):
            on.matmul(D[rows], matrix, X[rows], True)


def _dots(X: Array, numbers: Sequence[Array], first: int, width: int, head: int) -> Array:
    on, columns = backend.of(X), _columns_of(X, first, width, head, numbers[0].shape[1])
    made = on.empty((len(numbers), X.shape[1]), X.dtype)
    for row, D in zip(made, numbers, strict=True):
        row[...] = on.xp.where(columns, on.matmul(X.T, D), X.dtype.type(0)).sum(axis=1)
    return made


def _scaled_dots(X: Array, D: Array, scale: Array) -> Array:
    made = backend.of(X).zeros((1, scale.size), np.float64)
    for part in blocking.passes(X):
        made += (X[part] * D[part]).sum(axis=0, dtype="float64")
        D[part] *= scale
    return made.astype(X.dtype)


_CUDA: Functions = {
    "sums": cuda.head_sums, "add": cuda.add_heads, "dots": cuda.head_dots, "scaled_dots": cuda.scaled_dots,
}  # fmt: skip
_ARRAYS: Functions = {"sums": _sums, "add": _add, "dots": _dots, "scaled_dots": _scaled_dots}
KERNELS = KernelTable(numpy=[Kernels(_ARRAYS)], cupy=[Kernels(_CUDA, "fd"), Kernels(_ARRAYS)])

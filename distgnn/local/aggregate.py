"""Products over semirings: what the entries of a row make of their rows of B, reduced in each column.

The best (largest or least) entries come with the codes of the columns where they are, int32 beside float32
and int64 beside float64, -1 where there is none. Which of equal entries is the best, and where, does not
depend on the order of the entries: NaN is better than any number, and the smaller code than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distgnn import ledger, progress
from distgnn.arrays import backend
from distgnn.arrays.blocking import rows_within
from distgnn.arrays.csr import CSR
from distgnn.arrays.kernels import Kernels, KernelTable
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda, host
from distgnn.local.edges import rows_of
from distgnn.local.spmm import spmm

Array = Any
REDUCTIONS = ("sum", "mean", "max", "min")
COMBINATIONS = ("times", "plus", "pattern")


@dataclass(frozen=True)
class Semiring:
    """A reduction over neighbours, and how the value a of an entry and a number h of a neighbour combine.

    Attributes:
        reduce: one of sum, mean, max, min; combine: times (a h), plus (a + h) or pattern (h).
    """

    reduce: str
    combine: str

    @property
    def picks(self) -> bool:
        """True where the result is one of the neighbours' numbers, not made of all of them."""
        return self.reduce in ("max", "min")

    @property
    def least(self) -> bool:
        """True for min."""
        return self.reduce == "min"

    @property
    def empty(self) -> float:
        """The result of a row without entries: 0; of max and min with plus, the neutral number of these."""
        if not self.picks or self.combine != "plus":
            return 0.0
        return np.inf if self.least else -np.inf


class Codes(NamedTuple):
    """Codes of the columns of a block: ``table[j]``, or ``first + j`` without one.

    Attributes:
        places: where each code of this rank is among its columns, None where code k is at k; start: where
            those of the block begin.
    """

    first: int = 0
    table: Array = None
    places: Array = None
    start: int = 0

    def rows(self, first: int, last: int) -> Codes:
        """Return the codes of these columns of the block."""
        table = None if self.table is None else self.table[first:last]
        return Codes(self.first + first, table, self.places, self.start + first)


def code_type(dtype: Any) -> np.dtype:
    """Return the type of codes beside numbers of this type."""
    return np.dtype(np.int64 if np.dtype(dtype).itemsize == 8 else np.int32)


def best(A: CSR, B: Array, codes: Codes, how: Semiring, T: Array, C: Array, merge: bool = False) -> None:
    """Compute in ``T`` the best of each row, inf or -inf where there is none, and its code in ``C``.

    Args:
        A: (m, k); B: (k, f); T: (m, f), C-contiguous; C: (m, f), codes.
        merge: with what T and C have already.
    """
    on = backend.of(B)
    touched = A.nbytes(*A.header()) + A.nnz * B.shape[1] * B.itemsize + (1 + merge) * 2 * T.nbytes
    taken = *A.shape, A.nnz, B.shape[1]
    ledger.charge("spmm", "spmm", flops=2 * A.nnz * B.shape[1], touched=touched, shape=taken)
    with ledger.timed("spmm", "spmm", on=on):
        KERNELS.kernel("best", B)(A, B, codes, how, T, C, merge)
    progress.poll()


def best_back(At: CSR, G: Array, C: Array, codes: Codes, how: Semiring, out: Array) -> None:
    """Add up in ``out`` (k, f) the entries of G where C has the code of a column, in the order of G's rows.

    With ``times``, each is multiplied by the entry's value.

    Args:
        At: the transposed block, (k, m); G, C: (m, f); codes: of the rows of At.
    """
    on = backend.of(G)
    touched = 2 * G.nbytes + 2 * out.nbytes + At.nbytes(*At.header())
    ledger.charge("spmm", "scatter best", flops=2 * G.size, touched=touched)
    with ledger.timed("spmm", "scatter best", on=on):
        KERNELS.kernel("best_back", G)(At, G, C, codes, how, out)
    progress.poll()


def add(A: CSR, B: Array, how: Semiring, out: Array, accumulate: bool = False) -> None:
    """Compute ``out`` = Σ of what entries make of B, or add it to ``out``: A B, or with ones in A's place."""
    if how.combine == "times":
        spmm(A, B, out, accumulate)
        return
    xp = backend.of(B).xp
    spmm(ones(A), B, out, accumulate)
    if how.combine == "plus" and B.shape[1]:
        out += spmm(A, xp.ones((A.shape[1], 1), B.dtype))


def add_back(At: CSR, G: Array, how: Semiring, out: Array) -> None:
    """Compute in ``out`` the gradient of what :func:`add` multiplies: At G, or with ones in At's place."""
    spmm(At if how.combine == "times" else ones(At), G, out)


def ones(A: CSR) -> CSR:
    """Make a block of the same structure, with ones."""
    return A.with_values(backend.of(A.indices).xp.ones((A.nnz,), A.dtype))


def fill(T: Array, C: Array, how: Semiring) -> None:
    """Give rows without entries what they get, in place."""
    if how.combine != "plus" and T.shape[1]:
        T[C[:, 0] < 0] = 0


def merge(T: Array, C: Array, U: Array, D: Array, how: Semiring) -> None:
    """Make of (T, C) the better of it and (U, D), in place."""
    xp, kind = backend.of(T).xp, np.dtype(f"uint{8 * C.itemsize}")  # -1 as the largest code
    less = xp.less if how.least else xp.greater
    missing, lost, after = U != U, T != T, C.view(kind) > D.view(kind)
    equal = (U == T) | (missing & lost)
    better = less(U, T) | (missing & ~lost) | (equal & after)
    T[...] = xp.where(better, U, T)
    C[...] = xp.where(better, D, C)


# -- on the host ---------------------------------------------------------------------------------------------


def _best_compiled(
    A: CSR, B: Array, codes: Codes, how: Semiring, T: Array, C: Array, merge: bool
) -> None:  # fmt: skip
    kernel = partial(
        host.built().best, first=codes.first, plus=how.combine == "plus", least=how.least, merge=merge,
        threads=host.threads(), isa=host.isa(),
    )  # fmt: skip
    blocks = [((0, A.shape[0]), A)]
    if progress.pending():
        blocks = A.row_blocks(rows_within(TUNING.flops_between_polls, B.shape[1]))
    for (top, bottom), rows in blocks:
        values = None if how.combine == "pattern" else rows.data
        kernel(rows.indptr, rows.indices, values, B, codes.table, T[top:bottom], C[top:bottom])
        progress.poll()


def _best_back_compiled(At: CSR, G: Array, C: Array, codes: Codes, how: Semiring, out: Array) -> None:
    values = At.data if how.combine == "times" else None
    first = codes.start if codes.places is not None else codes.first
    host.built().best_back(At.indptr, At.indices, values, G, C, codes.places, out, first=first)


def _best(A: CSR, B: Array, codes: Codes, how: Semiring, T: Array, C: Array, merge: bool) -> None:
    """Make the combinations of some rows at a time."""
    if not merge:
        T[...], C[...] = np.inf if how.least else -np.inf, -1
    for (top, bottom), rows in A.row_blocks(rows_within(1 << 20, B.shape[1])):
        filled = np.flatnonzero(rows.indptr[1:] > rows.indptr[:-1])
        if filled.size:
            _best_of_rows(rows, B, codes, how, filled, T[top:bottom], C[top:bottom])


def _best_of_rows(
    A: CSR, B: Array, codes: Codes, how: Semiring, filled: Array, T: Array, C: Array
) -> None:  # fmt: skip
    X = B[A.indices]
    if how.combine != "pattern":
        with np.errstate(invalid="ignore"):  # inf - inf and 0 inf are NaN
            X = A.data[:, None] * X if how.combine == "times" else A.data[:, None] + X
    starts, reduce = A.indptr[filled], np.minimum if how.least else np.maximum
    U = reduce.reduceat(X, starts, axis=0)
    whole = U[np.searchsorted(filled, rows_of(A))]
    of_columns = A.indices + codes.first if codes.table is None else codes.table[A.indices]
    there = (whole == X) | ((whole != whole) & (X != X))
    D = np.where(there, of_columns.astype(C.dtype)[:, None], np.array(np.iinfo(C.dtype).max, C.dtype))
    D = np.minimum.reduceat(D, starts, axis=0)
    own, held = T[filled], C[filled]
    merge(own, held, U, D, how)
    T[filled], C[filled] = own, held


def _best_back(At: CSR, G: Array, C: Array, codes: Codes, how: Semiring, out: Array) -> None:
    """Take some rows of the transposed block at a time."""
    out[...] = 0
    for (top, bottom), rows in At.row_blocks(rows_within(1 << 20, G.shape[1])):
        filled = np.flatnonzero(rows.indptr[1:] > rows.indptr[:-1])
        if filled.size:
            own = np.arange(top, bottom) + codes.first if codes.table is None else codes.table[top:bottom]
            X = np.where(C[rows.indices] == own[rows_of(rows)][:, None], G[rows.indices], G.dtype.type(0))
            X = X * rows.data[:, None] if how.combine == "times" else X
            out[top:bottom][filled] = np.add.reduceat(X, rows.indptr[filled], axis=0)


KERNELS = KernelTable(
    numpy=[
        Kernels({"best": _best_compiled, "best_back": _best_back_compiled}, "fd", host.usable),
        Kernels({"best": _best, "best_back": _best_back}),
    ],
    cupy=[Kernels({"best": cuda.best, "best_back": cuda.best_back})],
)

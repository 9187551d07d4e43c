"""Passes over the entries of a sparse block, each of which has one number per head.

Numbers of entries are arrays (nnz, heads), C-contiguous, in the order of the block. A head has some columns
of the dense matrices beside it: head k has those between ``bounds[k]`` and ``bounds[k + 1]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import _sparsetools

from distgnn import ledger, progress
from distgnn.arrays import backend
from distgnn.arrays.blocking import rows_within
from distgnn.arrays.csr import CSR
from distgnn.arrays.kernels import Functions, Kernels, KernelTable
from distgnn.arrays.tuning import TUNING
from distgnn.local import array_edges as arrays
from distgnn.local import cuda, host
from distgnn.local.array_edges import GRADIENT, POWERS, SCORES, SHARES, SUMS, Ends, rows_of
from distgnn.local.rows import gather_rows
from distgnn.local.spmm import spmm

__all__ = [
    "GRADIENT", "POWERS", "SCORES", "SHARES", "SUMS", "dots", "end_sums", "gathered", "multiply", "of_rows",
    "permuted", "row_maxima", "row_sums", "rows_of", "run_sums", "signs_for", "softmax", "softmax_back",
    "transposition",
]  # fmt: skip
Array = Any


def multiply(
    A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool = False, order: Array = None
) -> Array:
    """Compute ``out = A B``, or ``out += A B`` with ``add``, where the entries of A have other values.

    Args:
        A: (m, k), of which the pattern counts; values: (nnz, heads); B: (k, f); out: (m, f), C-contiguous.
        bounds: the columns of B and ``out`` of each head.
        order: whose values entry e has, ``values[order[e]]``; without it its own. Such as the
            :func:`transposition` of the block of which A is the transpose.
    """
    if values.shape[1] == 1:
        values = values if order is None else gathered(values, order)
        return spmm(A.with_values(values.reshape(-1)), B, out, add)
    on = backend.of(B)
    touched = A.nbytes(*A.header()) + values.nbytes + A.nnz * B.shape[1] * B.itemsize + (1 + add) * out.nbytes
    taken = *A.shape, A.nnz, B.shape[1]
    ledger.charge("spmm", "spmm", flops=2 * A.nnz * B.shape[1], touched=touched, shape=taken)
    with ledger.timed("spmm", "spmm", on=on):
        KERNELS.kernel("multiply", B)(A, values, B, bounds, out, add, order)
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
    taken = A.nnz, V.shape[1]
    ledger.charge("spmm", "sddmm", flops=2 * A.nnz * V.shape[1], touched=touched, shape=taken)
    with ledger.timed("spmm", "sddmm", on=on):
        KERNELS.kernel("dots", U)(A, U, V, bounds, out)
    progress.poll()
    return out


def softmax(
    A: CSR, x: Array, maxima: Array = None, sums: Array = None, phases: int = SCORES | POWERS | SHARES, *,
    ends: Ends | None = None, slope: float = 1, signs: Array = None, first: int = 0,
) -> None:  # fmt: skip
    """Run phases of a softmax over rows, all at once where A has all entries of its rows.

    ``SCORES``: with ``ends`` (u, v), ``x = leaky_relu(u_i + v_j)``; the maxima of rows with those there.
    ``POWERS``: ``x = exp(x - maxima)``, added to ``sums``. ``SHARES``: ``x /= sums``.

    Args:
        x: (nnz, heads); maxima: (m, heads), -inf at first; sums: (m, heads), 0 at first. In all phases at
            once neither is read again, and both may be None.
        ends: (m, heads) and (k, heads). slope: not negative, of the leaky ReLU.
        signs: of :func:`signs_for`, whose bits ``first`` on say which scores are above 0; or None.
    """
    beside = ends or ()
    options = ends, slope, signs, first
    part = phases.bit_count() / 3
    _run("softmax", A, x, (maxima, sums, *beside), A, x, maxima, sums, phases, *options, part=part)


def softmax_back(
    A: CSR, P: Array, x: Array, sums: Array = None, totals: Array = None, phases: int = SUMS | GRADIENT, *,
    slope: float = 1, signs: Array = None, first: int = 0,
) -> None:  # fmt: skip
    """Run phases of the adjoint of :func:`softmax`, from x, the gradient of P, to that of the scores.

    ``SUMS``: the sums of ``P x`` in each row are added to ``sums``. ``GRADIENT``: ``x = P (x - sums)``, times
    ``slope`` where ``signs`` say so; its sums in each row are added to ``totals``, if not None.

    Args:
        P, x: (nnz, heads), apart; sums, totals: (m, heads), 0 at first, sums None as of :func:`softmax`;
            others as there.
    """
    given, part = (P, x, sums, totals, phases, slope, signs, first), phases.bit_count() / 2
    _run("softmax_back", A, x, (P, sums), A, *given, part=part)


def signs_for(count: int, on: Any) -> Array:
    """Make room for a bit for each of so many numbers, 0 at first: uint8, whole words and one more."""
    return on.zeros((4 * (count // 32 + 2),), np.uint8)


def end_sums(A: CSR, u: Array, v: Array, out: Array) -> Array:
    """Compute ``out = u_i + v_j`` of each entry (i, j) of A; u: (m, heads); v: (k, heads)."""
    return _run("end_sums", A, out, (u, v), A, u, v, out)


def row_sums(A: CSR, values: Array, out: Array) -> Array:
    """Add the sums of each row's values to ``out`` (m, heads)."""
    return _run("row_sums", A, out, (values,), A, values, out)


def run_sums(values: Array, bounds: Array) -> Array:
    """Sum runs of values, run i from ``bounds[i]`` to ``bounds[i + 1]``, from first to last: (runs,)."""
    on, runs = backend.of(values), len(bounds) - 1
    A = CSR.empty((runs, 1), len(values), values.dtype, on, "workspace")
    A.data[...], A.indices[...], A.indptr[...] = values, 0, bounds
    return row_sums(A, values[:, None], on.zeros((runs, 1), values.dtype))[:, 0]


def row_maxima(A: CSR, values: Array, out: Array) -> Array:
    """Compute in ``out`` (m, heads) the largest of it and of each row's values."""
    return _run("row_maxima", A, out, (values,), A, values, out)


def of_rows(A: CSR, numbers: Array, out: Array) -> Array:
    """Give each entry the numbers (m, heads) of its row, in ``out`` (nnz, heads)."""
    return _run("of_rows", A, out, (numbers,), A, numbers, out)


def transposition(A: CSR) -> Array:
    """Return where each entry of the transposed block, its rows sorted, stands in A: (nnz,), kept.

    Integers are int32 where A's are: a word for each entry.
    """
    if "transposition" not in A.pattern:
        A.pattern["transposition"] = KERNELS.kernel("transposition", A.indptr)(A)
    return A.pattern["transposition"]


def permuted(A: CSR, values: Array) -> Array:
    """Return the numbers (nnz, heads) of A's entries in the order of the transposed block."""
    return gathered(values, transposition(A))


def gathered(values: Array, order: Array, out: Array = None) -> Array:
    """Return the numbers (nnz, heads) at these places, in ``out`` if given."""
    on = backend.of(values)
    if on.on_device and values.shape[1] == 1 and out is None:
        return values[order]
    return gather_rows(values, order.astype(np.int64) if on.on_device else order, out)


def _run(
    name: str, A: CSR, out: Array, beside: tuple[Array, ...], *arguments: Any, part: float = 1.0
) -> Array:  # fmt: skip
    """Charge and run a pass that reads and writes ``out`` and reads the arrays beside it.

    ``part``: of all that a pass of this name may do, which has a price.
    """
    on, said = backend.of(out), name.replace("_", " ")
    read = sum(array.nbytes for array in beside if array is not None)
    touched = A.nnz * A.indices.itemsize + out.nbytes + read
    ledger.charge("spmm", said, touched=touched, shape=(round(part * A.nnz), out.shape[1]))
    with ledger.timed("spmm", said, on=on):
        KERNELS.kernel(name, out)(*arguments)
    progress.poll()
    return out


# -- kernels of the host -------------------------------------------------------------------------------------


def _multiply(
    A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool, order: Array
) -> None:
    """Multiply some rows at a time where messages are under way, which are driven in between."""
    if not A.nnz or not out.size:  # where an empty array lies says nothing
        if not add:
            out[...] = 0
        return
    ends, options = np.array(bounds, np.int64), {"accumulate": add, "isa": host.isa()}
    product = host.built().edge_products
    if not progress.pending():
        product(A.indptr, A.indices, values, B, ends, out, order=order, **options)
        return
    pointers = A.indptr  # which a thin block makes anew
    for (top, bottom), rows in A.row_blocks(rows_within(TUNING.flops_between_polls, B.shape[1])):
        if not rows.nnz:
            if not add:
                out[top:bottom] = 0
            continue
        part = slice(int(pointers[top]), int(pointers[bottom]))
        own, theirs = (values[part], None) if order is None else (values, order[part])
        product(rows.indptr, rows.indices, own, B, ends, out[top:bottom], order=theirs, **options)
        progress.poll()


def _dots(A: CSR, U: Array, V: Array, bounds: Sequence[int], out: Array) -> None:
    ends = np.array(bounds, np.int64)
    host.built().edge_dots(A.indptr, A.indices, U, V, ends, out, isa=host.isa())


def _softmax(
    A: CSR, x: Array, maxima: Array, sums: Array, phases: int, ends: Ends | None, slope: float,
    signs: Array, first: int,
) -> None:  # fmt: skip
    u, v = ends or (None, None)
    maxima, sums = arrays.beginnings(A, x, maxima, sums)
    options = {"u": u, "v": v, "slope": slope, "signs": signs, "first": first, "isa": host.isa()}
    host.built().edge_softmax(A.indptr, A.indices, x, maxima, sums, phases, **options)


def _softmax_back(
    A: CSR, P: Array, x: Array, sums: Array, totals: Array, phases: int, slope: float, signs: Array,
    first: int,
) -> None:  # fmt: skip
    options = {"slope": slope, "signs": signs, "first": first, "isa": host.isa()}
    _, sums = arrays.beginnings(A, x, sums, sums)
    host.built().edge_softmax_back(A.indptr, A.indices, P, x, sums, totals, phases, **options)


def _transposition(A: CSR) -> Array:
    """Count: the entries of a column, in the order of rows, behind those of the columns before."""
    kind = A.indices.dtype
    pointers, rows, order = (np.empty(size, kind) for size in (A.shape[1] + 1, A.nnz, A.nnz))
    _sparsetools.csr_tocsc(*A.shape, A.indptr, A.indices, np.arange(A.nnz, dtype=kind), pointers, rows, order)
    return order


def _transposition_on_gpu(A: CSR) -> Array:
    """Sort, because counting by atomics would put the entries of a column in any order."""
    return backend.of(A.indices).xp.argsort(A.indices, kind="stable").astype(A.indices.dtype)


_ANYWHERE: Functions = {"end_sums": arrays.end_sums, "of_rows": arrays.of_rows}
_COMPILED: Functions = {
    "multiply": _multiply, "dots": _dots, "softmax": _softmax, "softmax_back": _softmax_back,
}  # fmt: skip
_PLAIN: Functions = {
    "multiply": arrays.multiply, "dots": arrays.dots, "softmax": arrays.softmax,
    "softmax_back": arrays.softmax_back, "row_sums": arrays.row_sums, "row_maxima": arrays.row_maxima,
    "transposition": _transposition,
}  # fmt: skip
_CUDA: Functions = {
    "multiply": cuda.edge_products, "dots": cuda.edge_dots, "softmax": cuda.edge_softmax,
    "softmax_back": cuda.edge_softmax_back,
}  # fmt: skip
_ON_GPU: Functions = {
    "row_sums": arrays.row_sums_on_gpu, "row_maxima": arrays.row_maxima_on_gpu,
    "transposition": _transposition_on_gpu,
}  # fmt: skip
KERNELS = KernelTable(
    numpy=[Kernels(_COMPILED, "fd", host.usable), Kernels({**_ANYWHERE, **_PLAIN})],
    cupy=[Kernels(_CUDA, "fd"), Kernels({**_ANYWHERE, **_ON_GPU})],
)

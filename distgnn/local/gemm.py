"""Dense products on one rank."""

from __future__ import annotations

from typing import Any

from distgnn import ledger, progress
from distgnn.arrays import backend
from distgnn.arrays.blocking import every
from distgnn.arrays.kernels import Kernels, KernelTable
from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda
from distgnn.local.epilogue import Ending
from distgnn.local.forms import Form, laid
from distgnn.local.narrow import numbers_of, widened


def gemm(
    A: Any, B: Any, out: Any = None, accumulate: bool = False, trans_a: bool = False, trans_b: bool = False,
    form: Form | None = None, then: Ending | None = None,
) -> Any:  # fmt: skip
    """Compute ``out = op(A) op(B)``, or ``out += op(A) op(B)`` with ``accumulate``; op may transpose.

    A, B and ``out`` are 2-D arrays of one dtype on one device; ``form``: how BLAS is called, by default as
    they come. ``then``: what becomes of ``out``, C-contiguous then; a kernel that does it says so. Returns
    ``out``, made when missing. It may be of :func:`rounded_room`, for a product alone; then all that becomes
    of it is done before it is rounded.
    """
    A, B = A.T if trans_a else A, B.T if trans_b else B
    on = backend.of(B)
    accumulate = accumulate and out is not None
    out = on.empty((A.shape[0], B.shape[1]), B.dtype) if out is None else out
    touched = A.nbytes + B.nbytes + (1 + accumulate) * out.nbytes
    taken = *A.shape, B.shape[1]
    ledger.charge(
        "gemm", "gemm", flops=2 * A.shape[0] * A.shape[1] * B.shape[1], touched=touched, shape=taken
    )
    with ledger.timed("gemm", "gemm", on=on):
        KERNELS.kernel("gemm", B)(A, B, out, accumulate, form, trans_a, then)
    return out


def _in_row_blocks(
    A: Any, B: Any, out: Any, accumulate: bool, form: Form | None, whole: bool, then: Ending | None
) -> None:  # fmt: skip
    """Multiply so many rows at a time as stay in a cache, or all of them, and drive messages after each.

    What becomes of them is left to a pass of its own: in a cache, calls per block cost as much as it.
    """
    on = backend.of(B)
    B = B if form is None else laid(on.xp, B, form.b)  # once for all rows
    for block in every(A.shape[0], max(A.shape[0], 1) if whole else TUNING.gemm_rows):
        rows = slice(*block)
        if form is None:
            on.matmul(A[rows], B, out[rows], accumulate)
        else:
            form.multiply(on, A[rows], B, out[rows], accumulate)
        progress.poll()


def _at_once(
    A: Any, B: Any, out: Any, accumulate: bool, form: Form | None, whole: bool, then: Ending | None
) -> None:  # fmt: skip
    """Multiply all rows, by a kernel of ours for tensor cores where there is one."""
    on: Any = backend.of(B)
    as_they_lie, exact = form is None or form.as_they_lie(A, B), not on.rounds_to_tf32()
    if as_they_lie and cuda.gemm(A, B, out, accumulate, then, exact):
        return
    if isinstance(A, cuda.Rounded) or isinstance(B, cuda.Rounded):
        _at_once(widened(A), widened(B), out, accumulate, form, whole, then)
    elif isinstance(out, cuda.Rounded):
        with numbers_of(out, then) as numbers:
            _at_once(A, B, numbers, False, form, whole, then)
    else:
        _in_row_blocks(A, B, out, accumulate, form, True, then)


KERNELS = KernelTable(numpy=[Kernels({"gemm": _in_row_blocks})], cupy=[Kernels({"gemm": _at_once})])

"""Dense products on one rank."""

from __future__ import annotations

from typing import Any

from distgnn import ledger, progress
from distgnn.arrays import backend
from distgnn.arrays.tuning import TUNING
from distgnn.local.forms import Form, laid


def gemm(
    A: Any, B: Any, out: Any = None, accumulate: bool = False, trans_a: bool = False, trans_b: bool = False,
    form: Form | None = None,
) -> Any:  # fmt: skip
    """``out = op(A) op(B)``, or ``out += op(A) op(B)`` with ``accumulate``; op transposes where asked.

    A, B and ``out`` are 2-D arrays of one dtype on one device; ``form``: how BLAS is called, by default as
    they come. Returns ``out``, made when missing.
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
    with ledger.timed("gemm", "gemm", synchronize=on.synchronize):
        whole = on.on_device or trans_a
        step = max(A.shape[0], 1) if whole else TUNING.gemm_rows
        B = B if form is None else laid(on.xp, B, form.b)  # once for all rows
        for top in range(0, A.shape[0] if on.numbers else 0, step):
            rows = slice(top, top + step)
            product = on.empty((len(out[rows]), B.shape[1]), B.dtype) if accumulate else out[rows]
            if form is None:
                on.xp.matmul(A[rows], B, out=product)
            else:
                form.multiply(on.xp, A[rows], B, product)
            if accumulate:
                out[rows] += product
            progress.poll()
    return out

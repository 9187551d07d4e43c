"""Sparse times dense on one rank. The array type picks the kernel; ``DISTGNN_SPMM`` forces one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import _sparsetools

from distgnn import ledger, progress
from distgnn.arrays import backend
from distgnn.arrays.blocking import rows_within
from distgnn.arrays.csr import CSR
from distgnn.arrays.kernels import Kernels, KernelTable
from distgnn.arrays.tuning import TUNING
from distgnn.errors import UserError
from distgnn.local import cuda, host
from distgnn.local.epilogue import Ending
from distgnn.local.narrow import numbers_of

#: (A, B, out, accumulate)
SpmmKernel = Callable[[CSR, Any, Any, bool], None]


def spmm(
    A: CSR, B: Any, out: Any = None, accumulate: bool = False, then: Ending | None = None
) -> Any:  # fmt: skip
    """Compute ``out = A B``, or ``out += A B`` with ``accumulate``.

    Args:
        A: (m, k) CSR block; B: (k, f) C-contiguous dense block of the same dtype on the same device, or what
            :func:`rounded` made of it.
        out: (m, f) C-contiguous, sharing no memory with B; made when missing. Returned. It may be of
            :func:`rounded_room`, for a product alone, which is rounded when all that becomes of it is done.
        then: what becomes of ``out``, which our kernel for GPUs does, if it can.

    Raises:
        ValueError: shapes or dtypes that don't fit, or an array that is not C-contiguous.
    """
    shape = (A.shape[0], B.shape[1])
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"spmm: shapes {A.shape} and {B.shape} don't multiply")
    on = backend.of(B)
    if out is None:
        out, accumulate = on.empty(shape, B.dtype), False
    for name, array in (("B", B), ("out", out)):
        if array.dtype != A.dtype or not array.flags.c_contiguous:
            got = f"{array.dtype} with strides {array.strides}"
            raise ValueError(f"spmm: {name} must be C-contiguous {A.dtype}, got {got}")
    if out.shape != shape:
        raise ValueError(f"spmm: out has shape {out.shape}, the product {shape}")
    nonzeros = A.nnz
    rows_of_B = nonzeros * shape[1] * B.itemsize
    touched = A.nbytes(*A.header()) + rows_of_B + (1 + accumulate) * out.nbytes
    taken = *A.shape, nonzeros, shape[1]
    ledger.charge("spmm", "spmm", flops=2 * nonzeros * shape[1], touched=touched, shape=taken)
    with ledger.timed("spmm", "spmm", on=on):
        if isinstance(out, cuda.Rounded) and not (nonzeros and cuda.writes_rounded(B, then)):
            with numbers_of(out, then) as numbers:
                _multiply(A, B, numbers, False, then)
        else:
            _multiply(A, B, out, accumulate, then)
    return out


def _multiply(A: CSR, B: Any, out: Any, accumulate: bool, then: Ending | None) -> None:
    """Multiply by the kernel for B; without non-zeros, ``then`` is left to the caller."""
    if A.nnz and B.shape[1]:
        if then is not None and (ending := KERNELS.find("spmm_then", B)) is not None:
            ending(A, B, out, accumulate, then)
        else:
            KERNELS.kernel("spmm", B)(A, B, out, accumulate)
    elif not accumulate:
        out[...] = 0


def spmm_transposed(A: CSR, B: Any, out: Any) -> Any:
    """Compute ``out = Aᵀ B`` where Aᵀ is not held: some rows of A are transposed at a time, and let go.

    On a host, see :func:`transposes`. ``A``: (m, k); ``B``: (m, f); ``out``: (k, f), as of :func:`spmm`.
    Rounding is that of a sum of products. Cost: a pass over ``out`` for each of TUNING.transposed_pieces
    parts, and the transposition, in all as much as a product of 8 columns or so.
    """
    KERNELS.kernel("spmm_transposed", B)(A, B, out)
    return out


def transposes(B: Any) -> bool:
    """Tell whether :func:`spmm_transposed` takes such an array."""
    return KERNELS.find("spmm_transposed", B) is not None


def rounded(B: Any, kind: str, beyond: Any) -> Any:
    """Return what :func:`spmm` reads of ``B``, in one product or several: on a GPU 16 bits of that kind.

    ``B`` itself is returned on a host, of other types than float32, and where cuSPARSE multiplies. Weights,
    sums and results stay float32, values that have 16 bits already what they are. ``beyond``: as of
    :func:`narrow`. Cost: 6 bytes per number, and 2 of memory until the products are done.
    """
    function = KERNELS.find("rounded", B)
    if function is None or isinstance(B, cuda.Rounded):
        return B
    with ledger.timed("spmm", "spmm", on=backend.of(B)):
        return function(B, kind, beyond)


def reads_rounded(B: Any) -> bool:
    """Tell whether :func:`rounded` makes 16 bits of arrays such as this one."""
    return KERNELS.find("rounded", B) is not None


def _in_row_blocks(A: CSR, B: Any, out: Any, accumulate: bool) -> None:
    """Multiply some rows at a time where messages are under way, which are driven in between."""
    kernel = _spmm_kernel("numpy", A.dtype)
    if not progress.pending():
        kernel(A, B, out, accumulate)
        return
    for (top, bottom), rows in A.row_blocks(rows_within(TUNING.flops_between_polls, B.shape[1])):
        kernel(rows, B, out[top:bottom], accumulate)
        progress.poll()


def _at_once(A: CSR, B: Any, out: Any, accumulate: bool) -> None:
    """Queue the product, and drive messages."""
    _spmm_kernel("cupy", A.dtype)(A, B, out, accumulate)
    progress.poll()


def _then(A: CSR, B: Any, out: Any, accumulate: bool, then: Ending) -> None:
    if _spmm_kernel("cupy", A.dtype) is not cuda.spmm:
        _at_once(A, B, out, accumulate)
    else:
        cuda.spmm(A, B, out, accumulate, then=then)
        progress.poll()


def _ours() -> bool:
    """Tell whether float32 on a GPU is multiplied by our kernel."""
    return _spmm_kernel("cupy", np.dtype(np.float32)) is cuda.spmm


def _spmm_scipy(A: CSR, B: Any, out: Any, accumulate: bool) -> None:
    # The routine behind SciPy's csr @ dense, called directly because it adds into `out` without a temporary.
    if not accumulate:
        out[...] = 0
    m, k = A.shape
    _sparsetools.csr_matvecs(m, k, B.shape[1], A.indptr, A.indices, A.data, B.ravel(), out.ravel())


def _transposed(A: CSR, B: Any, out: Any) -> None:
    on, nonzeros = backend.of(B), -(-max(A.nnz, 1) // TUNING.transposed_pieces)
    for number, (rows, part) in enumerate(A.row_blocks(nonzeros)):
        spmm(part.transposed(on), B[slice(*rows)], out=out, accumulate=number > 0)
    if not A.shape[0]:
        out[...] = 0


KERNELS = KernelTable(
    numpy=[Kernels({"spmm": _in_row_blocks, "spmm_transposed": _transposed})],
    cupy=[Kernels({"spmm": _at_once, "spmm_then": _then}), Kernels({"rounded": cuda.rounded}, "f", _ours)],
)

#: By backend, best first. ``auto`` takes the first that can do the job.
_SPMM_KERNELS: dict[str, dict[str, SpmmKernel]] = {
    "numpy": {"host": host.spmm, "scipy": _spmm_scipy},
    "cupy": {"raw": cuda.spmm, "cusparse": cuda.spmm_cusparse},
}


@functools.cache
def _spmm_kernel(device: str, dtype: np.dtype) -> SpmmKernel:
    kernels = _SPMM_KERNELS[device]
    wanted = os.environ.get("DISTGNN_SPMM", "auto")
    if wanted == "auto":
        return next(kernel for name, kernel in kernels.items() if _can(name, dtype))
    if wanted not in kernels:
        there = ", ".join(["auto", *kernels])
        raise UserError(f"DISTGNN_SPMM={wanted}: no such kernel for {device} arrays; there is {there}")
    if not _can(wanted, dtype):
        raise UserError(f"DISTGNN_SPMM={wanted}: not for {dtype}, or not built (install with a C compiler)")
    return kernels[wanted]


def _can(name: str, dtype: np.dtype) -> bool:
    return name != "host" or (dtype in (np.float32, np.float64) and host.module() is not None)

"""Products on one rank. Each function picks a kernel by array type; the choice can be forced with ``DISTGNN_SPMM``.

The kernels behind ``spmm`` are on the host the compiled ones of ``kernels/host/``, or SciPy's where those are not built; on a GPU
those of ``kernels/*.cu`` (``raw``) or cuSPARSE.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from distgnn import backend, csr_rows, cuda, hostkernels, ledger, progress
from distgnn.errors import UserError
from distgnn.gemm import Form
from distgnn.layout import Range
from distgnn.matrix import CSR

#: Rows of a tall matrix that a product on the host takes at a time: they and their product stay in the second-level cache.
GEMM_ROWS = 512

#: Multiplications and additions of a sparse product between two looks at the messages under way: one or two milliseconds.
#: Less often, what the sockets hold is sent before more is given to them; more often, the product is slower for it.
BETWEEN_POLLS = 1 << 25

#: (A, B, out, accumulate)
SpmmKernel = Callable[[CSR, Any, Any, bool], None]


def spmm(A: CSR, B: Any, out: Any = None, accumulate: bool = False) -> Any:
    """``out = A B``, or ``out += A B`` with ``accumulate``.

    Args:
        A: (m, k) CSR block; B: (k, f) C-contiguous dense block of the same dtype on the same device.
        out: (m, f) C-contiguous, sharing no memory with B; made (and with ``accumulate`` started from zero) when missing.

    Returns:
        ``out``.

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
            raise ValueError(f"spmm: {name} must be C-contiguous {A.dtype}, got {array.dtype} with strides {array.strides}")
    if out.shape != shape:
        raise ValueError(f"spmm: out has shape {out.shape}, the product {shape}")
    ledger.charge("spmm", "spmm", flops=2 * A.nnz * shape[1])
    with ledger.timed("spmm", "spmm", synchronize=on.synchronize):
        if A.nnz and shape[1]:
            kernel = _spmm_kernel(on.name, A.dtype)
            for top, bottom, rows in _row_blocks(A, shape[1]) if _driving(on) else [(0, shape[0], A)]:
                kernel(rows, B, out[top:bottom], accumulate)
                progress.poll()
        elif not accumulate:
            out[...] = 0
    return out


def _driving(on: backend.Backend) -> bool:
    """Must a product stop now and then to drive what is under way? On a GPU it is queued, and the host is free to."""
    return progress.pending() and not on.on_device


def _row_blocks(A: CSR, width: int) -> list[tuple[int, int, CSR]]:
    """The block in pieces between which messages are driven, kept with it."""
    nonzeros = max(BETWEEN_POLLS // width, 1)
    key = f"row blocks {nonzeros}"
    if key not in A.cached:
        blocks = A.row_blocks(nonzeros)
        if len(blocks) == 1:
            return blocks  # the block itself, which had better not refer to itself
        A.cached[key] = blocks
    return A.cached[key]


def spgemm(A: Any, B: Any) -> Any:
    """``A B`` of two sparse matrices: sorted rows, no duplicates, no stored zeros.

    By SciPy or cuSPARSE, except where no row of ``A`` has more than one entry, as in GraphSAGE's Q (matrix-sampling paper,
    section 4.1.1): there, rows of ``B`` are copied and scaled, with the same result to the bit.

    Args:
        A: (m, k), B: (k, n): both SciPy's or both CuPy's CSR matrices, canonical (rows sorted, no duplicates).

    Returns:
        (m, n) of the common dtype.

    Raises:
        ValueError: shapes that don't fit.

    Cost: as many multiplications as A's entries meet entries of B, of which 2 flops each are charged.
    """
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"spgemm: shapes {A.shape} and {B.shape} don't multiply")
    on = backend.of(B.data)
    if not on.on_device:
        B = sp.csr_array(B)
        A = csr_rows.with_indices(sp.csr_array(A), B.indices.dtype)
    ledger.charge("spmm", "spgemm", flops=2 * int(csr_rows.lengths(B, A.indices).sum()))
    with ledger.timed("spmm", "spgemm", synchronize=on.synchronize):
        if csr_rows.at_most_one_per_row(A):
            return csr_rows.scaled_rows(A, B)
        product = A @ B
        if on.on_device:
            product.eliminate_zeros()  # as SciPy does
        product.sort_indices()
        return product


def spgemm_pieces(A: Any, B: Any, entries: int | None) -> Iterator[tuple[Range, Any]]:
    """``A B`` in pieces of consecutive rows that are estimated to have at most ``entries`` non-zeros, or are single rows; all
    rows in one piece for None. The estimate is the number of multiplications, which is never too low.

    Yields:
        ((first, last + 1), those rows of the product), made by :func:`spgemm`, when asked for.
    """
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"spgemm: shapes {A.shape} and {B.shape} don't multiply")
    estimates = csr_rows.multiplications(A, csr_rows.lengths(B, A.indices))
    for first, last in csr_rows.cut(backend.of(estimates).to_host(estimates), entries):
        yield (first, last), spgemm(A[first:last], B)


def gemm(
    A: Any, B: Any, out: Any = None, accumulate: bool = False, trans_a: bool = False, trans_b: bool = False,
    form: Form | None = None,
) -> Any:  # fmt: skip
    """``out = op(A) op(B)``, or ``out += op(A) op(B)`` with ``accumulate``; op transposes where asked.

    A, B and ``out`` are 2-D arrays of one dtype on one device; ``form`` is how BLAS is called, by default as they come (see
    ``gemm.py``). Returns ``out``, made when missing.
    """
    A, B = A.T if trans_a else A, B.T if trans_b else B
    on = backend.of(B)
    ledger.charge("gemm", "gemm", flops=2 * A.shape[0] * A.shape[1] * B.shape[1])
    accumulate = accumulate and out is not None
    out = on.empty((A.shape[0], B.shape[1]), B.dtype) if out is None else out
    with ledger.timed("gemm", "gemm", synchronize=on.synchronize):
        step = max(A.shape[0], 1) if on.on_device or trans_a else GEMM_ROWS
        B = B if form is None else form.lay(on.xp, B)
        for top in range(0, A.shape[0], step):
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


def gather_rows(X: Any, rows: Any, out: Any = None) -> Any:
    """``out[i] = X[rows[i]]``: packs the rows that another rank needs.

    Args:
        X: (m, f) C-contiguous; rows: int64 (k) in 0..m-1, on the same device; out: (k, f) like X, made when missing.

    Returns:
        ``out``.
    """
    on = backend.of(X)
    out = on.empty((rows.size, X.shape[1]), X.dtype) if out is None else out
    ledger.charge("spmm", "gather rows")
    with ledger.timed("spmm", "gather rows", synchronize=on.synchronize):
        if on.on_device:
            cuda.gather_rows(X, rows, out)
        elif hostkernels.module() is not None:
            hostkernels.gather(X, rows, out)
        elif out.size:
            np.take(X, rows, axis=0, out=out, mode="clip")
    return out


def _spmm_scipy(A: CSR, B: Any, out: Any, accumulate: bool) -> None:
    # The routine behind SciPy's csr @ dense, called directly because it adds into `out` without a temporary.
    if not accumulate:
        out[...] = 0
    m, k = A.shape
    _sparsetools.csr_matvecs(m, k, B.shape[1], A.indptr, A.indices, A.data, B.ravel(), out.ravel())


#: By device, best first. ``auto`` takes the first that can do the job.
_SPMM_KERNELS: dict[str, dict[str, SpmmKernel]] = {
    "numpy": {"host": hostkernels.spmm, "scipy": _spmm_scipy},
    "cupy": {"raw": cuda.spmm, "cusparse": cuda.spmm_cusparse},
}


@functools.cache
def _spmm_kernel(device: str, dtype: np.dtype) -> SpmmKernel:
    kernels = _SPMM_KERNELS[device]
    wanted = os.environ.get("DISTGNN_SPMM", "auto")
    if wanted == "auto":
        return next(kernel for name, kernel in kernels.items() if _can(name, dtype))
    if wanted not in kernels:
        raise UserError(f"DISTGNN_SPMM={wanted}: no such kernel for {device} arrays; there is {', '.join(['auto', *kernels])}")
    if not _can(wanted, dtype):
        raise UserError(f"DISTGNN_SPMM={wanted}: not for {dtype}, or not built here (install with a C compiler at hand)")
    return kernels[wanted]


def _can(name: str, dtype: np.dtype) -> bool:
    return name != "host" or (dtype in (np.float32, np.float64) and hostkernels.module() is not None)

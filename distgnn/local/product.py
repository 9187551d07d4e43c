"""A dense or a sparse block times a dense one on one rank."""

from __future__ import annotations

from typing import Any

from distgnn.arrays import backend
from distgnn.arrays.csr import CSR
from distgnn.layout import Range
from distgnn.local.epilogue import Ending
from distgnn.local.gemm import gemm
from distgnn.local.spmm import spmm


def product(
    A: Any, B: Any, out: Any = None, accumulate: bool = False, then: Ending | None = None, **how: Any
) -> Any:  # fmt: skip
    """Compute ``out = A B``, or ``out += A B``, by :func:`spmm` where A is a CSR block, else by :func:`gemm`.

    B may be a part of an array; ``then``: as of both; ``how`` is of :func:`gemm`. Returns ``out``, made when
    missing.
    """
    if isinstance(A, CSR):
        return spmm(A, backend.module(B).ascontiguousarray(B), out, accumulate, then)
    return gemm(A, B, out, accumulate, then=then, **how)


def some_rows(A: Any, rows: Range) -> Any:
    """Return these rows of a dense or a CSR block."""
    return A.rows(*rows) if isinstance(A, CSR) else A[slice(*rows)]

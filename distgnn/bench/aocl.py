"""Sparse times dense by AOCL-Sparse, AMD's library, where it is installed."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

NO_TRANSPOSE, ROW_MAJOR = 111, 0
MANY = 1000  # calls that the library may prepare for


class Matrix(ctypes.c_void_p):
    """A handle of the library, with the arrays that it reads."""

    arrays: tuple[np.ndarray, ...]


def product(A: sp.csr_array, B: np.ndarray, C: np.ndarray) -> dict[str, Callable[[], object]]:
    """Map "aocl" to a call that computes C = A B in float32, its handle made before the call.

    The library is that of the environment's ``AOCLSPARSE``, or of the linker's path.

    Raises:
        ImportError: it is not there.
    """
    path = os.environ.get("AOCLSPARSE") or ctypes.util.find_library("aoclsparse")
    if path is None:
        raise ImportError("no libaoclsparse")
    library, matrix, description = ctypes.CDLL(path), Matrix(), ctypes.c_void_p()
    _done(library.aoclsparse_create_mat_descr(ctypes.byref(description)))
    matrix.arrays = A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data
    places = (ctypes.c_void_p(array.ctypes.data) for array in matrix.arrays)
    _done(library.aoclsparse_create_scsr(ctypes.byref(matrix), 0, *A.shape, A.nnz, *places))
    alpha, beta, width = ctypes.c_float(1), ctypes.c_float(0), B.shape[1]
    b, c = (ctypes.c_void_p(array.ctypes.data) for array in (B, C))
    hint = library.aoclsparse_set_mv_hint if width == 1 else library.aoclsparse_set_mm_hint
    hint(matrix, NO_TRANSPOSE, description, MANY)
    library.aoclsparse_optimize(matrix)
    if width == 1:
        vectors = ctypes.byref(alpha), matrix, description, b, ctypes.byref(beta), c
        return {"aocl": lambda: _done(library.aoclsparse_smv(NO_TRANSPOSE, *vectors))}
    matrices = alpha, matrix, description, ROW_MAJOR, b, width, width, beta, c, width

    def run() -> None:
        if C.size and np.isnan(C[0, 0]):
            C[...] = 0  # with beta = 0 the library multiplies what is there; the check fills C with NaN
        _done(library.aoclsparse_scsrmm(NO_TRANSPOSE, *matrices))

    return {"aocl": run}


def _done(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"AOCL-Sparse: status {status}")

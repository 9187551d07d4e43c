"""Dense products by cuBLAS called directly, as CuPy refuses to call it while a stream captures.

The library, its handle and the arguments are CuPy's own, so that results are too. cuBLAS is given a
workspace, lest it allocate one inside the capture.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from typing import Any

import numpy as np

from distgnn.local.cuda.launch import Array, address

WORKSPACE = 32 << 20  # bytes, what cuBLAS takes by itself on Hopper
#: cudaDataType, cublasComputeType_t and the C type of scalars, by dtype.
_TYPES = {"float32": (0, 68, ctypes.c_float), "float64": (1, 70, ctypes.c_double)}
_FAST_TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32
_DEFAULT, _TENSOR_OP = -1, 99  # cublasGemmAlgo_t


class Cublas:
    """Products C = A B of matrices on a device, made on the current stream. It holds the workspace.

    Args:
        tf32: whether float32 is rounded to TensorFloat-32.
    """

    def __init__(self, xp: Any, tf32: bool) -> None:
        self.xp, self.tf32 = xp, tf32
        self.handle = xp.cuda.device.get_cublas_handle()  # loads the library
        self.library = library()
        recent = int(xp.cuda.device.get_compute_capability()) >= 80
        self.algorithm = _TENSOR_OP if recent else _DEFAULT  # as CuPy chooses
        self.workspace = xp.empty(WORKSPACE, np.uint8)

    def check(self) -> None:
        """Compare products of small whole numbers with those of CuPy; RuntimeError where they differ."""
        xp = self.xp
        for A, B in (((2, 3), (3, 4)), ((3, 2), (3, 4)), ((2, 3), (4, 3)), ((3, 2), (4, 3))):
            X, Y = (xp.arange(math.prod(shape)).reshape(shape).astype(np.float32) for shape in (A, B))
            X, Y = X if A[1] == 3 else X.T, Y if B[0] == 3 else Y.T
            if not bool((self.matmul(X, Y, xp.empty((2, 4), np.float32)) == xp.matmul(X, Y)).all()):
                raise RuntimeError("cuBLAS called directly multiplies otherwise than by CuPy")

    def matmul(self, A: Array, B: Array, out: Array, accumulate: bool = False) -> Array:
        """Compute ``out = A B``, or add it, C-contiguous; A (m, k) and B (k, n), by rows or by columns."""
        (m, k), n = A.shape, B.shape[1]
        if not (m and n and k):
            if not accumulate:
                out.fill(0)
            return out
        # cuBLAS knows columns only, so that it computes outᵀ = Bᵀ Aᵀ.
        B, *of_B = self._operand(B)
        A, *of_A = self._operand(A)
        kind, compute, number = _TYPES[out.dtype.name]
        compute = _FAST_TF32 if self.tf32 and number is ctypes.c_float else compute
        alpha, beta = ctypes.byref(number(1)), ctypes.byref(number(accumulate))
        stream, place = self.xp.cuda.get_current_stream().ptr, address(self.workspace)
        self._check(self.library.cublasSetStream_v2(self.handle, stream))
        self._check(self.library.cublasSetWorkspace_v2(self.handle, place, WORKSPACE))
        factors = address(B), kind, of_B[1], address(A), kind, of_A[1]
        sizes = of_B[0], of_A[0], n, m, k
        target = beta, address(out), kind, n, compute, self.algorithm
        self._check(self.library.cublasGemmEx(self.handle, *sizes, alpha, *factors, *target))
        return out

    def _operand(self, X: Array) -> tuple[Array, int, int]:
        """Return a matrix, whether cuBLAS must transpose it, and its leading dimension."""
        if X.flags.f_contiguous:
            return X, 1, max(X.shape[0], 1)
        X = X if X.flags.c_contiguous else self.xp.ascontiguousarray(X)
        return X, 0, max(X.shape[1], 1)

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLAS failed with status {status}")


@functools.cache
def library() -> Any:
    """Look up the functions in the library that CuPy has loaded; RuntimeError: there is none."""
    for version in (13, 12, 11):
        try:
            loaded = ctypes.CDLL(f"libcublas.so.{version}", os.RTLD_NOLOAD)
        except OSError:
            continue
        pointer: Any = ctypes.c_void_p
        number: Any = ctypes.c_int
        loaded.cublasSetStream_v2.argtypes = [pointer, pointer]
        loaded.cublasSetWorkspace_v2.argtypes = [pointer, pointer, ctypes.c_size_t]
        operand = [pointer, number, number]
        loaded.cublasGemmEx.argtypes = [
            pointer, *[number] * 5, pointer, *operand, *operand, pointer, *operand, number, number,
        ]  # fmt: skip
        return loaded
    raise RuntimeError("cuBLAS is not loaded under its own name, libcublas.so.13 or 12")

"""CSR times dense by cuSPARSE with all cached that can be: the comparison for the hand-written kernels.

Descriptors and workspace are made and preprocessed once per block, algorithm and width, dense matrices are
passed row-major as they are, and of the two algorithms that cuSPARSE recommends for that the faster is taken.
CuPy's ``csr @ dense`` does none of this.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.arrays.cupy_backend import event_clock
from distgnn.local.cuda.launch import Array, address, library
from distgnn.local.tuner import Tuner

#: cusparseSpMMAlg_t, by name; CuPy exports no names for these.
ALGORITHMS = {"CSR_ALG2": 6, "CSR_ALG3": 12}

#: cudaDataType of numbers: CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF.
_CUDA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_NO_TRANSPOSE = 0


def spmm_cusparse(
    A: CSR, B: Array, out: Array, accumulate: bool = False, algorithm: str | None = None
) -> Array:
    """Multiply like ``local.spmm``. ``algorithm``: a name in `ALGORITHMS` instead of the faster one."""
    xp = library(B)
    if "cusparse" not in A.cached:
        A.cached["cusparse"] = Products(xp, A)
    cached: Products = A.cached["cusparse"]
    if algorithm is not None:
        cached.multiply(xp, algorithm, B, out, accumulate)
        return out
    f = B.shape[1]
    if f not in cached.tuners:
        label = f"cuSPARSE on a {A.shape[0]} x {A.shape[1]} block, {A.nnz} non-zeros, {f} columns"
        cached.tuners[f] = Tuner(list(ALGORITHMS), label, *event_clock(xp))
    cached.tuners[f].run(lambda name: cached.multiply(xp, name, B, out, accumulate))
    return out


class Products:
    """Descriptors of one block, and of the dense matrices it was last multiplied with.

    Args:
        values: those of A in 16 bits of this `kind`, as B is then given, too; results have A's dtype.
    """

    def __init__(self, xp: Any, A: CSR, values: Array = None, kind: str = "") -> None:
        self.api = api = xp.cuda.cusparse
        self.type, self.read = _CUDA_TYPES[A.dtype.name], _CUDA_TYPES[kind or A.dtype.name]
        self.scalars = {value: np.array(value, A.dtype) for value in (0, 1)}  # their addresses
        index = {4: api.CUSPARSE_INDEX_32I, 8: api.CUSPARSE_INDEX_64I}[A.indices.itemsize]
        self.values = A.data if values is None else values
        places = (address(array) for array in (A.indptr, A.indices, self.values))
        kinds = index, index, api.CUSPARSE_INDEX_BASE_ZERO, self.read
        self.matrix = *A.shape, A.nnz, *places, *kinds
        self.products: dict[tuple[str, int, bool], tuple[int, Array]] = {}
        self.dense: dict[str, tuple[tuple[int, int, int], int]] = {}
        self.tuners: dict[int, Tuner[str]] = {}
        # Not at the end of the program, where the library may have gone before.
        weakref.finalize(self, _destroy, api, self.dense, self.products).atexit = False

    def _dense(self, role: str, array: Array) -> int:
        """Return the descriptor of a row-major matrix, made anew only where another stands in this role."""
        identity = (address(array), *array.shape)
        known = self.dense.get(role)
        if known is None or known[0] != identity:
            if known is not None:
                self.api.destroyDnMat(known[1])
            place = *array.shape, array.shape[1], address(array)
            kind = self.read if role == "B" else self.type
            made = self.api.createDnMat(*place, kind, self.api.CUSPARSE_ORDER_ROW)
            self.dense[role] = identity, made
        return self.dense[role][1]

    def multiply(self, xp: Any, algorithm: str, B: Array, out: Array, accumulate: bool) -> None:
        alpha, beta = (self.scalars[value].ctypes.data for value in (1, int(accumulate)))
        handle = xp.cuda.device.get_cusparse_handle()
        dense = self._dense("B", B), beta, self._dense("out", out), self.type, ALGORITHMS[algorithm]
        key = algorithm, B.shape[1], accumulate
        product = lambda sparse: (handle, _NO_TRANSPOSE, _NO_TRANSPOSE, alpha, sparse, *dense)  # noqa: E731
        if key not in self.products:
            sparse = self.api.createCsr(*self.matrix)
            buffer = xp.empty(max(self.api.spMM_bufferSize(*product(sparse)), 1), np.uint8)
            self.products[key] = sparse, buffer
            if algorithm == "CSR_ALG3" and preprocesses():
                self.api.setStream(handle, xp.cuda.get_current_stream().ptr)
                preprocess = function("cusparseSpMM_preprocess")
                if status := preprocess(*product(sparse), address(buffer)):
                    raise RuntimeError(f"cusparseSpMM_preprocess failed with status {status}")
        sparse, buffer = self.products[key]
        self.api.spMM(*product(sparse), address(buffer))


def _destroy(api: Any, dense: dict[Any, tuple[Any, int]], products: dict[Any, tuple[int, Array]]) -> None:
    for _, descriptor in dense.values():
        api.destroyDnMat(descriptor)
    for sparse, _ in products.values():
        api.destroySpMat(sparse)


@functools.cache
def function(name: str) -> Any:
    """Look up a function with the arguments of cusparseSpMM in CuPy's library; None: it is not there.

    CuPy has no name for cusparseSpMM_preprocess. That makes its buffer the active one of the matrix, so that
    every algorithm and width has its own of both. CuPy's cusparseSpMM refuses to be captured.
    """
    for version in (13, 12, 11):
        try:
            made = getattr(ctypes.CDLL(f"libcusparse.so.{version}", os.RTLD_NOLOAD), name)
        except (OSError, AttributeError):
            continue
        pointer, number = ctypes.c_void_p, ctypes.c_int
        made.argtypes = [
            pointer, number, number, pointer, pointer, pointer, pointer, pointer, number, number, pointer,
        ]  # fmt: skip
        return made
    return None


def preprocesses() -> bool:
    """Tell whether products by CSR_ALG3 are preprocessed; known after the first one."""
    return function("cusparseSpMM_preprocess") is not None

"""The functions of libcublas that programs call by address."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._array import ndarray, placed
from cupy._core._routines_linalg import rounded_to_tf32
from cupy._graphs import recorded
from cupy._memory import find
from cupy._streams import current, launch

N, T = 0, 1
_TYPES = {0: np.float32, 1: np.float64}  # cudaDataType
_COMPUTE = {68: np.float32, 77: np.float32, 70: np.float64}  # cublasComputeType_t
_workspaces: dict[int, int] = {}


def cublasSetStream_v2(handle: int, stream: int) -> int:
    assert stream == current().ptr
    _workspaces.pop(handle, None)
    return 0


def cublasSetWorkspace_v2(handle: int, workspace: int, size: int) -> int:
    memory = find(workspace)
    assert workspace % 256 == 0 and memory is not None and memory.size >= size
    _workspaces[handle] = workspace
    return 0


def cublasGemmEx(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: Any, A: int, Atype: int, lda: int,
    B: int, Btype: int, ldb: int, beta: Any, C: int, Ctype: int, ldc: int, computeType: int, algo: int,
) -> int:  # fmt: skip
    """Compute C = op(A) op(B), m x n, of matrices column by column; 7 for what makes no sense."""
    if handle not in _workspaces or min(m, n, k) < 0 or lda < max(1, k if transa else m):
        return 7
    if ldb < max(1, n if transb else k) or ldc < max(1, m) or not Atype == Btype == Ctype:
        return 7
    add = beta._obj.value
    if (alpha._obj.value, add) not in ((1, 0), (1, 1)) or _COMPUTE[computeType] != _TYPES[Atype]:
        raise NotImplementedError("the stand-in multiplies with alpha 1, beta 0 or 1, in the arrays' type")
    shapes = (A, (k, m) if transa else (m, k), lda), (B, (n, k) if transb else (k, n), ldb), (C, (m, n), ldc)
    a, b, c = (_matrix(*shape, _TYPES[Atype]) for shape in shapes)
    _gemm(a, transa, b, transb, c, computeType == 77, bool(add))
    return 0


def _matrix(address: int, shape: tuple[int, int], ld: int, dtype: Any) -> ndarray:
    memory, size = find(address), np.dtype(dtype).itemsize
    assert memory is not None
    length = (ld * (shape[1] - 1) + shape[0]) * size
    numbers = memory.raw[address - memory.start :][:length].view(dtype)
    assert numbers.nbytes == length, "a matrix ends behind its memory"
    return placed(np.lib.stride_tricks.as_strided(numbers, shape, (size, ld * size)), memory)


@recorded
def _gemm(a: ndarray, transa: int, b: ndarray, transb: int, c: ndarray, tf32: bool, add: bool) -> None:
    launch("gemm", [a, b, c] if add else [a, b], [c])
    x, y = a._numbers.T if transa else a._numbers, b._numbers.T if transb else b._numbers
    if tf32:
        x, y = rounded_to_tf32(x), rounded_to_tf32(y)
    product = (y.T @ x.T).T  # as matmul() has it, row by row, so that bits are equal
    c._numbers[...] = c._numbers + product if add else product

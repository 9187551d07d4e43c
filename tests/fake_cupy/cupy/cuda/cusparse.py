"""The part of cuSPARSE's generic interface that multiplies a sparse matrix with a dense one."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from cupy._memory import spans_at
from cupy._streams import current
from cupy._work import DEVICE

CUSPARSE_INDEX_32I, CUSPARSE_INDEX_64I = 2, 3
CUSPARSE_INDEX_BASE_ZERO, CUSPARSE_INDEX_BASE_ONE = 0, 1
CUSPARSE_ORDER_COL, CUSPARSE_ORDER_ROW = 1, 2

_INDEX = {CUSPARSE_INDEX_32I: np.dtype(np.int32), CUSPARSE_INDEX_64I: np.dtype(np.int64)}
_BFLOAT16 = np.dtype(np.uint16)  # its bits
_VALUE = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16), 14: _BFLOAT16}
_numbers = itertools.count(1)
_descriptors: dict[int, Any] = {}


class At(NamedTuple):
    """A number of values at an address."""

    address: int
    count: int
    dtype: np.dtype

    @property
    def numbers(self) -> np.ndarray:
        nbytes = self.count * self.dtype.itemsize
        raw = (ctypes.c_char * nbytes).from_address(self.address) if nbytes else b""
        numbers = np.frombuffer(raw, self.dtype, self.count)
        return (numbers.astype(np.uint32) << 16).view(np.float32) if self.dtype == _BFLOAT16 else numbers

    @property
    def spans(self) -> list[Any]:
        return spans_at(self.address, self.count * self.dtype.itemsize)


class Sparse(NamedTuple):
    """A CSR matrix."""

    shape: tuple[int, int]
    pointers: At
    indices: At
    values: At


class Dense(NamedTuple):
    """A row-major matrix."""

    shape: tuple[int, int]
    values: At


def _kept(thing: Any) -> int:
    number = next(_numbers)
    _descriptors[number] = thing
    return number


def createCsr(
    rows: int, cols: int, nnz: int, csrRowOffsets: int, csrColInd: int, csrValues: int,
    csrRowOffsetsType: int, csrColIndType: int, idxBase: int, valueType: int,
) -> int:  # fmt: skip
    pointers = At(csrRowOffsets, rows + 1, _INDEX[csrRowOffsetsType])
    indices, values = At(csrColInd, nnz, _INDEX[csrColIndType]), At(csrValues, nnz, _VALUE[valueType])
    return _kept(Sparse((rows, cols), pointers, indices, values))


def createDnMat(rows: int, cols: int, ld: int, values: int, valueType: int, order: int) -> int:
    if order != CUSPARSE_ORDER_ROW or ld != cols:
        raise NotImplementedError("the stand-in takes whole row-major matrices")
    return _kept(Dense((rows, cols), At(values, rows * cols, _VALUE[valueType])))


def destroyDnMat(dnMatDescr: int) -> None:
    del _descriptors[dnMatDescr]


destroySpMat = destroyDnMat


def setStream(handle: int, stream: int) -> None:
    """Check the stream; calls take the current one anyway."""
    _refuse_capture()
    if stream not in DEVICE.queues:
        raise ValueError(f"there is no stream {stream}")


def _refuse_capture() -> None:
    if DEVICE.capture is not None:
        raise NotImplementedError("calling cuSPARSE API during stream capture is currently unsupported")


def spMM_bufferSize(
    handle: int, opA: int, opB: int, alpha: int, matA: int, matB: int, beta: int, matC: int,
    computeType: int, alg: int,
) -> int:  # fmt: skip
    return 0


def spMM(
    handle: int, opA: int, opB: int, alpha: int, matA: int, matB: int, beta: int, matC: int,
    computeType: int, alg: int, externalBuffer: int,
) -> None:  # fmt: skip
    _refuse_capture()
    A, B, C = _descriptors[matA], _descriptors[matB], _descriptors[matC]
    factor, kept = (At(place, 1, _VALUE[computeType]).numbers[0] for place in (alpha, beta))
    if A.values.dtype != B.values.dtype:
        raise NotImplementedError("cuSPARSE multiplies matrices of one type")
    values = A.values.numbers.astype(C.values.dtype, copy=False)
    matrix = sp.csr_matrix((values, A.indices.numbers, A.pointers.numbers), shape=A.shape)
    out = C.values.numbers.reshape(C.shape)
    product = factor * (matrix @ B.values.numbers.reshape(B.shape))
    out[...] = product + kept * out if kept else product
    DEVICE.counts["launches"] += 1
    DEVICE.launches["cusparse spmm"] += 1
    reads = [span for at in (A.pointers, A.indices, A.values, B.values) for span in at.spans]
    DEVICE.queue("cusparse spmm", current().ptr, reads, C.values.spans)

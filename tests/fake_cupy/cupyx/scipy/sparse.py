"""CSR matrices on the device, by SciPy: what programs use of ``cupyx.scipy.sparse``."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import scipy.sparse as sp
from cupy._array import moved_on
from cupy._streams import current, launch, synchronize


class csr_matrix:
    """A CSR matrix whose arrays are on the device; indices are int32 unless they must be wider."""

    format = "csr"
    ndim = 2

    def __init__(
        self, arg1: Any, shape: tuple[int, int] | None = None, dtype: Any = None, copy: bool = False
    ) -> None:
        if sp.issparse(arg1):
            matrix = arg1.tocsr()
            arrays = (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))
            self.data, self.indices, self.indptr = map(cupy.asarray, arrays)
            shape = matrix.shape if shape is None else shape
        elif isinstance(arg1, csr_matrix):
            self.data, self.indices, self.indptr = arg1.data, arg1.indices, arg1.indptr
            shape = arg1.shape
        elif isinstance(arg1, tuple) and len(arg1) == 3:
            if not all(isinstance(x, cupy.ndarray) for x in arg1):
                raise ValueError("arrays of a cupyx matrix must be cupy.ndarray")
            self.data = arg1[0]
            self.indices, self.indptr = (x.astype(np.int32, copy=False) for x in arg1[1:])
        else:
            raise NotImplementedError(f"the stand-in makes no csr_matrix of {type(arg1)}")
        if shape is None:
            raise NotImplementedError("the stand-in needs a shape")
        if self.data.dtype.char not in "?fdFD":
            raise ValueError("Only bool, float32, float64, complex64 and complex128 are supported")
        self.shape = tuple(int(n) for n in shape)

    @property
    def nnz(self) -> int:
        return int(self.data.size)

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    def get(self, stream: Any = None) -> sp.csr_matrix:
        arrays = self.data.get(stream), self.indices.get(stream), self.indptr.get(stream)
        return sp.csr_matrix(arrays, shape=self.shape)

    def tocsr(self, copy: bool = False) -> csr_matrix:
        return self.copy() if copy else self

    def copy(self) -> csr_matrix:
        return csr_matrix((self.data.copy(), self.indices.copy(), self.indptr.copy()), shape=self.shape)

    @property
    def has_sorted_indices(self) -> bool:
        launch("has_sorted_indices", self._arrays(), [])
        synchronize(current(), "has_sorted_indices")
        return bool(self._host().has_sorted_indices)

    def sort_indices(self) -> None:
        self._in_place("sort_indices")

    def sum_duplicates(self) -> None:
        self._in_place("sum_duplicates", waits=1)

    def __matmul__(self, other: Any) -> csr_matrix:
        if not isinstance(other, csr_matrix):
            return NotImplemented
        return self._made("spgemm", self._host() @ other._host(), [*self._arrays(), *other._arrays()])

    def __getitem__(self, key: Any) -> csr_matrix:
        if isinstance(key, cupy.ndarray):
            return self._made("take rows", self._host()[key._numbers], [*self._arrays(), key])
        return self._made("slice rows", self._host()[key], self._arrays())

    def _arrays(self) -> list[Any]:
        return [self.data, self.indices, self.indptr]

    def _host(self) -> sp.csr_matrix:
        data, indices, indptr = (x._numbers for x in self._arrays())
        return sp.csr_matrix((data, indices, indptr), shape=self.shape)

    def _made(self, name: str, matrix: Any, reads: list[Any]) -> csr_matrix:
        """Make a new matrix; the host waits to learn how many entries it has."""
        matrix = sp.csr_matrix(matrix)
        arrays = [moved_on(x) for x in (matrix.data, matrix.indices, matrix.indptr)]
        launch(name, reads, arrays)
        synchronize(current(), name)
        return csr_matrix(tuple(arrays), shape=matrix.shape)

    def _in_place(self, name: str, waits: int = 0) -> None:
        matrix, reads = self._host().copy(), self._arrays()
        getattr(matrix, name)()
        self.data, self.indices, self.indptr = map(moved_on, (matrix.data, matrix.indices, matrix.indptr))
        launch(name, reads, self._arrays())
        for _ in range(waits):
            synchronize(current(), name)


def issparse(x: Any) -> bool:
    return isinstance(x, csr_matrix)


isspmatrix = issparse

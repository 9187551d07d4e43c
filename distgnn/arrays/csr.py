"""A CSR block on this rank, its arrays packed in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from distgnn import ledger
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.blocking import bounded
from distgnn.arrays.canonical import canonical, value_type
from distgnn.arrays.kernels import Functions, Kernels, KernelTable
from distgnn.arrays.tuning import TUNING
from distgnn.layout import Range

Shape = tuple[int, int]
Header = tuple[Shape, int, np.dtype, np.dtype]  # shape, non-zeros, types of indices and values
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def index_type(*sizes: int) -> np.dtype:
    """Return the smaller of int32 and int64 that counts to all of these."""
    return _INT32 if max(sizes) < 1 << 31 else _INT64


class CSR:
    """A CSR block on this rank, its three arrays packed in one buffer of bytes, to travel as one message.

    Attributes:
        shape: rows, columns of the block.
        indptr, indices, data: views into ``buffer``; row pointers and column numbers share one integer type.
        buffer: 1-D uint8, what :meth:`Comm.bcast` sends.
        purpose: of its memory, for the ledger.
    """

    __slots__ = ("__weakref__", "buffer", "cached", "data", "indices", "indptr", "purpose", "shape")
    indptr: Any
    indices: Any
    data: Any

    def __init__(self, shape: Shape, nnz: int, index_dtype: Any, dtype: Any, buffer: Any) -> None:
        self.shape, self.purpose = shape, "adjacency"
        self.buffer = buffer[: self.nbytes(shape, nnz, index_dtype, dtype)]
        start = 0
        kinds = [("data", nnz, dtype), ("indices", nnz, index_dtype), ("indptr", shape[0] + 1, index_dtype)]
        for name, count, kind in sorted(kinds, key=lambda kind: -np.dtype(kind[2]).itemsize):  # all aligned
            end = start + count * np.dtype(kind).itemsize
            setattr(self, name, self.buffer[start:end].view(kind))
            start = end
        self.cached: dict[str, Any] = {}

    @staticmethod
    def nbytes(shape: Shape, nnz: int, index_dtype: Any, dtype: Any) -> int:
        """Return the bytes of the buffer such a block needs."""
        return nnz * np.dtype(dtype).itemsize + (nnz + shape[0] + 1) * np.dtype(index_dtype).itemsize

    @classmethod
    def empty(
        cls, shape: Shape, nnz: int, dtype: Any, backend: Backend, purpose: str = "adjacency"
    ) -> CSR:  # fmt: skip
        """Make a block to be filled, on ``backend``'s device. Its indices are int32 where they fit."""
        index_dtype = index_type(nnz, *shape)
        buffer = backend.empty((cls.nbytes(shape, nnz, index_dtype, dtype),), np.uint8)
        block = cls(shape, nnz, index_dtype, dtype, buffer)
        block.purpose = purpose
        ledger.holds(block, purpose, buffer.nbytes // backend.holders)
        return block

    @classmethod
    def from_scipy(
        cls, matrix: Any, backend: Backend, dtype: Any = None, purpose: str = "adjacency"
    ) -> CSR:  # fmt: skip
        """Copy a SciPy sparse matrix to a block on ``backend``'s device, sorted, duplicates summed.

        ArgumentError: what :func:`canonical` refuses (checked here once, never per product).
        """
        dtype = value_type(matrix.dtype, dtype)
        matrix = canonical(matrix, dtype)
        block = cls.empty(matrix.shape, matrix.nnz, dtype, backend, purpose)
        KERNELS.kernel("fill", block.indptr)(block, matrix, backend)
        return block

    def read_only(self) -> CSR:
        """Return the block, whose arrays cannot be written to from now on."""
        for array in (self.buffer, self.indptr, self.indices, self.data):
            array.flags.writeable = False
        return self

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return int(self.data.size)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return np.dtype(self.data.dtype)

    @staticmethod
    def count(shape: Shape, nnz: int) -> int:
        """Count the payload elements of such a block on its way: values, column numbers and row pointers."""
        return 2 * nnz + shape[0] + 1

    def header(self) -> Header:
        """Return what a receiver must know to make room: the arguments of :meth:`nbytes`."""
        return self.shape, self.nnz, np.dtype(self.indices.dtype), self.dtype

    def row_blocks(self, nonzeros: int) -> list[tuple[Range, CSR]]:
        """Cut a block on the host into row blocks of at most so many non-zeros, or single rows."""
        key = f"row blocks of {nonzeros}"
        if key not in self.cached:
            self.cached[key] = bounded(np.diff(self.indptr), nonzeros)
        return [(rows, self.rows(*rows)) for rows in self.cached[key]]

    def rows(self, first: int, last: int) -> CSR:
        """Return these rows: views with row pointers of their own.

        The views are made once and kept. For all rows it returns the block itself.
        """
        if (first, last) == (0, self.shape[0]):
            return self
        key = f"rows {first} to {last}"
        if key not in self.cached:
            self.cached[key] = self._view(first, last)
        return self.cached[key]

    @property
    def first_entry(self) -> int:
        """The number of entries that come before these rows in the block that they are a view of."""
        return int(self.cached.get("first entry", 0))

    def with_values(self, data: Any) -> CSR:
        """Make a block of the same structure, which is shared, with other values."""
        other = object.__new__(CSR)
        other.shape, other.buffer, other.cached, other.purpose = self.shape, None, {}, self.purpose
        other.indptr, other.indices, other.data = self.indptr, self.indices, data
        return other

    def _view(self, first: int, last: int) -> CSR:
        start, stop = KERNELS.kernel("row_starts", self.indptr)(self, first, last)
        rows = object.__new__(CSR)
        rows.shape, rows.buffer, rows.purpose = (last - first, self.shape[1]), None, self.purpose
        rows.cached = {"first entry": start}
        rows.data, rows.indices = self.data[start:stop], self.indices[start:stop]
        rows.indptr = self.indptr[first : last + 1] - self.indptr[first]
        return rows

    def transposed(self, backend: Backend) -> CSR:
        """Make the transposed block, its rows sorted, where the block is, so that a host holds nothing twice.

        On a GPU by sorting, for which one of more than ``sorted_on_device`` non-zeros is too large: it goes
        through the host.
        """
        return KERNELS.kernel("transposed", self.indptr)(self, backend)

    def to_scipy(self) -> sp.csr_array:
        """Return the block as a SciPy matrix on the host, sharing memory where the block is there already."""
        matrix = sp.csr_array(self.shape, dtype=self.dtype)
        # Given to the constructor, they would be copied: SciPy "prunes" views of a buffer with more elements.
        for name in ("data", "indices", "indptr"):
            array = getattr(self, name)
            setattr(matrix, name, backends.of(array).to_host(array))
        return matrix


def _fill(block: CSR, matrix: Any, backend: Backend) -> None:
    for name in ("data", "indices", "indptr"):
        source, target = getattr(matrix, name), getattr(block, name)
        for first in range(0, target.size, TUNING.copied_elements):
            part = slice(first, first + TUNING.copied_elements)  # as they may have to be converted
            backend.copy_in(np.ascontiguousarray(source[part], target.dtype), target[part])


def _row_starts(A: CSR, first: int, last: int) -> Range:
    """Return the number of non-zeros before each of these two rows."""
    return int(A.indptr[first]), int(A.indptr[last])


def _columns(A: CSR, bounds: Sequence[int], backend: Backend) -> list[CSR]:
    columns = sp.csc_array(A.to_scipy())
    return [CSR.from_scipy(columns[:, first:last], backend) for first, last in pairwise(bounds)]


def _transposed_on_host(A: CSR, backend: Backend) -> CSR:
    block = CSR.empty(A.shape[::-1], A.nnz, A.dtype, backend, A.purpose)
    _sparsetools.csr_tocsc(*A.shape, A.indptr, A.indices, A.data, block.indptr, block.indices, block.data)
    return block


def _transposed_on_gpu(A: CSR, backend: Backend) -> CSR:
    """Sort entries by column; those of a column stay in the order of rows, as the sort is stable."""
    if A.nnz > TUNING.sorted_on_device:
        return CSR.from_scipy(A.to_scipy().T, backend, purpose=A.purpose)
    block, xp = CSR.empty(A.shape[::-1], A.nnz, A.dtype, backend, A.purpose), backend.xp
    order = xp.argsort(A.indices, kind="stable")
    rows = xp.searchsorted(A.indptr[1:], xp.arange(A.nnz, dtype=A.indptr.dtype), side="right")
    block.indices[...] = rows[order]
    block.data[...] = A.data[order]
    columns = xp.arange(block.shape[0] + 1, dtype=A.indices.dtype)
    block.indptr[...] = xp.searchsorted(A.indices[order], columns)
    return block


_ANYWHERE: Functions = {"fill": _fill, "row_starts": _row_starts, "columns": _columns}
KERNELS = KernelTable(
    numpy=[Kernels({**_ANYWHERE, "transposed": _transposed_on_host})],
    cupy=[Kernels({**_ANYWHERE, "transposed": _transposed_on_gpu})],
)

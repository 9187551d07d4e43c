"""A CSR block on this rank, its arrays packed in one buffer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from distgnn import ledger
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Backend
from distgnn.arrays.canonical import canonical, value_type
from distgnn.arrays.tuning import TUNING

Shape = tuple[int, int]
Header = tuple[Shape, int, np.dtype, np.dtype]  # shape, non-zeros, types of indices and values
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def index_type(*sizes: int) -> np.dtype:
    """The smaller of int32 and int64 that counts to all of these."""
    return _INT32 if max(sizes) < 1 << 31 else _INT64


class CSR:
    """A CSR block on this rank, its three arrays packed in one buffer of bytes, to travel as one message.

    Attributes:
        shape: rows, columns of the block.
        indptr, indices, data: views into ``buffer``; row pointers and column numbers share one integer type.
        buffer: 1-D uint8, what :meth:`Comm.bcast` sends.
    """

    __slots__ = ("__weakref__", "buffer", "cached", "data", "indices", "indptr", "shape")
    indptr: Any
    indices: Any
    data: Any

    def __init__(self, shape: Shape, nnz: int, index_dtype: Any, dtype: Any, buffer: Any) -> None:
        self.shape = shape
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
        """Bytes of the buffer such a block needs."""
        return nnz * np.dtype(dtype).itemsize + (nnz + shape[0] + 1) * np.dtype(index_dtype).itemsize

    @classmethod
    def empty(cls, shape: Shape, nnz: int, dtype: Any, backend: Backend) -> CSR:
        """A block to be filled, on ``backend``'s device. Its indices are int32 where they fit."""
        index_dtype = index_type(nnz, *shape)
        buffer = backend.empty((cls.nbytes(shape, nnz, index_dtype, dtype),), np.uint8)
        block = cls(shape, nnz, index_dtype, dtype, buffer)
        ledger.holds(block, "adjacency", buffer.nbytes)
        return block

    @classmethod
    def from_scipy(cls, matrix: Any, backend: Backend, dtype: Any = None) -> CSR:
        """A SciPy sparse matrix as a block on ``backend``'s device: a copy, sorted, duplicates summed.
        ArgumentError: what :func:`canonical` refuses (checked here once, never per product).
        """
        dtype = value_type(matrix.dtype, dtype)
        matrix = canonical(matrix, dtype)
        block = cls.empty(matrix.shape, matrix.nnz, dtype, backend)
        if not backend.numbers:
            return block
        for name in ("data", "indices", "indptr"):
            source, target = getattr(matrix, name), getattr(block, name)
            for first in range(0, target.size, TUNING.copied_elements):
                part = slice(first, first + TUNING.copied_elements)  # as they may have to be converted
                backend.copy_in(np.ascontiguousarray(source[part], target.dtype), target[part])
        return block

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return int(self.data.size)

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        return np.dtype(self.data.dtype)

    @staticmethod
    def count(shape: Shape, nnz: int) -> int:
        """Payload elements of such a block when it travels: values, column numbers and row pointers."""
        return 2 * nnz + shape[0] + 1

    def header(self) -> Header:
        """What a receiver must know to make room: the arguments of :meth:`nbytes`."""
        return self.shape, self.nnz, np.dtype(self.indices.dtype), self.dtype

    def row_blocks(self, nonzeros: int) -> list[tuple[int, int, CSR]]:
        """Consecutive rows of about so many non-zeros each, as (first, last, block)."""
        bounds = np.unique(np.searchsorted(self.indptr, np.arange(0, self.nnz, nonzeros)))
        ends = [*bounds[(bounds > 0) & (bounds < self.shape[0])].tolist(), self.shape[0]]
        return [(first, last, self.rows(first, last)) for first, last in pairwise([0, *ends])]

    def rows(self, first: int, last: int) -> CSR:
        """These rows: views with row pointers of their own. Made once and kept; the block itself for all."""
        if (first, last) == (0, self.shape[0]):
            return self
        key = f"rows {first} to {last}"
        if key not in self.cached:
            self.cached[key] = self._view(first, last)
        return self.cached[key]

    def with_values(self, data: Any) -> CSR:
        """A block of the same structure, which is shared, with other values."""
        other = object.__new__(CSR)
        other.shape, other.buffer, other.cached = self.shape, None, {}
        other.indptr, other.indices, other.data = self.indptr, self.indices, data
        return other

    def _view(self, first: int, last: int) -> CSR:
        start, stop = self._before(first), self._before(last)
        rows = object.__new__(CSR)
        rows.shape, rows.buffer, rows.cached = (last - first, self.shape[1]), None, {}
        rows.data, rows.indices = self.data[start:stop], self.indices[start:stop]
        rows.indptr = self.indptr[first : last + 1] - self.indptr[first]
        return rows

    def _before(self, row: int) -> int:
        """Non-zeros in the rows before this one; in a dry run all rows have as many."""
        known = backends.of(self.indptr).numbers
        return int(self.indptr[row]) if known else self.nnz * row // max(self.shape[0], 1)

    def transposed(self, backend: Backend) -> CSR:
        """The transposed block, its rows sorted; made where the block is, so that nothing is held twice on a
        host. On a GPU by sorting, for which one of more than ``sorted_on_device`` non-zeros is too large: it
        goes through the host.
        """
        if backend.on_device and self.nnz > TUNING.sorted_on_device:
            return CSR.from_scipy(self.to_scipy().T, backend)
        block = CSR.empty(self.shape[::-1], self.nnz, self.dtype, backend)
        if not backend.numbers:
            return block
        if backend.on_device:
            self._sort_columns(block, backend.xp)
            return block
        _sparsetools.csr_tocsc(
            *self.shape, self.indptr, self.indices, self.data, block.indptr, block.indices, block.data
        )
        return block

    def _sort_columns(self, block: CSR, xp: Any) -> None:
        """Fill the transposed block: entries by column, and by row within one, as the sort is stable."""
        order = xp.argsort(self.indices, kind="stable")
        rows = xp.searchsorted(self.indptr[1:], xp.arange(self.nnz, dtype=self.indptr.dtype), side="right")
        block.indices[...] = rows[order]
        block.data[...] = self.data[order]
        columns = xp.arange(block.shape[0] + 1, dtype=self.indices.dtype)
        block.indptr[...] = xp.searchsorted(self.indices[order], columns)

    def to_scipy(self) -> sp.csr_array:
        """The block as a SciPy matrix on the host, sharing memory where the block is there already."""
        matrix = sp.csr_array(self.shape, dtype=self.dtype)
        # Given to the constructor, they would be copied: SciPy "prunes" views of a buffer with more elements.
        for name in ("data", "indices", "indptr"):
            array = getattr(self, name)
            setattr(matrix, name, backends.of(array).to_host(array))
        return matrix

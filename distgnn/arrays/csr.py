"""A CSR block on this rank, its arrays packed in one buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        pattern: facts of its pattern, made once, which blocks of the same pattern share; cached: facts of its
            values too.
    """

    __slots__ = (
        "__weakref__", "buffer", "cached", "data", "indices", "indptr", "pattern", "purpose", "shape",
    )  # fmt: skip
    indptr: Any
    indices: Any
    data: Any

    def __init__(self, shape: Shape, nnz: int, index_dtype: Any, dtype: Any, buffer: Any) -> None:
        self.shape, self.purpose = shape, "adjacency"
        self.buffer = buffer[: self.nbytes(shape, nnz, index_dtype, dtype)]
        entries = {"data": (nnz, dtype), "indices": (nnz, index_dtype)}
        self._lay(entries | {"indptr": (shape[0] + 1, index_dtype)})

    def _lay(self, kinds: dict[str, tuple[int, Any]]) -> None:
        """Lay arrays of these lengths and types in the buffer, all aligned."""
        start = 0
        for name, (count, kind) in sorted(kinds.items(), key=lambda item: -np.dtype(item[1][1]).itemsize):
            end = start + count * np.dtype(kind).itemsize
            setattr(self, name, self.buffer[start:end].view(kind))
            start = end
        self.cached: dict[str, Any] = {}
        self.pattern: dict[str, Any] = {}

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
        cls, matrix: Any, backend: Backend, dtype: Any = None, thin: bool = False, purpose: str = "adjacency"
    ) -> CSR:  # fmt: skip
        """Copy a SciPy sparse matrix to a block on ``backend``'s device, sorted, duplicates summed.

        ``thin``: on a host it may become a :class:`ThinCSR`, where that takes fewer bytes. ArgumentError:
        what :func:`canonical` refuses (checked here once, never per product).
        """
        dtype = value_type(matrix.dtype, dtype)
        matrix = canonical(matrix, dtype)
        laid = KERNELS.find("laid", matrix.data) or cls.laid_out
        block, filled = laid(matrix, backend, dtype, thin, purpose)
        KERNELS.kernel("fill", block.data)(block, matrix, filled, backend)
        return block

    @classmethod
    def laid_out(
        cls, matrix: Any, backend: Backend, dtype: Any, thin: bool, purpose: str
    ) -> tuple[CSR, Any]:  # fmt: skip
        """Make the block of :meth:`from_scipy`, to be filled; also return its rows with entries, if thin."""
        filled = KERNELS.kernel("filled", matrix.data)(matrix) if thin and not backend.on_device else None
        if filled is not None and 2 * filled.size < matrix.shape[0]:
            return ThinCSR.made(matrix.shape, matrix.nnz, dtype, backend, filled.size), filled
        return cls.empty(matrix.shape, matrix.nnz, dtype, backend, purpose), filled

    def recipe(self) -> tuple[type[CSR], tuple[Any, ...]]:
        """Return the class and the arguments that make this block of a buffer that holds it."""
        return CSR, self.header()

    @classmethod
    def room(cls, *recipe: Any) -> int:
        """Return the bytes of the buffer of a block of this recipe."""
        return cls.nbytes(*recipe)

    def read_only(self) -> CSR:
        """Return the block, whose arrays cannot be written to from now on."""
        for array in (self.buffer, *self._arrays()):
            array.flags.writeable = False
        return self

    def _arrays(self) -> tuple[Any, ...]:
        return self.indptr, self.indices, self.data

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
        if key not in self.pattern:
            self.pattern[key] = bounded(np.diff(self.indptr), nonzeros)
        return [(rows, self.rows(*rows)) for rows in self.pattern[key]]

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

    def row_block(self, first: int, last: int) -> CSR:
        """Return these rows as a block of its own: views, whose entries count from 0.

        For all rows it returns the block itself.
        """
        if (first, last) == (0, self.shape[0]):
            return self
        rows = self._view(first, last)
        del rows.pattern["first entry"]
        return rows

    @property
    def first_entry(self) -> int:
        """The number of entries that come before these rows in the block that they are a view of."""
        return int(self.pattern.get("first entry", 0))

    def with_values(self, data: Any) -> CSR:
        """Make a block of the same structure, which is shared, with other values."""
        other = _derived(CSR, self, self.shape)
        other.indptr, other.indices, other.data = self.indptr, self.indices, data
        other.pattern = self.pattern
        return other

    def _view(self, first: int, last: int) -> CSR:
        start, stop = KERNELS.kernel("row_starts", self.indptr)(self, first, last)
        rows = _derived(CSR, self, (last - first, self.shape[1]))
        rows.pattern["first entry"] = start
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


class ThinCSR(CSR):
    """A block on a host most of whose rows are empty: ``indptr`` is made when it is asked for.

    Ranks that hold a block row as P blocks would hold P times as many pointers as rows.

    Attributes:
        filled: the rows with entries, rising; ends: where their entries end.
    """

    __slots__ = ("ends", "filled")
    filled: Any
    ends: Any

    def __init__(
        self, shape: Shape, nnz: int, index_dtype: Any, dtype: Any, filled: int, buffer: Any
    ) -> None:
        self.shape, self.purpose = shape, "adjacency"
        entries = {"data": (nnz, dtype), "indices": (nnz, index_dtype)}
        self.buffer = buffer[: self.room(shape, nnz, index_dtype, dtype, filled)]
        self._lay(entries | {"filled": (filled, index_dtype), "ends": (filled, index_dtype)})

    @classmethod
    def made(cls, shape: Shape, nnz: int, dtype: Any, backend: Backend, filled: int) -> ThinCSR:
        """Make a block to be filled, with entries in so many rows."""
        recipe = shape, nnz, index_type(nnz, *shape), dtype, filled
        buffer = backend.empty((cls.room(*recipe),), np.uint8)
        block = cls(*recipe, buffer)
        ledger.holds(block, "adjacency", buffer.nbytes // backend.holders)
        return block

    @classmethod
    def room(cls, *recipe: Any) -> int:
        (_, width), nnz, index_dtype, dtype, filled = recipe
        return cls.nbytes((2 * filled - 1, width), nnz, index_dtype, dtype)

    @property
    def indptr(self) -> Any:
        return KERNELS.kernel("pointers", self.data)(self)

    def recipe(self) -> tuple[type[CSR], tuple[Any, ...]]:
        return ThinCSR, (*self.header(), self.filled.size)

    def _arrays(self) -> tuple[Any, ...]:
        return self.filled, self.ends, self.indices, self.data

    def with_values(self, data: Any) -> CSR:
        other = self._sharing(self.shape, self.filled, self.ends, self.indices, data)
        other.pattern = self.pattern
        return other

    def _view(self, first: int, last: int) -> CSR:
        return KERNELS.kernel("thin rows", self.data)(self, first, last)

    def _sharing(self, shape: Shape, filled: Any, ends: Any, indices: Any, data: Any) -> CSR:
        other = _derived(ThinCSR, self, shape)
        other.filled, other.ends, other.indices, other.data = filled, ends, indices, data
        return other

    def transposed(self, backend: Backend) -> CSR:
        return CSR.from_scipy(self.to_scipy().T, backend, thin=True)


def _derived(kind: type[CSR], A: CSR, shape: Shape) -> Any:
    """Make a block without arrays for the same purpose."""
    other = object.__new__(kind)
    other.shape, other.buffer, other.purpose = shape, None, A.purpose
    other.cached, other.pattern = {}, {}
    return other


def _pointers(A: ThinCSR) -> np.ndarray:
    pointers = np.zeros(A.shape[0] + 1, A.ends.dtype)
    pointers[A.filled + 1] = np.diff(A.ends, prepend=0)
    return np.cumsum(pointers, out=pointers)


def _thin_rows(A: ThinCSR, first: int, last: int) -> CSR:
    lo, hi = np.searchsorted(A.filled, [first, last]).tolist()
    start, stop = (int(A.ends[end - 1]) if end else 0 for end in (lo, hi))
    filled, ends = A.filled[lo:hi] - first, A.ends[lo:hi] - start
    shape, entries = (last - first, A.shape[1]), slice(start, stop)
    rows = A._sharing(shape, filled, ends, A.indices[entries], A.data[entries])
    rows.pattern["first entry"] = start
    return rows


def _filled(matrix: Any) -> np.ndarray:
    """Return the rows with entries."""
    return np.flatnonzero(matrix.indptr[1:] > matrix.indptr[:-1])


def _fill(block: CSR, matrix: Any, filled: np.ndarray, backend: Backend) -> None:
    arrays = {"data": matrix.data, "indices": matrix.indices}
    if isinstance(block, ThinCSR):
        arrays |= {"filled": filled, "ends": matrix.indptr[filled + 1]}
    else:
        arrays["indptr"] = matrix.indptr
    for name, source in arrays.items():
        target = getattr(block, name)
        for first in range(0, target.size, TUNING.copied_elements):
            part = slice(first, first + TUNING.copied_elements)  # as they may have to be converted
            backend.copy_in(np.ascontiguousarray(source[part], target.dtype), target[part])


def _row_starts(A: CSR, first: int, last: int) -> Range:
    """Return the number of non-zeros before each of these two rows."""
    return int(A.indptr[first]), int(A.indptr[last])


def column_blocks(A: Any, bounds: Sequence[int]) -> Iterator[sp.csr_array]:
    """Cut the columns of a canonical SciPy matrix between these bounds, the first 0, the last its width.

    Memory: a copy of the matrix, with a row number for each entry, and the pointers of one block.
    """
    if len(bounds) == 2:
        yield A
        return
    kind, ends, number = A.indices.dtype, np.asarray(bounds), len(bounds) - 1
    place = (np.searchsorted(ends, A.indices, side="right") - 1).astype(kind)
    shape, pointers = (A.shape[0], number), A.indptr.astype(kind, copy=False)
    starts, rows = np.empty(number + 1, kind), np.empty(A.nnz, kind)
    columns, values = np.empty_like(A.indices), np.empty_like(A.data)
    for source, target in ((A.indices, columns), (A.data, values)):  # a counting sort by block
        _sparsetools.csr_tocsc(*shape, pointers, place, source, starts, rows, target)
    del place
    for (first, last), (lo, hi) in zip(pairwise(ends.tolist()), pairwise(starts.tolist()), strict=True):
        indptr = np.zeros(A.shape[0] + 1, kind)
        np.cumsum(np.bincount(rows[lo:hi], minlength=A.shape[0]), out=indptr[1:])
        block = sp.csr_array((A.shape[0], last - first), dtype=A.dtype)
        block.data, block.indices, block.indptr = values[lo:hi], columns[lo:hi] - kind.type(first), indptr
        block.has_sorted_indices = block.has_canonical_format = True
        yield block


def _columns(A: CSR, bounds: Sequence[int], backend: Backend, thin: bool = False) -> list[CSR]:
    return [CSR.from_scipy(block, backend, thin=thin) for block in column_blocks(A.to_scipy(), bounds)]


def _joined(blocks: Sequence[CSR], backend: Backend, thin: bool = False) -> CSR:
    return CSR.from_scipy(sp.hstack([A.to_scipy() for A in blocks], format="csr"), backend, thin=thin)


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


_ANYWHERE: Functions = {
    "fill": _fill, "row_starts": _row_starts, "columns": _columns, "joined": _joined,
    "filled": _filled, "pointers": _pointers,
    "thin rows": _thin_rows,
}  # fmt: skip
KERNELS = KernelTable(
    numpy=[Kernels({**_ANYWHERE, "transposed": _transposed_on_host})],
    cupy=[Kernels({**_ANYWHERE, "transposed": _transposed_on_gpu})],
)

"""A whole sparse matrix on the GPU of a grid's only rank, as a block source that stays there."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays import foreign
from distgnn.arrays.backend import Backend
from distgnn.arrays.canonical import check_real, value_type
from distgnn.arrays.csr import CSR, Shape
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError
from distgnn.layout import Range
from distgnn.local import edges
from distgnn.local.csr_rows import owners

_numbers = itertools.count()


class DeviceMatrix:
    """A caller's matrix on a GPU, copied there: of CuPy, sparse or dense, or a tensor of PyTorch.

    Its values and structure are those of a :class:`~distgnn.operators.sources.MatrixSource` of the same
    matrix: duplicates are summed, stored zeros stay. Operations that ask for SciPy's form (:meth:`block`)
    copy the matrix to the host: the diagonal, products with wider arrays, and ``sparsity_aware``.

    Args:
        on: the grid's backend. dtype: as of a MatrixSource.

    Raises:
        ArgumentError: no matrix of real numbers, or row pointers or columns that are out of range.
    """

    def __init__(self, matrix: Any, on: Backend, dtype: Any = None) -> None:
        self.number = next(_numbers)
        foreign.check_place("matrix", matrix, on)
        if foreign.sparse_on_gpu(matrix):
            values, columns, pointers = foreign.csr_parts(matrix)
            shape: Shape = (int(matrix.shape[0]), int(matrix.shape[1]))
            with (
                foreign.borrowed("matrix", values, on) as data,
                foreign.borrowed("matrix", columns, on) as indices,
                foreign.borrowed("matrix", pointers, on) as indptr,
            ):
                self.A = _canonical(data, indices, indptr, shape, value_type(data.dtype, dtype), on)
        else:
            with foreign.borrowed("matrix", matrix, on) as array:
                self.A = _of_dense(array, on, dtype)
        self.shape, self.dtype = self.A.shape, self.A.dtype
        self.nnz = self.A.nnz
        self.symmetric = self._is_symmetric(on)

    @property
    def key(self) -> Hashable:
        """A key of this object: no other one has the same matrix."""
        return self.number

    def assemble(self, rows: Range, cols: Range, backend: Backend, readers: Comm) -> CSR:
        """Return the matrix, or copy some of its rows and columns by way of the host."""
        if (rows, cols) == ((0, self.shape[0]), (0, self.shape[1])):
            return self.A
        return CSR.from_scipy(self.block(rows, cols), backend, self.dtype)

    def block(self, rows: Range, cols: Range) -> sp.csr_array:
        """Return rows and columns in SciPy's form, copied to the host."""
        return self.A.to_scipy()[rows[0] : rows[1], cols[0] : cols[1]]

    def _is_symmetric(self, on: Backend) -> bool:
        """Tell whether the matrix equals its transpose; False where that is too large to be sorted here."""
        if self.shape[0] != self.shape[1] or self.nnz > TUNING.sorted_on_device:
            return False
        At = self.A.transposed(on)
        pairs = [(getattr(self.A, name), getattr(At, name)) for name in ("indptr", "indices", "data")]
        return all(bool((ours == theirs).all()) for ours, theirs in pairs)


def _canonical(data: Any, indices: Any, indptr: Any, shape: Shape, dtype: np.dtype, on: Backend) -> CSR:
    """Copy CSR arrays on the device to a block with sorted rows, without duplicates."""
    xp = on.xp
    check_real("matrix", data.dtype)
    if {indices.dtype.kind, indptr.dtype.kind} != {"i"}:
        raise _refused("row pointers and columns must be signed integers")
    if indptr.shape != (shape[0] + 1,) or int(indptr[0]) or bool((indptr[1:] < indptr[:-1]).any()):
        raise _refused("row pointers must rise from 0, one more than there are rows")
    nnz = int(indptr[-1])
    if nnz > min(len(indices), len(data)):
        raise _refused(f"row pointers end behind the {len(indices)} entries")
    data, indices = data[:nnz].astype(dtype), indices[:nnz]
    if nnz and not (int(indices.min()) >= 0 and int(indices.max()) < shape[1]):
        raise _refused(f"column numbers must lie in 0..{shape[1] - 1}")
    counts = indptr[1:] - indptr[:-1]
    keys = owners(counts, nnz).astype(np.int64) * shape[1] + indices
    if nnz and not bool((keys[1:] > keys[:-1]).all()):
        order = xp.argsort(keys, kind="stable")
        keys, data = keys[order], data[order]
        first = xp.ones(nnz, bool)
        first[1:] = keys[1:] != keys[:-1]
        starts = xp.flatnonzero(first)
        keys, data = keys[starts], _sums(data, starts, on)
    made = CSR.empty(shape, len(keys), dtype, on)
    made.data[...] = data
    made.indptr[...] = 0
    if nnz:
        made.indices[...] = keys % shape[1]
        made.indptr[...] = xp.searchsorted(keys // shape[1], xp.arange(shape[0] + 1))
    return made


def _sums(data: Any, starts: Any, on: Backend) -> Any:
    """Sum runs of values that begin at these places, each from its first value to its last."""
    if len(starts) == len(data):
        return data
    bounds = on.xp.full(len(starts) + 1, len(data), np.int64)
    bounds[:-1] = starts
    return edges.run_sums(data, bounds)


def _of_dense(array: Any, on: Backend, dtype: Any) -> CSR:
    """Make a block of the entries of a dense matrix that are not 0."""
    check_real("matrix", array.dtype)
    if array.ndim != 2:
        raise _refused(f"expected two dimensions, got the shape {array.shape}")
    rows, columns = on.xp.nonzero(array)
    pointers = on.xp.searchsorted(rows, on.xp.arange(array.shape[0] + 1, dtype=rows.dtype))
    kind = value_type(array.dtype, dtype)
    return _canonical(array[rows, columns], columns, pointers, array.shape, kind, on)


def _refused(problem: str) -> ArgumentError:
    return ArgumentError("matrix", "on a GPU", f"is no sparse matrix ({problem})")

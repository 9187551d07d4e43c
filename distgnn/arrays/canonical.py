"""Conversion of the caller's matrix to reliable CSR: the one place that checks foreign indices and values."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from distgnn.arrays import foreign
from distgnn.errors import ArgumentError

_WRAPPERS = {"csr": sp.csr_array, "csc": sp.csc_array, "bsr": sp.bsr_array, "coo": sp.coo_array}


def canonical(matrix: Any, dtype: Any = None) -> Any:
    """Convert a matrix to CSR with sorted rows, without duplicates, with indices in range; stored zeros stay.

    The caller's object is left as it is, its flags included. Its arrays are shared where they are canonical
    already, whatever its flags say, and copied where they are not: nobody may write into the result.

    Args:
        matrix: a SciPy sparse matrix of any format, or anything that NumPy makes a 2-D array of. A matrix of
            another kind may have a method ``as_canonical`` that gives the result.
        dtype: of the values, in which duplicates are summed; default: the matrix's own, float32 for float16.

    Raises:
        ArgumentError: complex values or none that are numbers, not two dimensions, row pointers that do not
            rise, indices out of range. Compiled code has seen none of it.
    """
    if hasattr(matrix, "as_canonical"):
        return matrix.as_canonical()
    matrix = as_matrix(matrix)
    csr = checked(matrix, "matrix", dtype).tocsr()
    csr.indptr, csr.indices = _native(csr.indptr), _native(csr.indices)
    if not _sparsetools.csr_has_canonical_format(csr.shape[0], csr.indptr, csr.indices):
        csr = sp.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape, copy=True)
        csr.sum_duplicates()
    csr.has_sorted_indices = csr.has_canonical_format = True
    return csr


def distinct(matrix: Any, argument: str, dtype: Any = None) -> Any:
    """Convert a matrix of SciPy to CSR as :func:`canonical` does, but refuse entries that stand twice.

    ArgumentError, with this name of the argument: an entry that stands twice, and what :func:`canonical`
    refuses.
    """
    own = checked(matrix, argument)
    csr = canonical(own, dtype)
    if csr.nnz < own.nnz:
        row, column = own.tocoo().coords
        keys = np.sort(row.astype(np.int64) * own.shape[1] + column)
        place = divmod(int(keys[1:][keys[1:] == keys[:-1]][0]), own.shape[1])
        problem = f"the entry in row {place[0]}, column {place[1]} stands twice; sum_duplicates() adds them"
        raise ArgumentError(argument, type(matrix).__name__, problem)
    return csr


def checked(matrix: Any, argument: str, dtype: Any = None) -> Any:
    """Convert a matrix to SciPy's COO, CSR, CSC or BSR, whose arrays compiled code may follow.

    Entries stay as they are, duplicates and stored zeros included, and their arrays are shared.

    Args:
        matrix: of SciPy, or dense. argument: its name in errors.
        dtype: of the values; default: their own, float32 for float16, as SciPy computes with no shorter ones.

    Raises:
        ArgumentError: values that are no real numbers, pointers that do not rise or that end behind the
            entries, indices that are no signed integers or out of range.
    """
    check_real(argument, matrix.dtype)
    if dtype is None and matrix.dtype == np.float16:
        dtype = np.float32
    try:
        for name in ("indptr", "indices", "offsets"):
            if getattr(matrix, name, np.empty(0, int)).dtype.kind != "i":
                raise TypeError(f"{name} are not signed integers")
        matrix = matrix if sp.issparse(matrix) else _native(matrix, dtype)
        own = _WRAPPERS.get(getattr(matrix, "format", ""), sp.csr_array)(matrix)  # an object of our own
        own.data = _native(own.data, dtype)  # before anything is summed
        if own.format != "coo":  # whose coordinates are in range now
            _check_compressed(own)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        problem = f"is no sparse matrix ({error})"
        raise ArgumentError(argument, type(matrix).__name__, problem) from None
    return own


def as_matrix(matrix: Any) -> Any:
    """Return a sparse matrix of SciPy as it is, or an array of real numbers; else raise ArgumentError.

    What is on a GPU is copied to the host.
    """
    if matrix is None:
        problem = "every rank must give the matrix, the same one; or one rank, which root=RANK names"
        raise ArgumentError("matrix", None, problem)
    if isinstance(matrix, (str, bytes, os.PathLike)):
        raise ArgumentError("matrix", matrix, "is a path; load opens a store")
    matrix = foreign.on_host("matrix", matrix)
    if sp.issparse(matrix):
        check_real("matrix", matrix.dtype)
        return matrix
    array = np.asarray(matrix)
    if array.dtype == object and not isinstance(matrix, np.ndarray):
        raise _refused(matrix, "expected a SciPy sparse matrix, or an array of numbers")
    check_real("matrix", array.dtype)
    if array.ndim != 2:
        raise _refused(array, f"expected two dimensions, got the shape {array.shape}")
    if array.dtype.kind in "iu" and 2 in array.shape and max(array.shape) > 2:
        problem = "looks like the ends of edges; scipy.sparse.coo_array((ones, (rows, cols)), shape=(n, n)) "
        raise _refused(array, problem + "makes a matrix of them")
    return array


def value_type(own: Any, asked: Any = None) -> np.dtype:
    """Return the type of an operator's values: float32 or float64 as asked, else by the matrix's own.

    By default it is the shorter of the two that holds the matrix's own type, as NumPy promotes: float64 for
    integers of 32 and 64 bits. ArgumentError: anything else.
    """
    if asked is not None:
        if np.dtype(asked) not in (np.float32, np.float64):
            raise ArgumentError("dtype", np.dtype(asked), "expected float32 or float64")
        return np.dtype(asked)
    own = check_real("matrix", own)
    return np.dtype(np.float32 if np.result_type(own, np.float32) == np.float32 else np.float64)


def check_real(argument: str, dtype: Any) -> np.dtype:
    """Return the dtype; raise ArgumentError unless it is of real numbers or truth values."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "biuf":
        what = "complex values (see docs/algebra.md)" if dtype.kind == "c" else "values that are no numbers"
        raise ArgumentError(argument, dtype, f"holds {what}; expected real numbers, such as float32")
    return dtype


def identical(A: sp.csr_array, B: sp.csr_array) -> bool:
    """Tell whether two canonical matrices have the same entries, stored zeros included, with equal values."""
    arrays = ((A.indptr, B.indptr), (A.indices, B.indices), (A.data, B.data))
    return A.shape == B.shape and all(np.array_equal(*pair) for pair in arrays)


def _check_compressed(matrix: Any) -> None:
    """Raise ValueError unless row (column) pointers rise, and column (row) numbers are in range."""
    height, width = (1, *matrix.shape)[-2:]  # a vector is one row
    if matrix.format == "bsr":
        height, width = height // matrix.blocksize[0], width // matrix.blocksize[1]
    line, across, count, limit = "row", "column", height, width
    if matrix.format == "csc":
        line, across, count, limit = "column", "row", width, height
    indptr, indices = matrix.indptr, matrix.indices
    if indptr.size != count + 1 or indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]):
        raise ValueError(f"{line} pointers must rise from 0, one more than there are {line}s")
    if indptr[-1] > len(indices):
        raise ValueError(f"{line} pointers end behind the {len(indices)} entries")
    if indices.size and not (0 <= indices.min() and indices.max() < limit):
        bad = int(np.argmax((indices < 0) | (indices >= limit)))
        place = f"{line} {np.searchsorted(indptr, bad, side='right') - 1} has {across} number {indices[bad]}"
        raise ValueError(f"{place}; {across} numbers must lie in 0..{limit - 1}")


def _native(array: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Make an array C-contiguous, in this machine's byte order.

    Returns the same array where it is so already.
    """
    return np.ascontiguousarray(array, dtype=dtype or array.dtype.newbyteorder("="))


def _refused(matrix: Any, problem: str) -> ArgumentError:
    return ArgumentError("matrix", type(matrix).__name__, problem)

"""Rows of sparse matrices: each function against the plain loop that it replaces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from awkward_shapes import awkward
from distgnn.local import csr_rows

MATRICES = awkward()


def some_rows(n, seed=0):
    return np.random.default_rng(seed).integers(0, n, 2 * n)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gather(index):
    for name, A in MATRICES.items():
        A.indices, A.indptr = A.indices.astype(index), A.indptr.astype(index)
        n = A.shape[0]
        for rows in (some_rows(n), np.empty(0, np.int64), np.arange(n, dtype=np.int32), slice(n // 3, n)):
            counts, columns, values = csr_rows.gather(A, rows)
            numbers = np.arange(n)[rows]
            entries = [slice(A.indptr[row], A.indptr[row + 1]) for row in numbers]
            np.testing.assert_array_equal(counts, np.diff(A.indptr)[numbers], name)
            for got, array in ((columns, A.indices), (values, A.data)):
                np.testing.assert_array_equal(
                    got, np.concatenate([array[:0], *(array[row] for row in entries)]), name
                )
                assert got.dtype == array.dtype


def test_unpack_undoes_gather():
    for A in MATRICES.values():
        rows = some_rows(A.shape[0])
        np.testing.assert_array_equal(
            csr_rows.unpack(csr_rows.gather(A, rows), A.shape[1], A).toarray(), A.toarray()[rows]
        )


def test_owners():
    counts = np.array([2, 0, 3, 1, 0])
    assert csr_rows.owners(counts).tolist() == [0, 0, 2, 2, 2, 3]
    assert csr_rows.owners(counts[1:2]).size == 0


@pytest.mark.parametrize("shape", [(40, 30), (3, 2000)])  # more entries than columns, and fewer
def test_sort_rows(shape):
    rng = np.random.default_rng(0)
    A = sp.random_array(shape, density=0.1, format="csr", rng=rng)
    mixed = A.copy()
    for first, last in pairwise(A.indptr):
        order = first + rng.permutation(last - first)
        mixed.indices[first:last], mixed.data[first:last] = A.indices[order], A.data[order]
    assert not np.array_equal(mixed.indices, A.indices)
    mixed.has_sorted_indices = False
    found = csr_rows.sort_rows(mixed)
    for array in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, array), getattr(A, array))
        assert getattr(found, array).dtype == getattr(A, array).dtype


def test_keep_columns():
    """Columns with entries, and others: a product with the kept rows is that of the whole, to the bit."""
    rng = np.random.default_rng(0)
    for A in [*MATRICES.values(), sp.random_array((7, 30), density=0.1, format="csr", rng=rng)]:
        X = rng.standard_normal((A.shape[1], 3))
        filled = np.unique(A.indices)
        for columns in (filled, np.union1d(filled, rng.integers(0, A.shape[1], 3)), np.arange(A.shape[1])):
            compact = csr_rows.keep_columns(A, columns)
            assert compact.shape == (A.shape[0], columns.size) and compact.nnz == A.nnz
            np.testing.assert_array_equal(compact @ X[columns], A @ X)


def test_index_type():
    assert csr_rows.index_type(5, 2**31 - 1) == np.int32
    assert csr_rows.index_type(2**31, 0) == np.int64


def test_indices_of_another_type_where_they_fit():
    """Values are shared; numbers that do not fit are left as they are."""
    A = sp.csr_array((np.ones(2), np.array([3, 99], np.int64), np.array([0, 1, 2], np.int64)), shape=(2, 100))
    small = csr_rows.with_indices(A, np.dtype(np.int32))
    assert small.indices.dtype == small.indptr.dtype == np.int32 and np.shares_memory(small.data, A.data)
    np.testing.assert_array_equal(small.toarray(), A.toarray())
    assert csr_rows.with_indices(small, np.dtype(np.int32)) is small
    wide = sp.csr_array((np.ones(1), np.array([2**40]), np.array([0, 1])), shape=(1, 2**41))
    assert csr_rows.with_indices(wide, np.dtype(np.int32)).indices.dtype == np.int64

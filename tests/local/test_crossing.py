"""Matrices divided by which ranks share their rows and columns."""

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.local.crossing import crossing
from distgnn.plan.dry.shapes import ShapeMatrix
from loops import each

CASES = [((0, 3, 9, 10), (0, 7, 7, 8), 30), ((0, 5), (0, 5), 9), ((0, 2, 4), (0, 3, 6), 0)]


@each("rows, columns, nonzeros", CASES)
def test_near_and_far_entries_are_all(rows, columns, nonzeros):
    """A matrix on rank blocks, some of them empty, is put together again; none of its far lines is empty."""
    r = np.random.default_rng(len(rows))
    A = np.zeros((rows[-1], columns[-1]))
    where = r.integers(rows[-1], size=nonzeros), r.integers(columns[-1], size=nonzeros)
    A[where] = np.arange(1, nonzeros + 1)
    made = np.zeros_like(A)
    for rank in range(len(rows) - 1):
        parts = crossing(sp.csr_array(A), np.array(rows), np.array(columns), rank)
        made[slice(*rows[rank : rank + 2]), slice(*columns[rank : rank + 2])] = parts.near.toarray()
    assert np.diff(parts.far.indptr).all()
    assert np.bincount(parts.far.indices, minlength=parts.far.shape[1]).all()
    lines = [np.concatenate([own + first for own, first in zip(by, ends, strict=False)])
             for by, ends in ((parts.rows, rows), (parts.columns, columns))]  # fmt: skip
    made[np.ix_(*lines)] += parts.far.toarray()
    np.testing.assert_array_equal(made, A)


def test_as_many_rows_are_expected_as_cross_in_a_random_matrix():
    n, nnz, ends = 3000, 4000, np.array([0, 500, 1500, 3000])
    r = np.random.default_rng(0)
    A = sp.csr_array((np.ones(nnz), (r.integers(n, size=nnz), r.integers(n, size=nnz))), shape=(n, n))
    expected = crossing(ShapeMatrix((n, n), nnz, np.dtype(np.float32)), ends, ends, 1)
    counted = crossing(A, ends, ends, 1)
    for a, b in zip([*expected.rows, *expected.columns], [*counted.rows, *counted.columns], strict=True):
        assert a.size == pytest.approx(b.size, rel=0.08)
    assert expected.near.shape == counted.near.shape
    assert expected.far.nnz == pytest.approx(counted.far.nnz, rel=0.05)
    assert expected.near.nnz == pytest.approx(counted.near.nnz, abs=60)

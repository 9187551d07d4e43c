"""Products of two sparse matrices by the compiled kernel, beside SciPy's and serial sums, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.local import host
from distgnn.local.spgemm import spgemm
from loops import each

pytestmark = pytest.mark.skipif(not host.usable(), reason="the host kernels are not built here")
CODES = [np.int32, np.int64]


def matrix(rows: int, columns: int, per_row: int, dtype: Any, kind: Any, seed: int) -> sp.csr_array:
    """Make rows of 0 to 2 `per_row` entries, some of which are 0, and others that cancel in sums."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, min(2 * per_row, columns) + 1, rows)
    indices = [np.sort(random.choice(columns, length, replace=False)) for length in lengths]
    data = random.choice([-2.0, -1.0, 0.0, 1.0, 0.1], lengths.sum()).astype(dtype)
    A = sp.csr_array(
        (data, np.concatenate([np.empty(0, int), *indices]), np.append(0, lengths.cumsum())),
        shape=(rows, columns),
    )
    A.indices, A.indptr = A.indices.astype(kind), A.indptr.astype(kind)
    return A


@each("width", [1, 2, 63, 64, 65, 4096, 4097, 300_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", CODES)
def test_products_are_those_of_scipy(
    width: int, dtype: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows, inner, per_row in ((30, 50, 6), (1, 80, 80), (5, 3, 1), (0, 4, 2), (4, 4, 0)):
        A, B = matrix(rows, inner, per_row, dtype, kind, 1), matrix(inner, width, 9, dtype, kind, 2)
        found = spgemm(A, B)
        with monkeypatch.context() as patch:
            patch.setattr(host, "module", lambda: None)
            expected = spgemm(A, B)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        assert found.indices.itemsize == found.indptr.itemsize <= np.dtype(kind).itemsize
        for name in ("indptr", "indices", "data"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        for row in range(rows):  # of a serial sum that shares no code with either
            sums: dict[int, Any] = {}
            for k, a in zip(A[[row]].indices, A[[row]].data, strict=True):
                for j, b in zip(B[[k]].indices, B[[k]].data, strict=True):
                    sums[int(j)] = dtype(sums.get(int(j), dtype(0)) + a * b)
            own = slice(found.indptr[row], found.indptr[row + 1])
            assert dict(zip(found.indices[own].tolist(), found.data[own], strict=True)) == sums
            assert found.indices[own].tolist() == sorted(sums)


def test_the_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for numbers that are no floats, or of two kinds, SciPy's."""
    called, whole = [], host.built().spgemm
    monkeypatch.setattr(host.built(), "spgemm", lambda *arrays: [called.append(1), whole(*arrays)])
    A, B = (matrix(9, 9, 4, np.float32, np.int32, seed) for seed in (3, 4))
    spgemm(A, B)
    assert len(called) == 1
    for left, right in ((A.astype(np.int64), B.astype(np.int64)), (A.astype(np.float64), B)):
        assert np.allclose(spgemm(left, right).toarray(), left.toarray() @ right.toarray())
    assert len(called) == 1
    spgemm(A, B.astype(np.float64))
    assert len(called) == 2


@pytest.mark.parametrize("wrong", [-1, 9])
def test_columns_that_are_none_are_refused(wrong: int) -> None:
    A, B = (sp.csr_array(np.ones((9, 9))) for _ in range(2))
    B.indices[40] = wrong
    with pytest.raises(ValueError, match=r"b_indices: entry 40 must lie in 0..8"):
        spgemm(A, B)
    B.indptr[3] = 100
    with pytest.raises(ValueError, match=r"b_pointers: row 2 goes from 18 to 100, of 81"):
        spgemm(A, B)

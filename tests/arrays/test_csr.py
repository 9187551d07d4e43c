"""CSR blocks: transposed where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from loops import each


def unsorted(shape: tuple[int, int], density: float) -> sp.csr_array:
    """Make rows whose columns do not rise, as samplers do."""
    A = sp.random_array(shape, density=density, random_state=1, format="csr", dtype=np.float32)
    for row in range(shape[0]):
        own = slice(A.indptr[row], A.indptr[row + 1])
        A.indices[own], A.data[own] = A.indices[own][::-1].copy(), A.data[own][::-1].copy()
    return A


@pytest.mark.parametrize("sorted_on_device", [1 << 20, 3])
@each("shape", [(30, 50), (50, 7), (1, 1), (0, 4), (4, 0)])
def test_the_transposed_block_has_sorted_rows(
    shape: tuple[int, int], sorted_on_device: int, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "sorted_on_device", sorted_on_device)
    A = unsorted(shape, 0.2)
    block = CSR.empty(shape, A.nnz, np.dtype(np.float32), backend)
    for name in ("data", "indices", "indptr"):
        getattr(block, name)[...] = backend.asarray(getattr(A, name))
    found, expected = block.transposed(backend), A.T.tocsr()
    expected.sort_indices()
    assert found.shape == expected.shape
    for name in ("data", "indices", "indptr"):
        assert backend.to_host(getattr(found, name)).tolist() == getattr(expected, name).tolist()

"""Blocks most of whose rows are empty, without their pointers, and columns cut into blocks."""

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import local
from distgnn.arrays import backend as backends
from distgnn.arrays.csr import CSR, ThinCSR, column_blocks

HOST = backends.get("numpy")


def matrix(nnz: int, seed: int = 0) -> sp.csr_array:
    """Draw a 500 x 90 matrix with so many entries at most."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, 500, nnz), rng.integers(0, 90, nnz)
    return sp.csr_array((rng.standard_normal(nnz), places), shape=(500, 90))


@pytest.mark.parametrize("nnz", [0, 1, 60, 240])
def test_it_is_the_same_block(nnz: int) -> None:
    A, B = matrix(nnz), np.random.default_rng(1).standard_normal((90, 5))
    thin, plain = (CSR.from_scipy(A, HOST, np.float64, thin) for thin in (True, False))
    assert type(thin) is ThinCSR and type(plain) is CSR
    assert thin.buffer.nbytes <= nnz * 12 + nnz * 8 < plain.buffer.nbytes
    values = np.arange(thin.nnz) + 0.5
    pairs = [(thin, plain), (thin.transposed(HOST), plain.transposed(HOST))]
    pairs += [(thin.rows(*some), plain.rows(*some)) for some in ((0, 200), (9, 9), (130, 500))]
    pairs += [(one.with_values(values), two.with_values(values)) for one, two in pairs[:1]]
    kind, recipe = thin.recipe()
    pairs += [(kind(*recipe, thin.buffer), plain)]
    for one, two in pairs:
        assert one.shape == two.shape and one.header() == two.header()
        assert one.first_entry == two.first_entry
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    np.testing.assert_array_equal(local.spmm(thin, B), local.spmm(plain, B))
    with pytest.raises(ValueError, match="read-only"):
        thin.read_only().filled[...] = 0


def test_a_full_block_keeps_its_pointers() -> None:
    assert type(CSR.from_scipy(matrix(5000), HOST, thin=True)) is CSR


@pytest.mark.parametrize("bounds", [[0, 90], [0, 30, 60, 90], [0, 0, 89, 89, 90, 90], [*range(91)]])
def test_columns_are_cut(bounds: list[int]) -> None:
    A = matrix(700)
    cut = list(column_blocks(A, bounds))
    assert len(cut) == len(bounds) - 1
    for block, first, last in zip(cut, bounds, bounds[1:], strict=False):
        expected = A[:, first:last]
        assert block.shape == expected.shape and block.has_canonical_format
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(block, name), getattr(expected, name))

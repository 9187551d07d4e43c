"""The matrices of awkward shape are what they are called."""

from __future__ import annotations

import numpy as np

from awkward_shapes import awkward


def test_awkward_matrices_are_canonical_and_depend_on_the_seed_only() -> None:
    first, again, other = awkward(), awkward(), awkward(seed=1)
    assert first.keys() == again.keys() == other.keys()
    for name, A in first.items():
        assert A.dtype == np.float64, name
        assert A.indices.dtype == A.indptr.dtype == np.int32, name
        assert A.has_canonical_format, name
        np.testing.assert_array_equal(A.toarray(), again[name].toarray())
    assert (first["prime"] != other["prime"]).nnz


def test_awkward_matrices_are_what_they_are_called() -> None:
    cases = awkward()
    assert cases["one"].shape == (1, 1)
    assert cases["no_edges"].nnz == 0
    assert abs(cases["symmetric"] - cases["symmetric"].T).sum() == 0
    assert cases["directed"].multiply(cases["directed"].T).nnz == 0
    assert (
        cases["hub_row"].count_nonzero(axis=1).max() == 37 > 10 > cases["hub_row"].count_nonzero(axis=0).max()
    )
    assert (
        cases["hub_column"].count_nonzero(axis=0).max()
        == 37
        > 10
        > cases["hub_column"].count_nonzero(axis=1).max()
    )
    assert np.ptp(np.flatnonzero(cases["block_of_empty_rows"].count_nonzero(axis=1) == 0)) == 21
    assert cases["mixed_sign"].data.min() < 0 < cases["mixed_sign"].data.max()
    np.testing.assert_allclose(cases["mixed_sign"].sum(axis=1), 0, atol=1e-12)
    assert cases["stored_zeros"].nnz > cases["stored_zeros"].count_nonzero()
    assert cases["wide"].shape[0] < cases["wide"].shape[1]
    assert cases["tall"].shape[0] > cases["tall"].shape[1]

"""Types of values: products keep the wider type, as in SciPy, or an error says how to have one for both."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn.errors import ArgumentError
from distgnn.operators import ALGORITHMS, grids

BEYOND = 16777217  # the first whole number that float32 can't hold
SHORT = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.float16, np.float32]
LONG = [np.int32, np.uint32, np.int64, np.uint64, np.float64, np.longdouble]


def cycle(dtype: type, n: int = 8) -> sp.csr_array:
    return sp.csr_array((np.ones(n, dtype), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))


@pytest.mark.ranks(1)
@pytest.mark.parametrize("dtype", SHORT + LONG)
def test_operators_take_the_type_that_holds_the_matrix(comm, dtype) -> None:
    expected = np.float32 if dtype in SHORT else np.float64
    assert dg.MatrixSource(np.eye(3, dtype=dtype)).dtype == expected
    assert dg.reference.normalize(np.eye(3, dtype=dtype)).dtype == expected
    assert dg.reference.normalize(np.eye(3, dtype=dtype), dtype=np.float32).dtype == np.float32


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_whole_numbers_keep_their_digits(comm, algorithm) -> None:
    A = cycle(np.int64) * BEYOND
    grid = dg.Grid(comm, backend="numpy", **grids(algorithm, comm.size)[0])
    for root in (None, 0):
        op = dg.distribute(A, grid, algorithm, root=root)
        H = dg.scatter(np.ones((8, 4)), op.input_layout)
        product = dg.gather(op @ H)
        assert op.dtype == np.float64 and (comm.rank or (product == BEYOND).all())
        short = dg.distribute(A, grid, algorithm, root=root, dtype=np.float32)
        assert short.dtype == np.float32
        with pytest.raises(ValueError, match="A holds float32, H holds float64; .*dtype=np.float64"):
            short @ H
    grid.free()


@pytest.mark.ranks(4)
def test_ranks_must_agree_on_the_type(comm) -> None:
    grid = dg.Grid(comm, backend="numpy", rows=comm.size)
    with pytest.raises(ArgumentError, match="dtype"):
        dg.distribute(cycle(np.int64), grid, "1d", dtype=[np.float32, np.float64][comm.rank % 2])
    grid.free()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_short_matrix_times_a_wide_array_is_wide(comm, algorithm) -> None:
    A, rng = cycle(np.float32), np.random.default_rng(1)
    op = dg.distribute(A, dg.Grid(comm, backend="numpy", **grids(algorithm, 1)[0]), algorithm)
    for H in (rng.standard_normal((8, 3)), np.arange(8) + BEYOND, rng.standard_normal(8)):
        for product, expected in ((op @ H, A @ H), (op.T @ H, A.T @ H)):
            assert product.dtype == np.float64 and (product == expected).all()
    assert (op @ np.ones(8, np.float32)).dtype == (op @ np.ones(8, np.int16)).dtype == np.float32
    with pytest.raises(ValueError):
        op @ np.ones(7)


@pytest.mark.ranks(1)
def test_a_store_in_another_order_times_a_wide_array(comm, tmp_path) -> None:
    rng = np.random.default_rng(2)
    A = sp.random_array((50, 50), density=0.1, rng=rng, format="csr")
    dg.prepare(A, out=tmp_path / "g.dg", weights=True, normalize="none", self_loops=False, order=["double"])
    H, short = rng.standard_normal((50, 3)), A.astype(np.float32)
    op = dg.load(tmp_path / "g.dg", dg.Grid(comm, backend="numpy", x=1, y=1, z=1), "3d")
    for number in range(3):
        assert op.layer(number) @ H == pytest.approx(short @ H, rel=1e-14, abs=1e-14)
        assert op.layer(number).T @ H == pytest.approx(short.T @ H, rel=1e-14, abs=1e-14)


@pytest.mark.ranks(1)
def test_a_source_of_blocks_says_its_type(comm) -> None:
    grid = dg.Grid(comm, backend="numpy", rows=1)
    with pytest.raises(ArgumentError, match="dtype=float32: the source of blocks gives float64"):
        dg.distribute(dg.MatrixSource(cycle(np.float64)), grid, "1d", dtype=np.float32)

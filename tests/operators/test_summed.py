"""Sums of row blocks made while others are multiplied: the same bits however they are cut, and the words of
one all-reduce.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import Grid, Ledger, progress
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm
from distgnn.operators import summed
from summed_product import multiply


def shares(comm, shape, dtype=np.float32):
    """Return all ranks' numbers, of very different size so that every order of additions gives other bits."""
    rng = np.random.default_rng(7)
    exponents = rng.integers(-12, 12, (comm.Get_size(), *shape))
    return (rng.standard_normal(exponents.shape) * 2.0**exponents).astype(dtype)


@pytest.mark.ranks(1, 3, 6)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_added_in_the_order_of_the_ranks(comm, backend, overlap, dtype, monkeypatch):
    monkeypatch.setattr(TUNING, "sum_chunk", 128)
    monkeypatch.setattr(TUNING, "small_sum", 0)
    grid = Grid(comm, backend=backend)
    grid.overlap = overlap
    for height, width in ((0, 3), (5, 0), (1, 1), (2, 5), (53, 7)):
        everybodys = shares(comm, (height, width), dtype)
        expected = everybodys[0].copy()
        for other in everybodys[1:]:
            expected += other
        for rows in (None, 1, 4, 1000):
            grid.block_rows = rows
            mine = backend.asarray(everybodys[grid.rank]).copy()
            with Ledger() as ledger:
                summed.add_up(grid, grid.along("rows"), mine)
            np.testing.assert_array_equal(backend.to_host(mine), expected, f"{height} x {width}, {rows}")
            p = comm.Get_size()
            assert ledger.words == round(2 * (p - 1) / p * height * width)
    assert not progress.pending()
    grid.free()


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("accumulate", [False, True])
def test_products_do_not_depend_on_the_blocks(comm, backend, accumulate, monkeypatch):
    """Bitwise, with sums under way during the products, whatever the rows of a block."""
    monkeypatch.setattr(TUNING, "sum_chunk", 256)
    monkeypatch.setattr(TUNING, "small_sum", 0)
    monkeypatch.setattr(TUNING, "flops_between_polls", 512)
    monkeypatch.setattr(TUNING, "gemm_rows", 16)
    grid = Grid(comm, backend=backend)
    group = grid.along("rows")
    rng = np.random.default_rng(grid.rank)
    A = sp.random_array((67, 31), density=0.2, format="csr", dtype=np.float32, random_state=rng)
    block = CSR.from_scipy(A, backend)
    dense = backend.asarray(rng.standard_normal((67, 31)).astype(np.float32))
    B = backend.asarray(rng.standard_normal((31, 6)).astype(np.float32))
    start = rng.standard_normal((67, 6)).astype(np.float32)
    found = []
    for overlap in (True, False):
        for rows in (1, 10, 67, None):
            grid.overlap, grid.block_rows = overlap, rows
            out, full = (backend.asarray(start).copy() for _ in range(2))
            with Ledger(timing=True) as ledger:
                multiply(grid, group, block, B, out, accumulate=accumulate)
                summed.gemm(grid, group, dense, B, full)
            assert (ledger.flight > 0) == (comm.Get_size() > 1)
            found.append((backend.to_host(out), backend.to_host(full)))
    everybodys = grid.world.gather_objects(
        (A @ backend.to_host(B) + accumulate * start, backend.to_host(dense @ B))
    )
    for computed, exact in zip(found[0], map(sum, zip(*everybodys, strict=True)), strict=True):
        np.testing.assert_allclose(computed, exact, rtol=1e-4, atol=1e-4)
    # there, rounding of dense products is the library's affair
    for other in found[1:] if not backend.on_device else []:
        for computed, first in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(computed, first)
    grid.free()


@pytest.mark.ranks(2, 4)
@pytest.mark.abandons
def test_an_error_in_a_product_leaves_nothing_to_drive(comm, backend):
    grid = Grid(comm, backend=backend)
    array = backend.asarray(np.ones((100, 8)))
    with pytest.raises(ZeroDivisionError), grid.along("rows").sums(grid.workspace, grid.overlap) as running:
        running.start(array)
        1 / 0
    assert not progress.pending()


@pytest.mark.ranks(2, 3)
def test_arrays_longer_than_mpi_counts(comm, backend, monkeypatch):
    monkeypatch.setattr(Comm, "count_limit", 7)
    grid = Grid(comm, backend=backend)
    array = backend.asarray(np.arange(50.0))
    with grid.along("rows").sums(grid.workspace, grid.overlap) as running:
        running.start(array)
    np.testing.assert_array_equal(backend.to_host(array), comm.Get_size() * np.arange(50.0))
    grid.free()


@pytest.mark.ranks(1, 2)
def test_default_blocks_are_neither_small_nor_large(comm, backend):
    grid = Grid(comm, backend=backend)

    def cut(height, width):
        return summed.row_blocks(grid, comm.Get_size(), height, 4 * width)

    assert cut(100, 16) == [(0, 100)] and cut(0, 5) == [(0, 0)] and cut(7, 0) == [(0, 7)]
    if backend.on_device:
        most = 4 if comm.Get_size() > 1 else 1
        assert [len(cut(height, 128)) for height in (8_000, 20_000, 1_000_003)] == [1, min(most, 3), most]
        return
    for height in (20_000, 100_000, 1_000_000):
        blocks = cut(height, 128)
        assert (
            blocks[0][0] == 0 and blocks[-1][1] == height and all(a[1] == b[0] for a, b in pairwise(blocks))
        )
        if comm.Get_size() == 1:
            assert len(blocks) == 1
        else:
            size = 512 * (blocks[0][1] - blocks[0][0])
            assert TUNING.smallest_sum_block - 512 < size <= TUNING.sum_chunk
            assert len(blocks) >= TUNING.sum_blocks or size < TUNING.smallest_sum_block + 512

"""SUMMA in panels of a given width: what travels, in how many messages, and the memory it takes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import some_grids, wide_grid
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.gallery import rmat
from distgnn.operators import make_grid
from distgnn.operators.split_3d import FiberMoves

from .test_products import MATRICES, WIDTH, awkward_matrices, check_product, check_words

names = pytest.mark.parametrize("name", ["2d", "3d-split"])


@pytest.mark.ranks(1, 4, 6)
@names
@pytest.mark.parametrize("block_size", [1, 5, 1000])
def test_products_and_words_of_panels(comm, name, backend, block_size):
    for sizes in some_grids(name, comm.Get_size()):
        grid = make_grid(comm, name, sizes, backend=backend)
        for matrix in ("prime", "wide") if block_size == 5 else ("wide",):
            A, label = MATRICES[matrix], f"{matrix} on {sizes}"
            operator, H, G = check_product(A, grid, name, WIDTH, label=label, block_size=block_size)
            check_words(operator, H, G, label)
            with dg.Ledger() as ledger:
                operator @ H
            plane = operator.algorithm.plane
            away = sum((p.c != plane.row.rank) + (p.r != plane.column.rank) for p in plane.panels)
            fiber = grid.shape.get("fibers", 1) - 1
            assert ledger.messages == away + fiber
            assert max(p.columns[1] - p.columns[0] for p in plane.panels) <= block_size
        grid.free()


@pytest.mark.ranks(4, 6)
@names
def test_awkward_matrices_in_panels(comm, name, backend):
    """Half of them on each number of ranks: test_products.py has all in whole blocks."""
    grid = wide_grid(comm, name, backend)
    for matrix, A in list(awkward_matrices(1).items())[comm.Get_size() // 2 % 2 :: 2]:
        check_product(A, grid, name, WIDTH, label=matrix, block_size=3)


@names
@pytest.mark.ranks(1, 4)
def test_a_panel_has_columns(comm, name):
    with pytest.raises(dg.UserError, match="block_size=0: must be positive"):
        dg.distribute(MATRICES["prime"], wide_grid(comm, name), name, block_size=0)


@names
@pytest.mark.ranks(4)
def test_two_panels_of_each_are_the_memory_of_a_product(comm, name, backend):
    """And of its adjoint a few panels of the result, and what the owner of one receives."""
    A = rmat(512, degree=40, directed=True, features=0, classes=0).A.astype(np.float64)
    grid = wide_grid(comm, name, backend)
    operator = dg.distribute(A, grid, name, block_size=16)
    plane = operator.algorithm.plane
    H = dg.scatter(np.ones((512, 8)), operator.input_layout)
    operator @ H
    headers = zip(plane.A.headers, plane.A.roots, strict=True)
    sparse = max(CSR.nbytes(*header) for header, root in headers if root != plane.row.rank)
    dense = 16 * H.block.shape[1] * 8
    whole = operator.output_layout.local_shape((512, 8))[0] * 8 * H.block.shape[1]
    room = whole * grid.shape["fibers"] if name == "3d-split" else 0
    assert grid.workspace.reserved <= 2 * (sparse + dense) + room
    assert sparse < CSR.nbytes(A.shape, A.nnz, np.int32, np.float64) / comm.Get_size() / 4
    before = grid.workspace.reserved
    operator.T @ dg.scatter(np.ones((512, 8)), operator.output_layout)
    received = plane.column.size - 1
    assert grid.workspace.reserved - before <= TUNING.sums_under_way * (1 + received) * dense + 2 * sparse


@names
@pytest.mark.ranks(4)
@pytest.mark.parametrize("under_way", [1, 3])
def test_sums_of_the_adjoint_are_under_way_in_few_buffers(comm, name, backend, under_way, monkeypatch):
    """Large enough that MPI keeps the messages where they are until they are received."""
    monkeypatch.setattr(TUNING, "sums_under_way", under_way)
    A = rmat(1200, degree=6, directed=True, features=0, classes=0).A.astype(np.float64)
    G = np.random.default_rng(2).standard_normal((1200, 96))
    grid = wide_grid(comm, name, backend)
    found = []
    for overlap in (True, False):
        grid.overlap = overlap
        operator = dg.distribute(A, grid, name, block_size=120)
        with dg.Ledger(timing=True) as ledger, grid.workspace.noted() as notes:
            AtG = operator.T @ dg.scatter(G, operator.output_layout)
        whole_rows = grid.shape.get("fibers", 1) > 1
        assert sum(note.size > 0 for note in notes) <= under_way + whole_rows
        if operator.algorithm.plane.column.size > 1:
            assert any(entry["operation"] == "reduce" for entry in ledger.entries())
        AG = operator @ dg.scatter(G, operator.input_layout)
        found.append((dg.gather(AtG), dg.gather(AG)))
    with grid.world.together():  # rank 0 compares, all ranks fail
        if grid.rank == 0:
            for with_overlap, without, expected in zip(*found, (A.T @ G, A @ G), strict=True):
                np.testing.assert_allclose(with_overlap, expected, rtol=1e-10, atol=1e-10)
                np.testing.assert_array_equal(with_overlap, without)


@pytest.mark.ranks(1, 4)
@names
def test_a_matrix_without_columns_has_a_product_of_zeros(comm, name, backend):
    grid = wide_grid(comm, name, backend)
    operator = dg.distribute(sp.csr_array((9, 0)), grid, name)
    H = dg.scatter(np.zeros((0, WIDTH)), operator.input_layout)
    T = dg.DistDense.empty(operator.output_layout, (9, WIDTH), np.float64)
    T.block[...] = np.nan
    operator.multiply(H, T)
    assert backend.to_host(T.block).size == T.block.size and not backend.to_host(T.block).any()


@pytest.mark.ranks(1, 4, 6)
def test_a_layer_of_all_ranks_writes_its_product_in_place(comm, backend, monkeypatch):
    """Rows are gathered, and sums scattered, where a fiber has several ranks alone."""
    widths, whole = [], FiberMoves._whole
    monkeypatch.setattr(FiberMoves, "_whole", lambda moves, f: widths.append(f) or whole(moves, f))
    for sizes in some_grids("3d-split", comm.Get_size()):
        grid = make_grid(comm, "3d-split", sizes, backend=backend)
        widths.clear()
        check_product(MATRICES["prime"], grid, "3d-split", WIDTH, label=str(sizes))
        assert bool(widths) == (grid.shape["fibers"] > 1)
        grid.free()

"""Planes of the 3D product: which layers share a shard of A."""

from __future__ import annotations

import gc
import os
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from awkward_shapes import awkward
from chosen_grids import some_grids
from distgnn import ledger
from distgnn.arrays.csr import CSR
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.operators import make_grid
from distgnn.operators.planes import Planes

from .counts import check_price
from .test_products import Recorder


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("double", [False, True])
def test_layers_share_shards(comm, double, backend):
    """min(3, L) shards are loaded, and of two permutations that take turns min(6, L)."""
    A = awkward()["directed"]
    source, odd = Recorder(A), Recorder(A.T.tocsr())
    grid = make_grid(comm, "3d", backend=backend)
    grid.node = grid.rank  # every rank asks for its own blocks
    operator = dg.distribute(source, grid, "3d", odd=odd if double else None)
    period = 6 if double else 3
    for number in range(2 * period):
        layer, first = (operator.layer(k).algorithm for k in (number, number % period))
        assert layer.plane is first.plane and layer.A is first.A and layer.plane.At is first.plane.At
        assert len(source.windows) + len(odd.windows) == min(number + 1, period)
    assert len({id(operator.layer(number).algorithm.A) for number in range(12)}) == period
    assert operator.layer(0) is operator and operator.layer(period + 1) is operator.layer(1)
    assert operator.layer(2).layer(1) is operator.layer(1)
    expected = (A.T if double else A).tocsr()
    (top, bottom), (left, right) = operator.layer(1).algorithm.plane.window
    block = operator.layer(1).algorithm.A.to_scipy()
    np.testing.assert_array_equal(block.toarray(), expected[top:bottom, left:right].toarray())


@pytest.mark.ranks(1, 2)
def test_planes_stay_as_they_are(comm, backend):
    operator = dg.distribute(awkward()["prime"], make_grid(comm, "3d", backend=backend), "3d")
    with pytest.raises(FrozenInstanceError):
        operator.algorithm.plane.A = None


@pytest.mark.ranks(1, 3, 4, 12)
def test_adjoints_without_room_for_transposes(comm, monkeypatch):
    """Rows of a shard are transposed while they multiply, for the price of the product with all of it."""
    monkeypatch.setattr(Grid, "share_of_memory", lambda grid: 1 << (5 if grid.rank == grid.size - 1 else 40))
    large = sp.random_array((1500, 1500), density=0.01, rng=np.random.default_rng(1), format="csr")
    empty = sp.csr_array((9, 9), dtype=np.float64)
    for sizes in some_grids("3d", comm.size):
        grid = make_grid(comm, "3d", sizes, backend="numpy")
        for A, width, pieces in ((large, 40, 3), (awkward()["directed"], 3, 8), (empty, 2, 2)):
            monkeypatch.setattr(TUNING, "transposed_pieces", pieces)
            operator, Y = dg.distribute(A, grid, "3d"), np.random.default_rng(2).random((A.shape[0], width))
            for layer in map(operator.layer, range(4)):
                G = dg.scatter(Y, layer.output_layout)
                for _ in range(2):
                    found = dg.gather(layer.T @ G)
                    with grid.world.together():
                        if grid.rank == 0:
                            np.testing.assert_allclose(found, A.T @ Y, rtol=1e-12, atol=1e-12)
                check_price(lambda G=G, A=layer: A.T @ G, layer.prices.adjoint(width), str(sizes))
                assert "At" not in layer.algorithm.plane.__dict__
        grid.free()


@pytest.mark.ranks(4)
def test_transposes_are_kept_where_there_is_room(comm, backend):
    A = awkward()["directed"]
    operator = dg.distribute(A, make_grid(comm, "3d", backend=backend), "3d")
    _ = operator.T @ dg.scatter(np.ones((A.shape[0], 2)), operator.output_layout)
    assert "At" in operator.algorithm.plane.__dict__


def held_by_ranks(comm) -> int:
    """Return the bytes of A of all ranks, by the ledger."""
    gc.collect()
    return comm.allreduce(ledger.books().held["adjacency"])


@pytest.mark.ranks(4, 8, 12)
def test_shards_of_a_symmetric_matrix_are_transposes_of_each_other(comm):
    """On one node no rank holds more after a backward pass, where shards of two axes fit each other."""
    B = awkward()["directed"]
    A, width = (B + B.T).tocsr(), 5
    Y = np.random.default_rng(2).random((A.shape[0], width))
    for sizes in some_grids("3d", comm.size):
        found = {}
        for nodes in (1, 2, comm.size):
            grid = make_grid(comm, "3d", sizes, backend="numpy")
            grid.node = grid.rank % nodes
            grid.shares_memory = nodes < comm.size
            operator = dg.distribute(A, grid, "3d")
            layers = [operator.layer(number) for number in range(3)]
            loaded = held_by_ranks(comm)
            for number, layer in enumerate(layers):
                G = dg.scatter(Y, layer.output_layout)
                for _ in range(2):
                    product = dg.gather(layer.T @ G)
                found.setdefault(number, []).append(product)
                check_price(lambda G=G, A=layer: A.T @ G, layer.prices.adjoint(width), str(sizes))
            cut = sorted(size for size in sizes.values() if size > 1)
            if nodes == 1 and cut in ([2, 2], [2, 2, 2]):
                mirrors = (layer.algorithm.plane.mirror for layer in layers)
                rows = {id(At): At.indptr.nbytes for At in mirrors if At.buffer is None}  # views of rows
                assert held_by_ranks(comm) <= loaded + comm.allreduce(sum(rows.values()))
                assert all("At" not in layer.algorithm.plane.__dict__ for layer in layers)
            with grid.world.together():
                for products in found.values() if comm.rank == 0 else ():
                    np.testing.assert_allclose(products[0], A.T @ Y, rtol=1e-12, atol=1e-12)
                    assert np.array_equal(products[0], products[-1])
            grid.free()


#: Of grids whose ranks are on one node, by layer the one of whose shards this layer's are rows.
ROWS_OF = {
    (2, 2, 1): {2: 0}, (1, 2, 2): {1: 2}, (2, 1, 2): {0: 1}, (4, 1, 1): {2: 1}, (1, 4, 1): {1: 0},
    (1, 1, 4): {0: 2}, (2, 2, 2): {1: 0, 2: 0}, (3, 2, 2): {},
}  # fmt: skip


@pytest.mark.ranks(4, 8, 12)
def test_shards_that_are_rows_of_others_are_held_once(comm):
    """Products of every layer are those of the matrix; what is held is a copy of A less for each layer."""
    B, width = awkward()["directed"], 5
    rng = np.random.default_rng(2)
    given = [(sizes, rows_of) for sizes, rows_of in ROWS_OF.items() if np.prod(sizes) == comm.size]
    for A in (B, (B + B.T).tocsr()):
        X = rng.random((A.shape[0], width))
        for sizes, rows_of in given:
            grid = make_grid(comm, "3d", dict(zip("xyz", sizes, strict=True)), backend="numpy")
            before = held_by_ranks(comm)
            operator = dg.distribute(A, grid, "3d")
            layers = [operator.layer(number) for number in range(5)]
            planes = operator.algorithm.planes
            assert planes.outer == rows_of and len(planes.held) == 3
            assert {key for key, plane in planes.held.items() if not plane.whole} == set(rows_of)
            rows = sum(plane.A.indptr.nbytes for plane in planes.held.values() if plane.A.buffer is None)
            once = CSR.nbytes(A.shape, A.nnz, np.int32, A.dtype)
            most = (3 - len(rows_of)) * (once + 4 * comm.size * A.shape[0]) + comm.allreduce(rows)
            assert held_by_ranks(comm) - before <= most
            for layer in layers:
                assert layer.algorithm.plane.A.first_entry == 0
                for product, by, expected in ((layer, layer.input_layout, A @ X),
                                              (layer.T, layer.output_layout, A.T @ X)):  # fmt: skip
                    found = [dg.gather(product @ dg.scatter(X, by)) for _ in range(2)][1]
                    with grid.world.together():
                        if grid.rank == 0:
                            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
            grid.free()


@pytest.mark.ranks(4)
def test_a_rank_that_is_lent_no_rows_has_all_load_their_own(comm, monkeypatch):
    lent = Planes.lent
    monkeypatch.setattr(Planes, "lent", lambda *of: (lent(*of), None)[comm.Get_rank() == 2])
    A, X = awkward()["directed"], np.random.default_rng(2).random((awkward()["directed"].shape[0], 3))
    grid = make_grid(comm, "3d", {"x": 1, "y": 2, "z": 2}, backend="numpy")
    layer = dg.distribute(A, grid, "3d").layer(1)
    assert layer.algorithm.plane.whole
    found = dg.gather(layer @ dg.scatter(X, layer.input_layout))
    assert found is None or np.allclose(found, A @ X, rtol=1e-12)
    grid.free()


@pytest.mark.ranks(4)
def test_shards_that_are_lent_leave_no_file_open(comm):
    descriptors = lambda: len(os.listdir("/proc/self/fd"))  # noqa: E731
    gc.collect()
    before = descriptors()
    A = awkward()["symmetric"]
    grid = make_grid(comm, "3d", {"x": 2, "y": 2, "z": 1}, backend="numpy")
    operator = dg.distribute(A, grid, "3d")
    layers = [operator.layer(number) for number in range(3)]
    for layer in layers:
        _ = layer.T @ dg.scatter(np.ones((A.shape[0], 2)), layer.output_layout)
    assert comm.allreduce(descriptors() - before) > 0
    del operator, layers, layer
    gc.collect()
    assert descriptors() == before
    grid.free()

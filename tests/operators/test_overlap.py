"""Products whose panels travel while others are multiplied: the same bits, the same words."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import count

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import some_grids
from distgnn import local, progress
from distgnn.arrays.tuning import TUNING
from distgnn.errors import PeerError
from distgnn.gallery import rmat
from distgnn.local import additive, aggregate, edges
from distgnn.operators import ALGORITHMS, grids, make_grid
from mpi_helpers import gpu


@pytest.mark.ranks(3, 8)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("width", "panel_nonzeros"), [(1, 1), (37, 16), (37, 0.5)])
def test_overlap_changes_neither_a_bit_nor_a_word(comm, name, backend, width, panel_nonzeros, monkeypatch):
    """With row blocks of a few non-zeros, segments of a few numbers and several panels per rank, so that
    everything is cut.
    """
    monkeypatch.setattr(TUNING, "panel_nonzeros", panel_nonzeros)
    monkeypatch.setattr(TUNING, "joined_panels", 0)
    monkeypatch.setattr(TUNING, "joined_panels_on_device", 0)
    monkeypatch.setattr(TUNING, "relay_segment", 1024)
    monkeypatch.setattr(TUNING, "small_sum", 0)
    monkeypatch.setattr(TUNING, "smallest_sum_block", 256)
    monkeypatch.setattr(TUNING, "flops_between_polls", 512 * width)
    monkeypatch.setattr(TUNING, "part_columns", 1)
    monkeypatch.setattr(TUNING, "column_parts", 3)
    A = rmat(211, degree=9, directed=True, features=0, classes=0).A.astype(np.float32)
    A.data[:] = np.random.default_rng(0).standard_normal(A.nnz)
    X = np.random.default_rng(1).standard_normal((A.shape[0], width)).astype(np.float32)
    possible = grids(name, comm.Get_size())
    for sizes in possible[:: max(1, len(possible) - 1)][: 2 if comm.Get_size() <= 4 else 1]:
        grid = make_grid(comm, name, sizes, backend=backend)
        operator = dg.distribute(A, grid, name)
        H, G = dg.scatter(X, operator.input_layout), dg.scatter(X, operator.output_layout)
        found = []
        for overlap in (True, False):
            grid.overlap = overlap
            with dg.Ledger() as ledger:
                blocks = [(operator @ H).block, (operator.T @ G).block]
            found.append(([backend.to_host(block).copy() for block in blocks], ledger.words, ledger.messages))
        assert found[0][1:] == found[1][1:]
        if name == "1d" and comm.Get_size() in (2, 3):
            assert (operator.algorithm.A.panels.number > 1) == (panel_nonzeros < 16)
        Y = dg.gather(operator @ H)
        if grid.rank == 0:
            np.testing.assert_allclose(Y, A @ X, rtol=1e-4, atol=1e-4)
        for with_overlap, without in zip(found[0][0], found[1][0], strict=True):
            np.testing.assert_array_equal(with_overlap, without)
        grid.free()


@pytest.mark.ranks(3, 4, 8)
@pytest.mark.parametrize("name", ["1d", "1.5d", "rdm"])
def test_large_blocks_travel_in_halves_which_take_the_room_of_one(comm, name, backend, monkeypatch):
    """Above the eager limit, several products in a row, with overlap and without: same bits, same words."""
    matrix = rmat(1200, degree=5, directed=True, features=0, classes=0).A.astype(np.float32)
    X = np.random.default_rng(1).standard_normal((matrix.shape[0], 48)).astype(np.float32)
    sizes = grids(name, comm.Get_size())[-1 if name == "rdm" else 0]
    words, found = [], []
    for halved, overlap in ((1 << 30, True), (1, True), (1, False)):
        monkeypatch.setattr(TUNING, "halved_block", halved)
        grid = make_grid(comm, name, sizes, backend=backend)
        grid.overlap = overlap
        A = dg.distribute(matrix, grid, name)
        H, G = dg.scatter(X, A.input_layout), dg.scatter(X, A.output_layout)
        A.T @ G
        with dg.Ledger() as ledger:
            blocks = [Z.block for _ in range(3) for Z in (A @ H, A.T @ G)]
        words.append(ledger.words)
        for Z, expected in ((A @ H, matrix @ X), (A.T @ G, matrix.T @ X)):
            whole = dg.gather(Z)
            if grid.rank == 0:
                np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-4)
        if halved == 1:
            found.append([backend.to_host(block).copy() for block in blocks])
            rows = np.diff(A.algorithm.columns).max() if A.algorithm.column.size > 1 else 0
            room = grid.workspace.borrowed
            assert room or A.algorithm.column.size == 1
            assert room <= (rows + 2) * 48 * 4 * (1.0 if A.algorithm.A.panels.last == 0 else 4 / 3)
        grid.free()
    assert words[0] == words[1] == words[2]
    for first, again in zip(found[0], found[1], strict=True):
        np.testing.assert_array_equal(first, again)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("reps", [2, 4])
def test_the_last_product_of_15d_is_as_long_as_its_sum_needs(comm, reps):
    """Panels and the sum have products beside them in proportion to their words, either way."""
    rows = comm.Get_size() // reps
    grid, stages, summed = make_grid(comm, "1.5d", {"reps": reps}), -(-rows // reps), 2 * (reps - 1) / reps
    dense = np.random.default_rng(0).standard_normal((800, 800))
    A = dg.distribute(dense, grid, "1.5d")
    X = np.random.default_rng(1).standard_normal((800, 8))
    Y = [dg.gather(Z) for Z in (A @ dg.scatter(X, A.input_layout), A.T @ dg.scatter(X, A.output_layout))]
    for operand in (A.algorithm.A, A.algorithm.At):
        if A.algorithm.stages and rows > 1:
            nonzeros = [block.nnz for block in operand.blocks]
            assert len(nonzeros) == 4 * stages
            assert abs(nonzeros[-1] / sum(nonzeros) - summed / (stages + summed)) < 0.01
            assert max(nonzeros[-4:-1]) < nonzeros[-1] / 1.9
    if grid.rank == 0:
        for Z, same in zip(Y, (dense @ X, dense.T @ X), strict=True):
            np.testing.assert_allclose(Z, same, rtol=1e-12, atol=1e-12)
    grid.free()


@pytest.mark.ranks(3, 6)
def test_products_with_weights_in_a_row_change_no_bit_with_overlap(comm):
    """On three process columns a panel is handed on from a buffer, which the next product receives into.

    The panels are larger than what MPI sends eagerly (8 KiB in MPICH's shared memory).
    """
    grid = make_grid(comm, "2d", {"rows": comm.Get_size() // 3, "cols": 3})
    A = dg.distribute(sp.eye_array(3000, format="csr", dtype=np.float32), grid, "2d")
    rng = np.random.default_rng(0)
    T = dg.scatter(rng.standard_normal((3000, 24), np.float32), A.weights.input_layout)
    G = dg.scatter(rng.standard_normal((3000, 24), np.float32), A.weights.output_layout)
    W = dg.scatter(rng.standard_normal((24, 24), np.float32), A.weights.weight_layout)

    def products():
        Z = A.weights.times(T, W)
        dW, dT = A.weights.backward(T, G, W)
        return [X.block.copy() for X in (Z, dW, dT)]

    grid.overlap = False
    expected = products()
    grid.overlap = True
    repeated = [products() for _ in range(20)]
    for found in repeated:
        for block, same in zip(found, expected, strict=True):
            np.testing.assert_array_equal(block, same)
    grid.free()


@pytest.mark.ranks(4)
def test_a_small_sum_does_not_hold_up_large_panels(comm, backend, monkeypatch):
    """A rank that is through sums its few rows while others still wait for what it has to send."""
    monkeypatch.setattr(TUNING, "relay_segment", 256)
    monkeypatch.setattr(TUNING, "largest_segment", 256)
    A = sp.random_array((8, 4000), density=0.05, format="csr", rng=np.random.default_rng(0))
    grid = make_grid(comm, "1.5d", {"rows": 2, "reps": 2}, backend=backend)
    operator = dg.distribute(A, grid, "1.5d")
    X = np.random.default_rng(1).standard_normal((4000, 16))
    Y = dg.gather(operator @ dg.scatter(X, operator.input_layout))
    with grid.world.together():
        if comm.Get_rank() == 0:
            np.testing.assert_allclose(Y, A @ X, rtol=1e-12, atol=1e-12)
    grid.free()


@pytest.mark.ranks(4)
@pytest.mark.abandons
def test_a_grid_multiplies_again_after_an_error(comm, backend, monkeypatch):
    """All ranks fail in the first product, some of them before others have what they wait for."""
    monkeypatch.setattr(TUNING, "relay_segment", 256)
    monkeypatch.setattr(TUNING, "largest_segment", 256)
    A = sp.random_array((1000, 1000), density=0.004, format="csr", rng=np.random.default_rng(0))
    grid = make_grid(comm, "2d", backend=backend)
    operator = dg.distribute(A, grid, "2d")
    H = dg.scatter(np.ones((1000, 16)), operator.input_layout)
    expected = (operator @ H).block.copy()
    comm.Barrier()  # else a rank may hear of the error in the product before it

    def fail(*args, **options):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(local, "spmm", fail)
        with pytest.raises((ZeroDivisionError, PeerError)):  # a rank may hear of another first
            operator @ H
    comm.Barrier()
    assert not progress.pending()
    if backend.on_device:
        gpu.forget_messages()
    np.testing.assert_array_equal(backend.to_host((operator @ H).block), backend.to_host(expected))
    grid.free()


KERNELS = {
    local: ("spmm",),
    edges: ("multiply", "dots", "softmax", "end_sums"),
    additive: ("scores", "slope_sums"),
    aggregate: ("best", "best_back"),
}


@contextmanager
def failing(monkeypatch, call):
    """Let the kernels fail at this call, counted from 0, on this rank."""
    calls = count()

    def fails(kernel, *args, **options):
        if next(calls) == call:
            raise ZeroDivisionError
        return kernel(*args, **options)

    with monkeypatch.context() as patched:
        for module, names in KERNELS.items():
            for name in names:
                patched.setattr(module, name, partial(fails, getattr(module, name)))
        yield calls


@pytest.mark.ranks(4, 6)
@pytest.mark.abandons
@pytest.mark.parametrize("name", ALGORITHMS)
def test_products_after_errors_at_different_calls_are_right(comm, name, monkeypatch):
    """Ranks that fail at different calls differ in the messages, tags and sums that they have begun."""
    monkeypatch.setattr(TUNING, "relay_segment", 1024)
    monkeypatch.setattr(TUNING, "small_sum", 0)
    monkeypatch.setattr(TUNING, "smallest_sum_block", 2048)
    A = rmat(400, degree=9, directed=True, features=0, classes=0).A.astype(np.float64)
    X = np.random.default_rng(1).standard_normal((400, 16))
    possible = grids(name, comm.Get_size())
    grid = make_grid(comm, name, possible[len(possible) // 2])
    operator = dg.distribute(A, grid, name)
    H, G = dg.scatter(X, operator.input_layout), dg.scatter(X, operator.output_layout)
    products = (lambda: (operator @ H).block), (lambda: (operator.T @ G).block)
    expected, calls = [], []
    for product in products:
        product()
        with failing(monkeypatch, -1) as counted:
            expected.append(product().copy())
        calls.append(next(counted))
    for attempt, product in enumerate(products * 3):
        call = min((grid.rank + attempt) % 3, calls[attempt % 2] - 1)
        with failing(monkeypatch, call), pytest.raises((ZeroDivisionError, PeerError)):
            product() if call >= 0 else 1 / 0
        if call < 0:  # a rank that has nothing to multiply
            grid.links.fail()
        for again, block in zip(products, expected, strict=True):
            np.testing.assert_array_equal(again(), block)
    grid.free()


def operations(A, X, u):
    """Return operations of A: each returns this rank's numbers."""
    H, G = dg.scatter(X, A.input_layout), dg.scatter(X, A.output_layout)
    left, right = dg.scatter(u, A.output_layout), dg.scatter(u, A.input_layout)
    P, a, D = A.edge_softmax(left, right), np.ones(X.shape[1]), A.sddmm(G, H, u.shape[1])
    scores = A.additive_scores(G, H, a, u.shape[1])
    picked = A.aggregate(H, "max", keep=True)[1]
    return (
        lambda: (A @ H).block, lambda: A.multiply(H, values=P).block,
        lambda: A.multiply_adjoint(G, values=P).block, lambda: A.sddmm(G, H, u.shape[1]).data,
        lambda: A.edge_softmax(left, right).data, lambda: scores.back(D)[1].block,
        lambda: A.aggregate(H, "max").block, lambda: A.aggregate_back(G, picked).block,
    )  # fmt: skip


@pytest.mark.ranks(3, 4)
@pytest.mark.abandons
@pytest.mark.parametrize("small_sum", [0, 1 << 20])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_operations_after_an_error_of_one_rank_alone_are_right(comm, name, small_sum, monkeypatch):
    """Others wait in a sum that the rank has not begun; nothing of that may meet the next operation.

    Every second operation fails where sums are made in pieces, the others where they are made at once.
    """
    monkeypatch.setattr(TUNING, "small_sum", small_sum)
    monkeypatch.setattr(TUNING, "smallest_sum_block", 2048)
    M = rmat(300, degree=9, directed=True, features=0, classes=0).A.astype(np.float64)
    r = np.random.default_rng(1)
    X, u = r.standard_normal((300, 16)), r.standard_normal((300, 4))
    for sizes in some_grids(name, comm.Get_size()):
        grid = make_grid(comm, name, sizes)
        todo = operations(dg.distribute(M, grid, name), X, u)
        expected = [operation().copy() for operation in todo]
        for number, operation in [*enumerate(todo)][small_sum > 0 :: 2]:
            failed = number % grid.size
            try:
                with failing(monkeypatch, 0 if grid.rank == failed else -1):
                    operation()
            except (ZeroDivisionError, PeerError) as error:
                assert isinstance(error, ZeroDivisionError) == (grid.rank == failed)
            grid.links.fail()  # also on ranks that waited for nothing
            for again in number, (number + 1) % len(todo):
                np.testing.assert_array_equal(todo[again](), expected[again])
            grid.world.gather_objects(number)  # products on some grids have no message, and renew nothing
        grid.free()


@pytest.mark.ranks(3)
@pytest.mark.abandons
@pytest.mark.parametrize(("name", "sizes"), [("1d", {}), ("3d", {"x": 3, "y": 1, "z": 1})])
def test_ranks_that_wait_for_one_that_failed_raise(comm, name, sizes, monkeypatch):
    """For its panels, or in a sum that is made at once, of which it had no message under way."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    monkeypatch.setattr(TUNING, "small_sum", 1 << 20)
    A = rmat(3000, degree=9, directed=True, features=0, classes=0).A.astype(np.float64)
    grid = make_grid(comm, name, sizes)
    operator = dg.distribute(A, grid, name)
    H = dg.scatter(np.random.default_rng(1).standard_normal((3000, 16)), operator.input_layout)
    expected = (operator @ H).block.copy()
    for failed in range(grid.size):
        if grid.rank == failed:
            with failing(monkeypatch, 0), pytest.raises(ZeroDivisionError):
                operator @ H
        else:
            with pytest.raises(PeerError, match=f"rank {failed} on host .* failed in an operation"):
                for _ in range(2):  # the first may end well: messages that were there are handed on
                    operator @ H
        np.testing.assert_array_equal((operator @ H).block, expected)
    grid.free()

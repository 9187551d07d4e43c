"""Products that send only the rows needed: the oracle, exactly Σ NnzCols·f words, the same bits however they
travel.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from awkward_shapes import awkward
from chosen_grids import some_grids, wide_grid
from distgnn import local, operators
from distgnn.arrays.tuning import TUNING
from distgnn.comm import fetch_costs, pieces
from distgnn.comm.fetch_costs import FetchCosts
from distgnn.comm.group import Comm
from distgnn.gallery import rmat
from distgnn.layout import partition
from distgnn.operators import SPARSITY_AWARE, grids, make_grid
from distgnn.operators.needed_rows import in_groups

from .counts import check_price, column_shares, crossing, rows_fetched, rows_returned, shares_of
from .test_products import Recorder, awkward_matrices, check_product, right_sides, uneven

MATRICES = awkward()
WIDTH = 5
ALWAYS_WHOLE = FetchCosts(sent=0.0, packed=1.0, call=1.0)
NEVER_WHOLE = FetchCosts(sent=1.0, packed=0.0, call=0.0)
names = pytest.mark.parametrize("name", SPARSITY_AWARE)


@pytest.mark.ranks(1, 3, 4)
@names
@pytest.mark.slow
def test_awkward_matrices(comm, name, backend):
    grid = wide_grid(comm, name, backend)
    for matrix, A in awkward_matrices(comm.Get_size()).items():
        check_product(A, grid, name, WIDTH, label=matrix, sparsity_aware=True)
    grid.free()


@pytest.mark.ranks(1, 3, 4)
@names
@pytest.mark.slow
def test_awkward_matrices_with_whole_blocks_among_them(comm, name, backend):
    grid = wide_grid(comm, name, backend)
    for matrix, A in awkward_matrices(comm.Get_size()).items():
        check_product(A, grid, name, WIDTH, label=matrix, sparsity_aware="auto")
    grid.free()


@pytest.mark.ranks(9)
def test_empty_blocks_of_different_stages_are_not_taken_for_one(comm):
    """Three process columns, of which two have no columns of A: those of one node share memory."""
    grid, parts = make_grid(comm, "1.5d", {"rows": 3, "reps": 3}), [0, 0, 0, 31]
    A, X = awkward()["prime"], np.random.default_rng(0).standard_normal((31, 5))
    for aware in (True, "auto", "cover"):
        operator = dg.distribute(A, grid, "1.5d", aware, row_parts=parts, col_parts=parts)
        for made, expected in ((operator @ dg.scatter(X, operator.input_layout), A @ X),
                               (operator.T @ dg.scatter(X, operator.output_layout), A.T @ X)):  # fmt: skip
            np.testing.assert_allclose(comm.bcast(dg.gather(made)), expected)


@pytest.mark.ranks(1, 4)
@names
def test_widths_and_types(comm, name, backend):
    grid = wide_grid(comm, name, backend)
    for f in (0, 1, 2, 64):
        check_product(MATRICES["prime"], grid, name, f, label=f"width {f}", sparsity_aware=True)
    check_product(MATRICES["larger_prime"], grid, name, WIDTH, np.float32, sparsity_aware=True)
    grid.free()


@pytest.mark.ranks(1, 3, 4, 6)
@names
@pytest.mark.parametrize("cut", [partition, uneven])
def test_ledger_equals_the_price_on_every_grid(comm, name, backend, cut):
    """To the word, forward and adjoint, with even blocks and with large, small and empty ones; and equal to
    SciPy's product.
    """
    for number, sizes in enumerate(some_grids(name, comm.Get_size())):
        grid = make_grid(comm, name, sizes, backend=backend)
        for matrix in ("prime", "wide") if comm.Get_size() < 4 else ("prime", "wide")[number % 2 :: 2]:
            A, label = MATRICES[matrix], f"{matrix} on {sizes}"
            parts = {"row_parts": cut(A.shape[0], sizes["rows"]), "col_parts": cut(A.shape[1], sizes["rows"])}
            operator, H, G = check_product(A, grid, name, WIDTH, label=label, sparsity_aware=True, **parts)
            forward = check_price(lambda: operator @ H, operator.prices.product(WIDTH), label)  # noqa: B023
            adjoint = check_price(lambda: operator.T @ G, operator.prices.adjoint(WIDTH), label)  # noqa: B023
            rows = operator.algorithm.A.rows
            check_needed(operator, A, label)
            sent = sum(rows.sizes.values())
            width = own_columns(grid)
            assert alltoallv(forward) == (rows.received * width, len(rows.needed) * (width > 0))
            assert alltoallv(adjoint) == (sent * width, len(rows.asked) * (width > 0))  # it comes back
            assert sum(grid.world.gather_objects(sent)) == sum(grid.world.gather_objects(rows.received))
        grid.free()


def check_needed(operator, A, label):
    """Check that as many rows travel as blocks have columns with a non-zero, or of one process row cross."""
    cut = operator.algorithm
    i, tops, lefts = cut.column.rank, cut.row_parts, shares_of(operator)
    if found := getattr(cut, "crossing", None):
        j = cut.row.rank
        counts = found.of_columns[j], sum(found.of_columns), found.of_rows[j], sum(found.of_rows)
        assert counts == crossing(A, cut.row.size, j), label
        return
    assert sum(cut.A.rows.counts()) == rows_fetched(A, tops, lefts, i, range(len(lefts) - 1)), label
    assert sum(cut.A.rows.counts(back=True)) == rows_returned(A, tops, lefts, i), label


def own_columns(grid):
    """Count those of WIDTH columns that this rank multiplies."""
    cols = grid.shape.get("cols", 1)
    return np.diff(partition(WIDTH, cols)).tolist()[grid.coords.get("cols", 0)]


def alltoallv(ledger):
    """Count words and messages of the exchange of rows."""
    exchanges = [entry for entry in ledger.entries() if entry["operation"] == "alltoallv"]
    of_rows = [entry for entry in exchanges if entry["group"] == "rows"]
    return sum(entry["words"] for entry in of_rows), sum(entry["messages"] for entry in of_rows)


def layouts(operator):
    return operator.input_layout, operator.output_layout


@pytest.mark.ranks(4)
@names
@pytest.mark.parametrize(("width", "group_nonzeros"), [(1, 0.01), (37, 16), (37, 0.5)])
def test_neither_overlap_nor_whole_blocks_change_a_bit(
    comm, name, backend, width, group_nonzeros, monkeypatch
):
    """With row blocks of a few non-zeros, messages in pieces, and what comes multiplied in one group and in
    several.
    """
    monkeypatch.setattr(TUNING, "group_nonzeros", group_nonzeros)
    monkeypatch.setattr(TUNING, "flops_between_polls", 512 * width)
    monkeypatch.setattr(Comm, "count_limit", 1000)
    A = rmat(211, degree=9, directed=True, features=0, classes=0).A.astype(np.float32)
    A.data[:] = np.random.default_rng(0).standard_normal(A.nnz)
    X = np.random.default_rng(1).standard_normal((A.shape[0], width)).astype(np.float32)
    possible = grids(name, comm.Get_size())
    for sizes in possible[:: max(1, len(possible) - 1)]:
        grid = make_grid(comm, name, sizes, backend=backend)
        found = []
        for costs in (NEVER_WHOLE, ALWAYS_WHOLE):
            monkeypatch.setattr(fetch_costs, "measure", lambda grid, comm, costs=costs: costs)
            operator = dg.distribute(A, grid, name, sparsity_aware="auto")
            H, G = (dg.scatter(X, layout) for layout in layouts(operator))
            for overlap in (True, False):
                grid.overlap = overlap
                found += [[backend.to_host(M.block).copy() for M in (operator @ H, operator.T @ G)]]
        for blocks in found[1:]:
            np.testing.assert_array_equal(blocks[0], found[0][0])
            np.testing.assert_array_equal(blocks[1], found[0][1])
        if name == "1d" and comm.Get_size() > 3:
            assert (len(operator.algorithm.A.groups) > 1) == (group_nonzeros < 16)
        grid.free()


@pytest.mark.ranks(3, 4)
@names
def test_auto_charges_what_it_receives(comm, name, backend, monkeypatch):
    """Some blocks whole, others not: those of which more than half of the rows are needed."""
    half = FetchCosts(sent=1.0, packed=1.0, call=0.0)
    monkeypatch.setattr(fetch_costs, "measure", lambda grid, comm: half)
    A = MATRICES["larger_prime"]
    grid = wide_grid(comm, name, backend)
    operator = dg.distribute(A, grid, name, sparsity_aware="auto")
    parts = partition(A.shape[0], grid.shape["rows"])
    i, expected, c = grid.coords["rows"], 0, grid.shape.get("reps", 1)
    share = column_shares(A.shape[1], len(parts) - 1, c)[grid.coords.get("reps", 0)]
    for j in range(len(parts) - 1):
        rows = np.unique(A[parts[i] : parts[i + 1], share[j] : share[j + 1]].indices)
        height = share[j + 1] - share[j]
        scattered = rows.size and rows[-1] - rows[0] + 1 != rows.size
        expected += 0 if i == j else height if scattered and 2 * rows.size > height else rows.size
    assert operator.algorithm.A.rows.received == expected
    H = dg.scatter(right_sides(A, WIDTH)[0], operator.input_layout)
    check_price(lambda: operator @ H, operator.prices.product(WIDTH))
    grid.free()


@pytest.mark.ranks(1, 4)
def test_measured_costs_are_the_same_on_all_ranks(comm, backend):
    grid = make_grid(comm, "1d", backend=backend)
    costs = fetch_costs.measure(grid, grid.along("rows"))
    assert len(set(comm.allgather(costs))) == 1
    assert costs.sent >= 0 and costs.packed >= 0 and costs.call > 0
    grid.free()


def test_whole_blocks_are_sent_where_packing_costs_more():
    rows, run = np.arange(0, 100, 2), np.arange(20, 70)
    assert FetchCosts(1.0, 0.9, 0.0).choose(rows, 100) is rows
    assert FetchCosts(1.0, 1.1, 0.0).choose(rows, 100).tolist() == list(range(100))
    assert FetchCosts(1.0, 0.0, 51 * TUNING.fetched_row_bytes).choose(rows, 100).size == 100
    assert ALWAYS_WHOLE.choose(run, 100) is run  # what is not packed costs nothing to pack
    assert ALWAYS_WHOLE.choose(rows[:0], 100).size == 0


@pytest.mark.ranks(3)
@names
def test_rows_that_follow_each_other_are_not_packed(comm, name, backend):
    n = 60
    band = sp.diags_array([np.ones(n - 2), np.ones(n), np.ones(n - 2)], offsets=[-2, 0, 2], format="csr")
    grid = wide_grid(comm, name, backend)
    operator = dg.distribute(band, grid, name, sparsity_aware=True)
    assert all(isinstance(rows, slice) for rows in operator.algorithm.A.rows.asked.values())
    assert operator.T is operator
    check_product(band, grid, name, WIDTH, sparsity_aware=True)
    grid.free()


@pytest.mark.ranks(1, 4)
@names
def test_memory_is_used_again(comm, name, backend):
    A = MATRICES["larger_prime"]
    grid = wide_grid(comm, name, backend)
    operator = dg.distribute(A, grid, name, sparsity_aware=True)
    H, G = (dg.scatter(*pair) for pair in zip(right_sides(A, WIDTH), layouts(operator), strict=True))
    out, back = operator @ H, operator.T @ G
    reserved, kept = grid.workspace.reserved, [id(buffer) for buffer in grid.workspace._buffers]
    for _ in range(3):
        operator.multiply(H, out)
        operator.multiply_adjoint(G, back)
    assert grid.workspace.reserved == reserved
    assert [id(buffer) for buffer in grid.workspace._buffers] == kept and (kept or grid.size == 1)
    grid.free()


@pytest.mark.ranks(1, 4)
@names
def test_flops_are_shared(comm, name, backend):
    A = MATRICES["prime"]
    grid = wide_grid(comm, name, backend)
    operator = dg.distribute(A, grid, name, sparsity_aware=True)
    H = dg.scatter(right_sides(A, WIDTH)[0], operator.input_layout)
    with dg.Ledger() as ledger:
        operator @ H
    assert sum(grid.world.gather_objects(ledger.flops)) == 2 * A.nnz * WIDTH
    grid.free()


@pytest.mark.ranks(1, 4)
@names
def test_a_rank_asks_for_the_blocks_of_its_stages_only(comm, name, backend):
    """And the adjoint of a directed graph asks for nothing more."""
    grid = wide_grid(comm, name, backend)
    source = Recorder(MATRICES["directed"])
    operator = dg.distribute(source, grid, name, sparsity_aware=True)
    assert operator.algorithm.sparsity_aware is True
    operator.T @ dg.scatter(right_sides(MATRICES["directed"], 1)[1], operator.output_layout)
    assert len(source.windows) == len(operator.algorithm.stages)
    grid.free()


@pytest.mark.ranks(4)
@names
def test_what_fails_on_one_rank_fails_on_all(comm, name, backend):
    class Broken(Recorder):
        def block(self, rows, cols):
            if comm.Get_rank() == 1:
                raise dg.UserError("shard 7: damaged")
            return super().block(rows, cols)

    grid = wide_grid(comm, name, backend)
    with pytest.raises(dg.UserError, match="shard 7: damaged"):
        dg.distribute(Broken(MATRICES["directed"]), grid, name, sparsity_aware=True)
    grid.free()


@pytest.mark.ranks(3)
@names
def test_without_compiled_kernels(comm, name, monkeypatch):
    kernel = importlib.import_module("distgnn.local.spmm")._spmm_kernel
    monkeypatch.setattr(local.host, "module", lambda: None)
    kernel.cache_clear()
    grid = wide_grid(comm, name, "numpy")
    check_product(MATRICES["prime"], grid, name, WIDTH, sparsity_aware=True)
    kernel.cache_clear()
    grid.free()


def test_only_block_rows_can_send_rows():
    with pytest.raises(
        dg.UserError,
        match="sparsity_aware=True: algorithm 2d sends whole blocks; only 1d, 1.5d and rdm can send rows",
    ):
        operators.get("2d", True)
    with pytest.raises(dg.UserError, match="no such algorithm"):
        operators.get("4d", True)
    with pytest.raises(dg.UserError, match="sparsity_aware=always: expected True, False, auto or cover"):
        operators.get("1d", "always")
    assert operators.get("2d") is operators.ALGORITHMS["2d"]


def test_groups_follow_the_order_and_are_about_equally_large():
    def groups(columns, nonzeros):
        return in_groups(dict(enumerate(columns)), nonzeros)

    assert groups([], 100) == []
    assert groups([5, 5, 5], 1) == [[0, 1, 2]]
    assert groups([5, 5, 5, 5], 2 * TUNING.group_nonzeros) == [[0, 1], [2, 3]]
    assert groups([90, 5, 5], 2 * TUNING.group_nonzeros) == [[0], [1, 2]]
    assert groups([1] * 12, 1e9) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


@pytest.mark.ranks(3, 4)
@names
@pytest.mark.parametrize("aware", [True, "cover", False])
def test_what_is_packed_takes_the_room_of_a_few_pieces(comm, name, aware, monkeypatch):
    """Rows and columns of 80 kB and more from each rank, pieces above the eager limit, several in a row."""
    monkeypatch.setattr(TUNING, "packed_numbers", 3000)
    packed = list[int]()

    def rooms(borrow, *moved):
        def noted(shape, dtype):
            room = borrow(shape, dtype)
            packed.append(room.nbytes)
            return room

        return pieces.rooms(noted, *moved)

    for module in ("comm.rows", "operators.by_columns"):
        monkeypatch.setattr(f"distgnn.{module}.rooms", rooms)
    matrix = rmat(2400, degree=12, directed=True, features=0, classes=0).A.astype(np.float32)
    X = np.random.default_rng(1).standard_normal((matrix.shape[0], 96)).astype(np.float32)
    grid = make_grid(comm, name, grids(name, comm.Get_size())[-1 if name == "rdm" else 0])
    A, found = dg.distribute(matrix, grid, name, sparsity_aware=aware), []
    for grid.overlap in (True, False):
        H, G = dg.scatter(X, A.input_layout), dg.scatter(X, A.output_layout)
        found.append([Z.block.copy() for _ in range(2) for Z in (A @ H, A.T @ G)])
        products = (A @ H, matrix @ X), (A.T @ G, matrix.T @ X)
        for Y, expected in ((dg.gather(Z), expected) for Z, expected in products):
            if grid.rank == 0:
                np.testing.assert_allclose(Y, expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    few = TUNING.packed_at_a_time * 3000 * 4
    assert packed or not aware
    assert max(packed, default=0) <= few
    grid.free()

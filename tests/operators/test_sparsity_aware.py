"""Products that send only the rows needed: the oracle, exactly Σ NnzCols·f words, the same bits however they
travel.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import local, operators
from distgnn.arrays.tuning import TUNING
from distgnn.comm import halo, packing
from distgnn.comm.group import Comm
from distgnn.comm.packing import Costs
from distgnn.gallery import awkward, rmat
from distgnn.operators import SPARSITY_AWARE, grids, make_grid

from . import formulas
from .formulas import SPARSITY_AWARE_WORDS
from .test_products import Recorder, awkward_matrices, check_product, right_sides, uneven

MATRICES = awkward()
WIDTH = 5
ALWAYS_WHOLE = Costs(sent=0.0, packed=1.0, call=1.0)
NEVER_WHOLE = Costs(sent=1.0, packed=0.0, call=0.0)
names = pytest.mark.parametrize("name", SPARSITY_AWARE)


@names
def test_awkward_matrices(comm, name, backend):
    grid = make_grid(comm, name, backend=backend)
    for matrix, A in awkward_matrices(comm.Get_size()).items():
        check_product(A, grid, name, WIDTH, label=matrix, sparsity_aware=True)
    grid.free()


@pytest.mark.ranks(1, 2, 3, 4, 6)
@names
def test_awkward_matrices_with_whole_blocks_among_them(comm, name, backend):
    grid = make_grid(comm, name, backend=backend)
    for matrix, A in MATRICES.items():
        check_product(A, grid, name, WIDTH, label=matrix, sparsity_aware="auto")
    grid.free()


@names
def test_widths_and_types(comm, name, backend):
    grid = make_grid(comm, name, backend=backend)
    for f in (0, 1, 2, 64):
        check_product(MATRICES["prime"], grid, name, f, label=f"width {f}", sparsity_aware=True)
    check_product(MATRICES["larger_prime"], grid, name, WIDTH, np.float32, sparsity_aware=True)
    grid.free()


@names
@pytest.mark.parametrize("cut", [formulas.partition, uneven])
def test_ledger_equals_formula_on_every_grid(comm, name, backend, cut, monkeypatch):
    """To the word, forward and adjoint, with even blocks and with large, small and empty ones; and equal to
    SciPy's product.
    """
    monkeypatch.setattr(formulas, "cut_nodes", cut)
    words = SPARSITY_AWARE_WORDS[name]
    for sizes in grids(name, comm.Get_size()):
        grid = make_grid(comm, name, sizes, backend=backend)
        for matrix in ("prime", "wide"):
            A = MATRICES[matrix]
            parts = {"row_parts": cut(A.shape[0], sizes["rows"]), "col_parts": cut(A.shape[1], sizes["rows"])}
            check_product(A, grid, name, WIDTH, label=f"{matrix} on {sizes}", sparsity_aware=True, **parts)
            operator = dg.distribute(A, grid, name, sparsity_aware=True, **parts)
            H, G = (dg.scatter(*pair) for pair in zip(right_sides(A, WIDTH), layouts(operator), strict=True))
            operator.T @ G  # finds out what Aᵀ needs
            with dg.Ledger() as forward:
                operator @ H
            with dg.Ledger() as adjoint:
                operator.T @ G
            assert forward.words == round(words(grid, A, WIDTH)), (sizes, matrix)
            assert adjoint.words == round(words(grid, A.T.tocsr(), WIDTH)), (sizes, matrix)
            received = next(
                (e for e in forward.entries() if e["operation"] == "alltoallv"), {"words": 0, "messages": 0}
            )
            assert received["words"] == operator.A.received * WIDTH
            assert received["messages"] == len(operator.A.needed)
            sent, got = (
                sum(grid.world.gather_objects(rows)) for rows in (operator.A.sent, operator.A.received)
            )
            assert sent == got
        grid.free()


def layouts(operator):
    return operator.input_layout, operator.output_layout


@pytest.mark.ranks(1, 2, 3, 4, 6, 8, 9, 12)
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
            monkeypatch.setattr(packing, "measure", lambda grid, comm, costs=costs: costs)
            operator = dg.distribute(A, grid, name, sparsity_aware="auto")
            H, G = (dg.scatter(X, layout) for layout in layouts(operator))
            for overlap in (True, False):
                grid.overlap = overlap
                found += [[backend.to_host(M.block).copy() for M in (operator @ H, operator.T @ G)]]
        for blocks in found[1:]:
            np.testing.assert_array_equal(blocks[0], found[0][0])
            np.testing.assert_array_equal(blocks[1], found[0][1])
        if name == "1d" and comm.Get_size() > 3:
            assert (len(operator.A.groups) > 1) == (group_nonzeros < 16)
        grid.free()


@pytest.mark.ranks(2, 3, 4)
@names
def test_auto_charges_what_it_receives(comm, name, backend, monkeypatch):
    """Some blocks whole, others not: those of which more than half of the rows are needed."""
    half = Costs(sent=1.0, packed=1.0, call=0.0)
    monkeypatch.setattr(packing, "measure", lambda grid, comm: half)
    A = MATRICES["larger_prime"]
    grid = make_grid(comm, name, backend=backend)
    operator = dg.distribute(A, grid, name, sparsity_aware="auto")
    parts = formulas.partition(A.shape[0], grid.shape["rows"])
    i, expected = grid.coords["rows"], 0
    for j in operator.stages:
        rows = np.unique(A[parts[i] : parts[i + 1], parts[j] : parts[j + 1]].indices)
        height = parts[j + 1] - parts[j]
        scattered = rows.size and rows[-1] - rows[0] + 1 != rows.size
        expected += 0 if i == j else height if scattered and 2 * rows.size > height else rows.size
    assert operator.A.received == expected
    H = dg.scatter(right_sides(A, WIDTH)[0], operator.input_layout)
    with dg.Ledger() as counted:
        operator @ H
    reduced = formulas.allreduce(grid.shape.get("reps", 1), int(parts[i + 1] - parts[i]) * WIDTH)
    assert counted.words == round(expected * WIDTH + reduced)
    grid.free()


@pytest.mark.ranks(1, 2, 4)
def test_measured_costs_are_the_same_on_all_ranks(comm, backend):
    grid = make_grid(comm, "1d", backend=backend)
    costs = packing.measure(grid, grid.along("rows"))
    assert len(set(comm.allgather(costs))) == 1
    assert costs.sent >= 0 and costs.packed >= 0 and costs.call > 0
    grid.free()


def test_whole_blocks_are_sent_where_packing_costs_more():
    rows, run = np.arange(0, 100, 2), np.arange(20, 70)
    assert not Costs(1.0, 0.9, 0.0).whole_is_cheaper(rows, 100)
    assert Costs(1.0, 1.1, 0.0).whole_is_cheaper(rows, 100)
    assert Costs(1.0, 0.0, 51 * packing.ROW_BYTES).whole_is_cheaper(rows, 100)
    assert not ALWAYS_WHOLE.whole_is_cheaper(run, 100)  # what is not packed costs nothing to pack
    assert not ALWAYS_WHOLE.whole_is_cheaper(rows[:0], 100)


@pytest.mark.ranks(2, 3, 4)
@names
def test_rows_that_follow_each_other_are_not_packed(comm, name, backend):
    n = 60
    band = sp.diags_array([np.ones(n - 2), np.ones(n), np.ones(n - 2)], offsets=[-2, 0, 2], format="csr")
    grid = make_grid(comm, name, backend=backend)
    operator = dg.distribute(band, grid, name, sparsity_aware=True)
    assert operator.A.packed == 0 and operator.T is operator
    check_product(band, grid, name, WIDTH, sparsity_aware=True)
    grid.free()


@pytest.mark.ranks(1, 4)
@names
def test_memory_is_used_again(comm, name, backend):
    A = MATRICES["larger_prime"]
    grid = make_grid(comm, name, backend=backend)
    operator = dg.distribute(A, grid, name, sparsity_aware=True)
    H, G = (dg.scatter(*pair) for pair in zip(right_sides(A, WIDTH), layouts(operator), strict=True))
    out, back = operator @ H, operator.T @ G
    reserved, kept = (
        grid.workspace.reserved,
        {name: id(array) for name, array in grid.workspace._named.items()},
    )
    for _ in range(3):
        operator.multiply(H, out)
        operator.multiply_adjoint(G, back)
    assert grid.workspace.reserved == reserved
    assert {name: id(array) for name, array in grid.workspace._named.items()} == kept
    grid.free()


@names
def test_flops_are_shared(comm, name, backend):
    A = MATRICES["prime"]
    grid = make_grid(comm, name, backend=backend)
    operator = dg.distribute(A, grid, name, sparsity_aware=True)
    H = dg.scatter(right_sides(A, WIDTH)[0], operator.input_layout)
    with dg.Ledger() as ledger:
        operator @ H
    assert sum(grid.world.gather_objects(ledger.flops)) == 2 * A.nnz * WIDTH
    grid.free()


@names
def test_a_rank_asks_for_the_blocks_of_its_stages_only(comm, name, backend):
    """And, of a directed graph, for those of Aᵀ not before its first product."""
    grid = make_grid(comm, name, backend=backend)
    source = Recorder(MATRICES["directed"])
    operator = dg.distribute(source, grid, name, sparsity_aware=True)
    assert len(source.windows) == len(operator.stages)
    operator.T @ dg.scatter(right_sides(MATRICES["directed"], 1)[1], operator.output_layout)
    assert len(source.windows) == 2 * len(operator.stages)
    grid.free()


@pytest.mark.ranks(2, 4)
@names
@pytest.mark.parametrize("what", ["forward", "adjoint"])
def test_what_fails_on_one_rank_fails_on_all(comm, name, backend, what):
    class Broken(Recorder):
        broken = what == "forward"

        def block(self, rows, cols):
            if self.broken and comm.Get_rank() == 1:
                raise dg.UserError("shard 7: damaged")
            return super().block(rows, cols)

    grid = make_grid(comm, name, backend=backend)
    source = Broken(MATRICES["directed"])
    G = None
    if what == "adjoint":
        operator = dg.distribute(source, grid, name, sparsity_aware=True)
        G, source.broken = dg.scatter(right_sides(MATRICES["directed"], 1)[1], operator.output_layout), True
    with pytest.raises(dg.UserError, match="shard 7: damaged"):
        dg.distribute(source, grid, name, sparsity_aware=True) if G is None else operator.T @ G
    grid.free()


@pytest.mark.ranks(2, 3)
@names
def test_without_compiled_kernels(comm, name, monkeypatch):
    monkeypatch.setattr(local.host, "module", lambda: None)
    local._spmm_kernel.cache_clear()
    grid = make_grid(comm, name, backend="numpy")
    check_product(MATRICES["prime"], grid, name, WIDTH, sparsity_aware=True)
    local._spmm_kernel.cache_clear()
    grid.free()


def test_only_block_rows_can_send_rows():
    with pytest.raises(
        dg.UserError,
        match="sparsity_aware=True: algorithm 2d sends whole blocks; only 1d and 1.5d can send rows",
    ):
        operators.operator("2d", True)
    with pytest.raises(dg.UserError, match="no such algorithm"):
        operators.operator("4d", True)
    with pytest.raises(dg.UserError, match="expected auto"):
        operators.operator("1d", "always")
    assert operators.operator("2d") is operators.ALGORITHMS["2d"]


def test_groups_follow_the_order_and_are_about_equally_large():
    assert halo.in_groups([], 100) == []
    assert halo.in_groups([5, 5, 5], 1) == [(0, 3)]
    assert halo.in_groups([5, 5, 5, 5], 2 * TUNING.group_nonzeros) == [(0, 2), (2, 4)]
    assert halo.in_groups([90, 5, 5], 2 * TUNING.group_nonzeros) == [(0, 1), (1, 3)]
    assert halo.in_groups([1] * 12, 1e9) == [(0, 3), (3, 6), (6, 9), (9, 12)]


def test_renumbered_blocks_multiply_the_rows_kept():
    A = sp.random_array((7, 30), density=0.1, format="csr", rng=np.random.default_rng(0))
    X = np.random.default_rng(1).standard_normal((30, 3))
    columns = np.unique(A.indices)
    compact = halo.renumber(A, columns)
    assert compact.shape == (7, columns.size) < A.shape
    np.testing.assert_array_equal(compact @ X[columns], A @ X)


def test_slices():
    assert halo.contiguous(np.array([3, 4, 5])) == slice(3, 6)
    assert halo.contiguous(np.array([3, 5])) is None

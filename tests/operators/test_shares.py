"""1.5D and Split-3D on grids beyond the papers: process columns share blocks, layers are no squares."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn.arrays.tuning import TUNING
from distgnn.layout import Axes, partition, shares
from distgnn.operators import grids, make_grid
from distgnn.operators.block_rows import BlockRows
from distgnn.operators.split_3d import layer_stages
from loops import each

from .counts import check_price, column_shares
from .test_edges import compare, everywhere, matrix

#: Copies of 1.5D that do not divide the process rows.
COPIES = {3: [3], 6: [2, 3, 6], 8: [4], 12: [3, 4, 6]}
MODES = False, True, "auto", "cover"


def uneven(n, parts):
    """Return a partition vector whose blocks differ, one of them empty."""
    ends = np.sort(np.random.default_rng(parts).integers(0, n, parts - 1))
    ends[parts // 2 : parts // 2 + 1] = ends[parts // 2 - 1 : parts // 2] if parts > 2 else ends[:1]
    return np.array([0, *ends, n])


@each("c", range(1, 10))
@each("rows", range(1, 10))
def test_process_columns_have_equal_shares_of_the_blocks(rows, c):
    for n in (0, 3, 720 * rows):
        for vector in (partition(n, rows), uneven(n, rows) if n > 3 else partition(n, rows)):
            expected = column_shares(n, rows, c, vector)
            assert shares(vector, c).tolist() == [0, *(share[-1] for share in expected)]
            for j, share in enumerate(expected):
                stages, columns = BlockRows.share(Axes({"rows": rows, "reps": c}, j), vector)
                assert columns.tolist() == share.tolist()
                held = [q for q in range(rows) if columns[q] < columns[q + 1]]
                assert set(held) <= set(stages) and len(stages) <= -(-rows // c) + 1
                if rows % c == 0:
                    assert list(stages) == list(range(j * rows // c, (j + 1) * rows // c))
    assert len(set(np.diff(shares(partition(720 * rows * c, rows), c)).tolist())) == 1


def rectangle(r, n):
    """Make a matrix of n rows, and of fewer columns."""
    return sp.csr_array(matrix(r, n, density=max(0.1, 2 / n))[:, : n - n // 5])


def parts(M, cut, blocks):
    """Return partition vectors of rows and columns."""
    return {"row_parts": cut(M.shape[0], blocks), "col_parts": cut(M.shape[1], blocks)}


def check(comm, A, M, X, Y, label):
    """Check both products of an operator, several in a row, that copies are alike, and their price."""
    H, G = dg.scatter(X, A.input_layout), dg.scatter(Y, A.output_layout)
    for _ in range(2):
        AH, F = A @ H, A.T @ G
    product, adjoint = everywhere(comm, AH), everywhere(comm, F)
    np.testing.assert_allclose(product, M @ X, rtol=1e-11, atol=1e-11, err_msg=label)
    np.testing.assert_allclose(adjoint, M.T @ Y, rtol=1e-11, atol=1e-11, err_msg=label)
    assert np.sum(product * Y) == pytest.approx(np.sum(X * adjoint)), label
    copies = comm.allgather((A.grid.coords.get("rows"), AH.block.tobytes(), F.block.tobytes()))
    if "reps" in A.grid.shape:
        assert len(set(copies)) == A.grid.shape["rows"], label
    check_price(lambda: A @ H, A.prices.product(X.shape[1]), label)
    check_price(lambda: A.T @ G, A.prices.adjoint(X.shape[1]), label)


@pytest.mark.ranks(6, 8)
@pytest.mark.parametrize("aware", MODES)
def test_process_columns_that_share_blocks(comm, aware, monkeypatch):
    """Even and uneven cuts, more ranks than nodes, messages above the eager limit."""
    monkeypatch.setattr(TUNING, "small_sum", 4096)
    r = np.random.default_rng(7)
    for number, c in enumerate(COPIES[comm.Get_size()]):
        grid = make_grid(comm, "1.5d", {"reps": c}, backend="numpy")
        for n, cut in ((5, partition), (311, uneven)):
            grid.overlap, M = number % 2 == 0, rectangle(r, n)
            A = dg.distribute(M, grid, "1.5d", aware, **parts(M, cut, grid.shape["rows"]))
            Y, X = (r.standard_normal((k, 48)) for k in M.shape)
            check(comm, A, M, X, Y, f"{grid.shape} {n} {cut.__name__}")
        grid.free()


@pytest.mark.ranks(6, 8)
@pytest.mark.parametrize("aware", [False, True])
def test_edges_and_semirings_of_process_columns_that_share_blocks(comm, aware):
    for number, c in enumerate(COPIES[comm.Get_size()]):
        r = np.random.default_rng(number)
        grid = make_grid(comm, "1.5d", {"reps": c}, backend="numpy")
        M = matrix(r, 95)
        A = dg.distribute(M, grid, "1.5d", aware)
        compare(comm, A, M, r, 2, 12)
        X = r.standard_normal((95, 24))
        filled = np.flatnonzero(np.diff(M.indptr))
        found = everywhere(comm, A.aggregate(dg.scatter(X, A.input_layout), "max", "pattern"))
        expected = np.stack([X[M.indices[M.indptr[i] : M.indptr[i + 1]]].max(axis=0) for i in filled])
        np.testing.assert_array_equal(found[filled], expected)
        grid.free()


@pytest.mark.ranks(6)
def test_a_symmetric_matrix_on_one_process_row_is_cut_in_its_adjoint(comm):
    """Each process column has some columns of A; their transposes are other blocks."""
    grid = make_grid(comm, "1.5d", {"rows": 1, "reps": 6}, backend="numpy")
    M = matrix(np.random.default_rng(2), 61)
    M = sp.csr_array(M + M.T)
    source = dg.operators.sources.MatrixSource(M)
    source.symmetric = True
    A = dg.distribute(source, grid, "1.5d")
    assert A.T is A
    compare(comm, A, M, np.random.default_rng(3), 2, 6)
    grid.free()


# -- layers of Split-3D ------------------------------------------------------------------------------------


@each("sizes", [(1, 3, 2), (3, 1, 2), (2, 3, 2), (3, 2, 3), (4, 6, 1), (2, 2, 3), (5, 3, 1)])
def test_stages_of_a_layer_have_its_columns_once_and_even_shares_of_them(sizes):
    pr, pc, layers = sizes
    for n in (2, 7, 60 * pr * pc * layers):
        col_parts, seen = partition(n, pr * layers), []
        for k in range(layers):
            shape = dict(zip(("rows", "cols", "fibers"), sizes, strict=True))
            stages = layer_stages(shape, col_parts, k)
            for stage in stages:
                first = col_parts[stage.r * layers + k] + stage.top
                assert (first, first + stage.width) == stage.columns and stage.width > 0
                assert stage.columns[1] <= col_parts[stage.r * layers + k + 1]
                seen += range(*stage.columns)
            widths = [sum(stage.width for stage in stages if stage.c == j) for j in range(pc)]
            assert max(widths) - min(widths) <= 1
        assert sorted(seen) == list(range(n))


def rectangles(ranks):
    """Return the shapes of layers that are no squares, three with different sizes of each axis."""
    shapes = [sizes for sizes in grids("3d-split", ranks) if sizes["rows"] != sizes["cols"]]
    return shapes if ranks <= 6 else shapes[:: max(len(shapes) // 4, 1)]


@pytest.mark.ranks(3, 6, 8)
def test_layers_of_any_shape(comm):
    r = np.random.default_rng(11)
    for number, sizes in enumerate(rectangles(comm.Get_size())):
        grid, block_size = make_grid(comm, "3d-split", sizes, backend="numpy"), (None, 17)[number % 2]
        for n, cut in ((7, partition), (301, uneven)):
            grid.overlap = number % 4 < 2
            M, blocks = rectangle(r, n), sizes["rows"] * sizes["fibers"]
            A = dg.distribute(M, grid, "3d-split", **parts(M, cut, blocks), block_size=block_size)
            Y, X = (r.standard_normal((k, 48)) for k in M.shape)
            check(comm, A, M, X, Y, f"{sizes} {n} {cut.__name__}")
        grid.free()


@pytest.mark.ranks(6)
def test_edges_of_layers_of_any_shape(comm):
    shapes = rectangles(comm.Get_size())
    for number, sizes in enumerate(shapes if comm.Get_size() == 3 else shapes[1::3]):
        r = np.random.default_rng(number)
        grid = make_grid(comm, "3d-split", sizes, backend="numpy")
        M = matrix(r, 83)
        compare(comm, dg.distribute(M, grid, "3d-split"), M, r, 3, 12)
        grid.free()

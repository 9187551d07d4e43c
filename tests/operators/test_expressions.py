"""Sums, shifts, adjoints and products of operators beside SciPy's; matrices made where they lie; vectors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from awkward_shapes import awkward
from distgnn.errors import UserError
from distgnn.layout import Cut, Layout
from distgnn.operators import ALGORITHMS, grids

from .counts import check_price
from .orders import Permuted

N, F = 31, 5
RNG = np.random.default_rng(3)
A, B = (sp.random_array((N, N), density=0.2, rng=RNG, format="csr") for _ in range(2))
WIDE = sp.random_array((N, 13), density=0.3, rng=RNG, format="csr")
X = RNG.standard_normal((N, F))
ORDER = RNG.permutation(N)
EYE = sp.eye_array(N)


def even_grid(comm, name, backend):
    """Make the most even grid, on which an algorithm takes all its steps."""
    sizes = min(grids(name, comm.size), key=lambda sizes: max(sizes.values()))
    return dg.Grid(comm, backend=backend, **sizes)


def gathered(H):
    """Return the whole matrix on every rank."""
    return H.grid.world.share(dg.gather(H))


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_sums_and_shifts_are_scipys_and_cost_their_price(comm, backend, name):
    grid = even_grid(comm, name, backend)
    a, b = (dg.distribute(Permuted(M, ORDER), grid, name) for M in (A, B))
    for op, whole in (
        (a - 2 * dg.I, A - 2 * EYE),
        (dg.I / 4 - a, EYE / 4 - A),
        (2 * (a + b) - (a - 3 * dg.I).H, 2 * (A + B) - (A - 3 * EYE).T),
    ):
        H, G = dg.scatter(X, op.input_layout), dg.scatter(X, op.output_layout)
        np.testing.assert_allclose(gathered(op @ H), whole @ X, atol=1e-12)
        np.testing.assert_allclose(gathered(op.H @ G), whole.T @ X, atol=1e-12)
        np.testing.assert_allclose(gathered(op.diagonal())[:, 0], whole.diagonal(), atol=1e-12)
        assert op.T.T is op and dg.dottest(op, columns=3)
        check_price(lambda op=op, H=H: op @ H, op.prices.product(F))
        check_price(lambda op=op, G=G: op.T @ G, op.prices.adjoint(F))
    symmetric = dg.distribute(sp.csr_array(A + A.T), grid, name)
    shifted = symmetric + 2.5 * dg.I
    assert (shifted.T is shifted) == (symmetric.T is symmetric)
    grid.free()


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize(("name", "aware"), [("1d", False), ("1d", "cover"), ("1.5d", True), ("rdm", False)])
def test_products_of_sparse_matrices(comm, backend, name, aware):
    """Stored zeros, empty rows, more and fewer columns than rows; products of products."""
    sizes = dict.fromkeys(ALGORITHMS[name].axes, 1) | {"rows": comm.size}
    grid = dg.Grid(comm, backend=backend, **sizes)
    for M in map(awkward().get, ("stored_zeros", "wide", "tall")):
        m, n = M.shape
        right = sp.random_array((n, 17), density=0.3, rng=np.random.default_rng(n), format="csr")
        a, b = (dg.distribute(matrix, grid, name, aware, dtype=np.float64) for matrix in (M, right))
        C, whole = a @ b, M @ right
        H = dg.random((17, 2), C.input_layout, seed=4)
        np.testing.assert_allclose(gathered(C @ H), whole @ gathered(H), atol=1e-9)
        G = dg.random((m, 2), C.output_layout, seed=5)
        np.testing.assert_allclose(gathered(C.T @ G), whole.T @ gathered(G), atol=1e-9)
    part = np.arange(N) % comm.size
    a, b = (dg.distribute(M, grid, name, aware, parts=part) for M in (A, B))
    cube = (a @ b) @ a  # of products, in an order by parts
    H = dg.scatter(X, cube.input_layout)
    np.testing.assert_allclose(gathered(cube @ H), A @ (B @ (A @ X)), atol=1e-12)
    np.testing.assert_allclose(gathered((a @ b).diagonal())[:, 0], (A @ B).diagonal(), atol=1e-12)
    assert (a @ b).nnz == (sp.csr_array(A != 0).astype(int) @ sp.csr_array(B != 0).astype(int)).nnz
    grid.free()


@pytest.mark.ranks(3)
def test_rows_of_sparse_products_have_their_words(comm):
    """A number and a length for each row that is asked for, two words for each of its entries."""
    grid = dg.Grid(comm, backend="numpy", rows=3)
    a, b = (dg.distribute(M, grid, "1d") for M in (A, B))
    cuts, me = a.algorithm.row_parts, comm.rank
    with dg.Ledger() as ledger:
        a @ b
    away = np.ones(N, bool)
    away[slice(*cuts[me:][:2])] = False
    asked = [np.unique(A[slice(*cuts[r:][:2])].indices) for r in range(3)]
    mine = [row for row in asked[me] if away[row]]
    others = sum(np.count_nonzero(~away[asked[r]]) for r in range(3) if r != me)
    words = {entry["matrix"]: 0 for entry in ledger.entries()}
    for entry in ledger.entries():
        words[entry["matrix"]] += entry["words"]
    held = sum(int(B.indptr[row + 1] - B.indptr[row]) for row in mine)
    assert words["adjacency"] == 2 * held
    with dg.Ledger() as made:  # the rows that products read are told once
        dg.distribute(A @ B, grid, "1d", True)
    assert words["rows"] == others + len(mine) + made.words
    grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "2d", "3d"])
def test_matrices_are_made_where_they_lie(comm, backend, name):
    """The same numbers on every grid, in every layout and order; means and inner products are NumPy's."""
    grid = even_grid(comm, name, backend)
    layout = dg.distribute(Permuted(A, ORDER), grid, name).input_layout
    H = dg.random((N, F), layout, seed=7)
    assert (gathered(dg.zeros((N, F), layout)) == 0).all() and (gathered(dg.ones(N, layout)) == 1).all()
    G = dg.from_function(lambda i, j: i * 10 + j, (N, F), layout, np.float32)
    assert (gathered(G) == np.arange(N)[:, None] * 10 + np.arange(F)).all() and G.dtype == np.float32
    whole, other = gathered(H), gathered(G)
    for axis in (None, 0, 1):
        mean, dot = H.mean(axis), H.dot(G, axis)
        if axis == 1:
            mean, dot = gathered(mean)[:, 0], gathered(dot)[:, 0]
        np.testing.assert_allclose(mean, whole.mean(axis))
        np.testing.assert_allclose(dot, (whole * other).sum(axis))
    with pytest.raises((RuntimeError, ZeroDivisionError), match="division"):
        dg.from_function(lambda i, j: 1 // comm.rank, (N, F), layout)
    grid.free()
    one = dg.Grid(MPI.COMM_SELF, backend="numpy", rows=1)
    alone = dg.random((N, F), Layout(one, Cut(), Cut()), seed=7)
    assert (whole == alone.block).all()
    assert 0.3 < whole.mean() < 0.7 and len(np.unique(whole)) == N * F
    assert (whole != dg.random((N, F), alone.layout, seed=8).block).all()


@pytest.mark.ranks(3)
def test_vectors(comm, backend):
    grid = dg.Grid(comm, backend=backend, rows=3)
    op = dg.distribute(A, grid, "1d")
    x = dg.scatter(X[:, 0], op.input_layout)
    assert x.shape == (N, 1)
    np.testing.assert_allclose(gathered(op @ x)[:, 0], A @ X[:, 0])
    assert x.dot(x) == pytest.approx(X[:, 0] @ X[:, 0])
    grid.free()


@pytest.mark.ranks(3)
def test_a_wrong_adjoint_is_found_on_every_rank(comm, monkeypatch):
    op = dg.distribute(A, dg.Grid(comm, backend="numpy", rows=3), "1d")
    assert dg.dottest(op)
    monkeypatch.setattr(type(op), "_multiply_adjoint", lambda self, G, F: F.block.fill(1.0))
    assert not dg.dottest(op, raiseerror=False)
    with pytest.raises(ValueError, match=r"A.T is not its adjoint: <A u, v> = "):
        dg.dottest(op)
    monkeypatch.setattr(type(op), "_multiply_adjoint", lambda self, G, F: F.block.fill(np.nan))
    assert not dg.dottest(op, raiseerror=False)
    op.grid.free()


@pytest.mark.ranks(4)
def test_bad_input_is_one_line_on_every_rank(comm):
    grid, other = (dg.Grid(comm, backend="numpy", rows=4) for _ in range(2))
    op, wide = dg.distribute(A, grid, "1d"), dg.distribute(WIDE, grid, "1d")
    two = dg.distribute(A, dg.Grid(comm, backend="numpy", **grids("2d", 4)[0]), "2d")
    copies = dg.distribute(A, dg.Grid(comm, backend="numpy", rows=2, reps=2), "1.5d")
    layout, both = op.input_layout, dg.ones((N, 2), op.input_layout)
    double = dg.distribute(Permuted(A, ORDER, ORDER[::-1]), grid, "1d")
    for kind, problem, call in (
        (TypeError, r"expected an operator, or s \* dg.I", lambda: op + 1),
        (TypeError, r"expected an operator, or s \* dg.I", lambda: op - X),
        (ValueError, "another grid", lambda: op + dg.distribute(A, other, "1d")),
        (ValueError, "another shape", lambda: op + wide),
        (ValueError, "another dtype", lambda: op + dg.distribute(A, grid, "1d", dtype=np.float32)),
        (ValueError, "another order of rows", lambda: op + dg.distribute(Permuted(A, ORDER), grid, "1d")),
        (ValueError, "not of the same nodes, in one order", lambda: wide + dg.I),
        (ValueError, "not of the same nodes, in one order", lambda: double - dg.I),
        (TypeError, r"2d @ 2d: block rows on as many ranks have .*; A @ \(B @ H\)", lambda: two @ two),
        (TypeError, "1.5d @ 1.5d: block rows on as many ranks", lambda: copies @ copies),
        (TypeError, "1d @ 1d transposed: block rows", lambda: op @ op.T),
        (ValueError, "are not cut alike, on one grid", lambda: wide @ op),
        (TypeError, r"got ndarray; aslinearoperator\(\) takes whole arrays", lambda: op @ X[:, 0]),
        (UserError, r"shape=\(30, 2\): the layout cuts 31 rows", lambda: dg.zeros((30, 2), layout)),
        (UserError, r"shape=\(31, 2, 2\): expected \(rows, columns\)", lambda: dg.ones((31, 2, 2), layout)),
        (UserError, "ranks disagree: shape", lambda: dg.zeros((31, comm.rank), layout)),
        (UserError, "ranks disagree: seed", lambda: dg.random(31, layout, seed=comm.rank)),
        (UserError, "complex", lambda: dg.zeros(31, layout, complex)),
        (UserError, "layout=DistSparse: expected a Layout", lambda: dg.zeros(31, op)),
        (ValueError, "such as vectors of a number for each row", lambda: both * X[:, 0]),
        (ValueError, "are not cut alike; redistribute", lambda: dg.ones(N, layout).dot(both)),
    ):
        with pytest.raises(kind, match=problem) as caught:
            call()
        assert "\n" not in str(caught.value)
    for used in (grid, other, two.grid, copies.grid):
        used.free()


def test_the_layout_of_ones_need_not_say_how_many():
    grid = dg.Grid(MPI.COMM_SELF, backend="numpy", rows=1)
    assert dg.ones((4, 2), Layout(grid, Cut(("rows",)), Cut())).sum() == 8
    grid.free()

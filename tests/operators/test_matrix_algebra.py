"""Algebra of distributed sparse matrices, compared with SciPy's: sums, diagonals, solvers, parts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import cg, eigsh, lobpcg

import distgnn as dg
from chosen_grids import some_grids, wide_grid
from distgnn.errors import DisagreementError, UserError
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids
from loops import each

from .orders import Permuted

N = 31
RNG = np.random.default_rng(7)
A = sp.random_array((N, N), density=0.2, rng=RNG, format="csr") + sp.diags_array(np.arange(N) % 3.0)
A = sp.csr_array(A)
WIDE = sp.random_array((N, 13), density=0.3, rng=RNG, format="csr")
X = RNG.standard_normal((N, 5))
ORDERS = RNG.permutation(N), RNG.permutation(N)

algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


def make_grids(comm, backend, algorithm):
    for shape in some_grids(algorithm, comm.size):
        grid = dg.Grid(comm, backend=backend, **shape)
        yield grid
        grid.free()


def check(H, expected, rtol=1e-12):
    """Check this rank's block of a matrix by node."""
    _, (left, right) = H.layout.ranges(expected.shape)
    rows = H.layout.rows.ids(*H.row_range)
    np.testing.assert_allclose(H.grid.backend.to_host(H.block), expected[rows, left:right], rtol, 1e-13)


def sums_and_diagonals_are_scipys(grid, algorithm):
    for source, matrix in (
        (A, A),
        (Permuted(A, ORDERS[0]), A),
        (Permuted(A, *ORDERS), A),
        (A.astype(np.float32), A),
        (WIDE, WIDE),
    ):
        op, near = dg.distribute(source, grid, algorithm), 1e-5 if source.dtype == np.float32 else 1e-12
        check(op.sum(axis=1), matrix.sum(axis=1)[:, None], near)
        check(op.sum(axis=0), matrix.sum(axis=0)[:, None], near)
        check(op.T.sum(axis=1), matrix.sum(axis=0)[:, None], near)
        assert op.sum() == pytest.approx(matrix.sum(), rel=near)
        if matrix is A:
            check(op.diagonal(), A.diagonal()[:, None], near)
            assert op.diagonal().layout.same(op.output_layout, (N, 1))
        if matrix is A and not isinstance(source, Permuted):
            check(op.T.diagonal(), A.diagonal()[:, None], near)


def multiples_of_a_matrix(grid, algorithm):
    op = dg.distribute(Permuted(A, ORDERS[0]), grid, algorithm)
    H, G = dg.scatter(X, op.input_layout), dg.scatter(X, op.output_layout)
    for scaled, factor in ((2 * op, 2), (np.float64(0.5) * op, 0.5), (-op / 4, -0.25), (op * 2 * 3, 6)):
        check(scaled @ H, factor * (A @ X))
        check(scaled.T @ G, factor * (A.T @ X))
        check(scaled.diagonal(), factor * A.diagonal()[:, None])
        assert scaled.sum() == pytest.approx(factor * A.sum()) and scaled.nnz == op.nnz
        assert scaled.T.T is scaled
    check(op @ H, A @ X)
    layer = (2 * op).layer(1)
    check(layer @ dg.scatter(X, layer.input_layout), 2 * (A @ X))


def products_follow_each_other(grid, algorithm):
    """Take the product of the first operator, cut anew, both by itself and by a layer's."""
    op = dg.distribute(Permuted(A, ORDERS[0]), grid, algorithm)
    once = op @ dg.scatter(X, op.input_layout)
    twice = A @ (A @ X)
    check(op @ once.redistribute(op.input_layout), twice)
    check(op.layer(1) @ once.redistribute(op.layer(1).input_layout), twice)
    if not once.layout.same(op.input_layout, once.shape):
        with pytest.raises(ValueError, match=r"needs .*; H.redistribute\(A.input_layout\) cuts it so$"):
            op @ once


def products_follow_each_other_in_two_orders(grid, algorithm):
    op = dg.distribute(Permuted(A, *ORDERS), grid, algorithm)
    once = op @ dg.scatter(X, op.input_layout)
    with pytest.raises(ValueError, match=r"; A.layer\(1\) takes this order$"):
        op @ once
    other = dg.distribute(A, grid, algorithm)
    with pytest.raises(ValueError, match=r"; rows are in another order of the nodes$"):
        op @ dg.scatter(X, other.input_layout)


@pytest.mark.ranks(1, 4)
@algorithms
def test_solvers_of_scipy_run_on_all_ranks(comm, backend, algorithm):
    grid = wide_grid(comm, algorithm, backend)
    definite = sp.csr_array(A @ A.T + 10 * sp.eye_array(N))
    op = dg.distribute(Permuted(definite, ORDERS[0]), grid, algorithm)
    linear = op.aslinearoperator()
    solution, failed = cg(linear, X[:, 0], rtol=1e-12)
    np.testing.assert_allclose(definite @ solution, X[:, 0], atol=1e-9)
    assert not failed
    expected = np.linalg.eigvalsh(definite.toarray())
    np.testing.assert_allclose(eigsh(linear, 3, v0=X[:, 0])[0], expected[-3:])
    found, _ = lobpcg(linear, X[:, :2].copy(), tol=1e-9, maxiter=200)
    np.testing.assert_allclose(found, expected[:-3:-1], rtol=1e-6)
    np.testing.assert_allclose(linear @ X, definite @ X)
    np.testing.assert_allclose(linear.H @ X[:, 0], definite @ X[:, 0])
    wide = dg.distribute(WIDE, grid, algorithm).aslinearoperator()
    np.testing.assert_allclose(wide.rmatvec(X[:, 0]), WIDE.T @ X[:, 0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(wide @ X[:13], WIDE @ X[:13], rtol=1e-12, atol=1e-13)
    grid.free()


@pytest.mark.ranks(3)
def test_solvers_with_starts_of_their_own_are_refused(comm):
    grid = dg.Grid(comm, backend="numpy", rows=comm.size)
    linear = dg.distribute(A, grid, "1d").aslinearoperator()
    with pytest.raises(DisagreementError, match="a solver's vector"):
        eigsh(linear, 2, v0=np.random.default_rng(comm.rank).random(N))
    with pytest.raises(ValueError, match="A holds float64, the solver float32"):
        linear @ X[:, 0].astype(np.float32)
    with pytest.raises(ValueError, match="dimension mismatch"):
        linear @ X[:9]
    grid.free()


@each("given", ["by all", "by the last"])
def parts_by_node_are_an_order(grid, algorithm, given):
    blocks = grid.shape.get("rows", 1) if algorithm in SPARSITY_AWARE else 1
    part = (np.arange(N) * 5 + 2) % (blocks if blocks > 1 else 3)
    part[part == 1] = 0  # an empty part
    root = {} if given == "by all" else {"root": grid.size - 1}
    held = A if given == "by all" or grid.rank == grid.size - 1 else None
    op = dg.distribute(held, grid, algorithm, parts=part, **root)
    H, G = dg.scatter(X, op.input_layout), dg.scatter(X, op.output_layout)
    check(op @ H, A @ X)
    check(op.T @ G, A.T @ X)
    check(op.diagonal(), A.diagonal()[:, None])
    found = dg.gather(H)
    with grid.world.together():
        assert found is None or (found == X).all()
        rows = op.output_layout.rows
        if blocks > 1 and rows.axes == ("rows",):
            assert (part[rows.ids(*G.row_range)] == grid.coords["rows"]).all()
            assert len(G.block) == (part == grid.coords["rows"]).sum()


ALGEBRA = [
    sums_and_diagonals_are_scipys,
    multiples_of_a_matrix,
    products_follow_each_other,
    products_follow_each_other_in_two_orders,
    parts_by_node_are_an_order,
]


@each("statement", ALGEBRA)
def check_that(grid, algorithm, statement):
    """Check what the function says, on this grid."""
    statement(grid=grid, algorithm=algorithm)


@pytest.mark.ranks(1, 4)
@algorithms
def test_algebra_is_scipys(comm, backend, algorithm):
    for grid in make_grids(comm, backend, algorithm):
        check_that(grid=grid, algorithm=algorithm)


@pytest.mark.ranks(4)
def test_bad_input_is_one_line_on_every_rank(comm):
    grid = dg.Grid(comm, backend="numpy", rows=comm.size)
    op, wide = dg.distribute(A, grid, "1d"), dg.distribute(WIDE, grid, "1d")
    H, part = dg.scatter(X, op.input_layout), np.arange(N) % 4
    other = dg.Grid(comm, backend="numpy", rows=comm.size)
    distribute = lambda parts, matrix=A: dg.distribute(matrix, grid, "1d", parts=parts)  # noqa: E731
    for kind, problem, compute in (
        (TypeError, "the product is A @ H", lambda: op * H),
        (TypeError, "expected a number", lambda: op * "2"),
        (TypeError, "expected a number", lambda: X * op),
        (UserError, "axis=2: expected None, 0 for columns or 1 for rows", lambda: op.sum(axis=2)),
        (ValueError, "only square matrices have a diagonal", lambda: wide.diagonal()),
        (
            ValueError,
            "on another grid",
            lambda: op @ dg.scatter(X, dg.distribute(A, other, "1d").input_layout),
        ),
        (
            UserError,
            "parts=9: of node 3; expected 0..3",
            lambda: distribute(np.where(np.arange(N) == 3, 9, part)),
        ),
        (UserError, "parts=-1: of node 0; expected 0..3", lambda: distribute(part - 1)),
        (UserError, "of 30 nodes: the matrix has shape", lambda: distribute(part[1:])),
        (UserError, "the matrix has shape", lambda: distribute(part, WIDE)),
        (UserError, "a vector of whole numbers", lambda: distribute(part / 2)),
        (UserError, "a vector of whole numbers", lambda: distribute(part[:, None])),
        (UserError, "ranks disagree: parts", lambda: distribute(np.roll(part, comm.rank))),
        (UserError, "expected a SciPy sparse matrix|every rank must give", lambda: distribute(part, None)),
    ):
        with pytest.raises(kind, match=problem) as caught:
            compute()
        assert "\n" not in str(caught.value)
    for made in (grid, other):
        made.free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ["1d", "2d"])
def test_a_diagonal_that_a_rank_lacks_is_every_ranks_error(comm, algorithm):
    """On 2 x 2 ranks, those of the second process column make the diagonal, and rank 1 has none of it."""
    grid = dg.Grid(comm, backend="numpy", **grids(algorithm, 4)[0])
    cuts = np.linspace(0, N, 1 + grid.shape["rows"]).astype(int)
    rows = tuple(cuts[grid.coords["rows"] :][:2])
    columns = [grid.coords["cols"]] if algorithm == "2d" else range(4)
    pieces = [(rows, tuple(cuts[j:][:2]), A[slice(*rows), slice(*cuts[j:][:2])]) for j in columns]
    op = dg.distribute(dg.LocalBlocks((N, N), pieces), grid, algorithm, row_parts=cuts, col_parts=cuts)
    if algorithm == "1d":
        check(op.diagonal(), A.diagonal()[:, None])
    else:
        with pytest.raises((RuntimeError, ValueError), match="no block that covers"):
            op.diagonal()
    grid.free()

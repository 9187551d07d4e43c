"""Algebra of distributed dense matrices, compared with NumPy's of whole ones, on all algorithms' layouts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import some_grids
from distgnn.errors import DisagreementError, UserError
from distgnn.layout import Cut, Layout
from distgnn.operators import ALGORITHMS, grids
from loops import each

from .orders import Permuted

N, F = 29, 7
RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((2, N, F))
COLUMN, ROW = RNG.standard_normal((N, 1)), RNG.standard_normal(F)
MATRIX = sp.random_array((N, N), density=0.2, rng=RNG, format="csr")
ORDER = RNG.permutation(N)

sizes = pytest.mark.ranks(1, 4)


def make_layouts(comm, backend, algorithm):
    """Make layouts of rows in a permuted order, on the grids of :func:`some_grids`."""
    for shape in some_grids(algorithm, comm.size):
        grid = dg.Grid(comm, backend=backend, **shape)
        yield dg.distribute(Permuted(MATRIX, ORDER), grid, algorithm).input_layout
        grid.free()


def check(H, expected, exact=True):
    """Check this rank's block, a copy or not, of a matrix by node."""
    _, (left, right) = H.layout.ranges(expected.shape)
    rows = H.layout.rows.ids(*H.row_range)
    block, part = H.grid.backend.to_host(H.block), expected[rows, left:right]
    assert H.shape == expected.shape and block.dtype == expected.dtype
    if exact:
        np.testing.assert_array_equal(block, part)
    else:
        np.testing.assert_allclose(block, part, rtol=1e-12, atol=1e-12)


def same_bits(grid, array):
    """Check that all ranks have the same bits."""
    assert len(set(grid.world.gather_objects((array.dtype.str, array.shape, array.tobytes())))) == 1


EXPRESSIONS = {
    "arithmetic": lambda H, G, row, column: 2 * H + G / 3 - -H * G,
    "reflected": lambda H, G, row, column: 1 / (H * H + 1) - (3 - G),
    "numbers of NumPy": lambda H, G, row, column: np.float64(2) * H + np.int32(1),
    "functions": lambda H, G, row, column: np.exp(-np.abs(H)) + np.sqrt(np.maximum(G, 0)) + H**2,
    "comparisons": lambda H, G, row, column: H * (H > G) + (H == H) + np.minimum(H, G),
    "row": lambda H, G, row, column: (H - row) / row + row.reshape(1, -1) * G,
    "row first": lambda H, G, row, column: row * H + np.subtract(row, G),
    "column": lambda H, G, row, column: H / column + column * G,
}


@each("expression", EXPRESSIONS)
def expressions_are_numpys(layout, expression):
    compute = EXPRESSIONS[expression]
    H, G, column = (dg.scatter(M, layout) for M in (X, Y, COLUMN))
    check(compute(H, G, ROW, column), compute(X, Y, ROW, COLUMN), exact="functions" not in expression)


def expressions_in_place_and_copies(layout):
    H, G = dg.scatter(X, layout), dg.scatter(Y, layout)
    K, block = H.copy(), H.block
    H += G
    np.multiply(H, 2, out=H)
    assert H.block is block and K.block is not block
    check(H, (X + Y) * 2)
    check(K, X)
    check(H.astype(np.float32), ((X + Y) * 2).astype(np.float32))
    single = G.astype(np.float32)
    expected = Y.astype(np.float32)
    check(single * 2.5 + ROW, expected * np.float32(2.5) + ROW.astype(np.float32))  # keeps its dtype
    check(single + G, expected + Y)


def reductions_are_numpys_on_every_rank(layout):
    M = X.copy()
    M[3, 2], M[4, 3], M[5, 3] = np.nan, np.inf, -np.inf
    for whole in (X, M, X.astype(np.float32), (X * 9).astype(np.int64), X > 0, X[:, :1]):
        H = dg.scatter(whole, layout)
        with np.errstate(invalid="ignore"):
            expected = {
                "sum": (whole.sum(0, dtype=float), whole.sum(dtype=float)),
                "norm": (np.linalg.norm(whole.astype(float), axis=0), np.linalg.norm(whole.astype(float))),
                "max": (whole.max(0), whole.max()),
                "min": (whole.min(0), whole.min()),
            }
            for name, (columns, all_of_it) in expected.items():
                found = getattr(H, name)(axis=0)
                np.testing.assert_allclose(found, columns, rtol=1e-13, atol=1e-13)
                np.testing.assert_allclose(getattr(H, name)(), all_of_it, rtol=1e-13, atol=1e-13)
                same_bits(layout.grid, found)


def reductions_of_rows_are_columns(layout):
    M = X.copy()
    M[3, 2], M[4, 3], M[5, 3] = np.nan, np.inf, -np.inf
    for whole in (X, M, X.astype(np.float32), X[:, :1]):
        H = dg.scatter(whole, layout)
        for name, function in (("sum", np.sum), ("max", np.max), ("min", np.min), ("norm", np.linalg.norm)):
            with dg.Ledger() as ledger, np.errstate(invalid="ignore"):
                found = getattr(H, name)(axis=1)
                expected = function(whole.astype(float), axis=1, keepdims=True).astype(whole.dtype)
            check(found, expected, exact=name in ("max", "min"))
            ranks = layout.grid.count(*layout.col_axes)
            sums = len(found.block) * (2 if name in ("max", "min") else 1)
            assert ledger.words == round(2 * (ranks - 1) * sums / ranks)
    H = dg.scatter(X, layout)
    check(H / H.norm(axis=1), X / np.linalg.norm(X, axis=1, keepdims=True), exact=False)
    assert dg.scatter((X * 9).astype(np.int64), layout).sum(axis=1).dtype == np.float64


@sizes
def test_reductions_of_integers_and_of_nothing(comm, backend):
    grid = dg.Grid(comm, backend=backend, rows=comm.size)
    layout = Layout(grid, Cut(("rows",)), Cut())
    H = dg.scatter(np.array([[2**53 + 1], [-5]]), layout)
    assert (H.max(), H.min()) == (2**53 + 1, -5)
    none = dg.scatter(np.empty((0, 3)), layout)
    assert none.sum(axis=0).tolist() == [0, 0, 0] and none.norm() == 0
    with pytest.raises(ValueError, match="no entries, so it has no maximum"):
        none.max()
    grid.free()


def products_of_tall_matrices(layout):
    H, G = dg.scatter(X, layout), dg.scatter(Y[:, :5], layout)
    for found, expected in ((H.T @ G, X.T @ Y[:, :5]), (H.T @ H, X.T @ X)):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        same_bits(layout.grid, found)
    small = Y[:F, :3]
    check(H @ small, X @ small, exact=False)
    assert (H @ small).layout.same(layout, (N, 3))
    check(G @ np.eye(5), Y[:, :5])
    check((H @ np.zeros((F, 0))), np.zeros((N, 0)))


def words_of_products_are_as_documented(layout):
    """Check sizes that divide evenly: a sum of f k over all ranks, and what is lacking of whole rows."""
    P, c = layout.grid.size, layout.grid.count(*layout.col_axes)
    even = Layout(layout.grid, Cut(layout.row_axes), Cut(layout.col_axes))
    H, G = dg.scatter(np.ones((48, 12)), even), dg.scatter(np.ones((48, 24)), even)
    column = dg.scatter(np.ones((48, 1)), even)
    for compute, reduced, moved in (
        (lambda: H.T @ G, 12 * 24, H.block.size + G.block.size),
        (lambda: H.T @ H, 12 * 12, H.block.size),
        (lambda: H @ np.ones((12, 24)), 0, H.block.size + G.block.size),
        (lambda: H.sum(axis=0), 12, 0),
        (lambda: H.min(axis=0), 2 * 12, 0),
        (lambda: (H + 2) * H, 0, 0),
    ):
        with dg.Ledger() as ledger:
            compute()
        assert ledger.words == 2 * reduced * (P - 1) // P + moved * (c - 1) // c
    with dg.Ledger() as ledger:
        H * column
    assert ledger.words == len(H.block) * (1 - column.block.shape[1])


def qr_has_orthonormal_columns(layout):
    scaled = X @ np.diag(10.0 ** np.arange(F)) + X[:, :1]
    for whole, near in ((scaled, 1e-13), (scaled.astype(np.float32), 1e-6)):
        H = dg.scatter(whole, layout)
        Q, R = H.qr()
        assert Q.layout.same(layout, Q.shape) and Q.dtype == whole.dtype and R.dtype == np.float64
        np.testing.assert_allclose(Q.T @ Q, np.eye(F), atol=near)
        np.testing.assert_array_equal(R, np.triu(R))
        assert (np.diag(R) > 0).all()
        same_bits(layout.grid, R)
        check((Q.astype(float) @ R).astype(whole.dtype) * 0, whole * 0)
        assert ((Q @ R - H) / np.abs(whole).max(axis=0)).norm() < 10 * near
        expected = np.linalg.qr(whole.astype(float))[1]
        np.testing.assert_allclose(
            R, expected * np.sign(np.diag(expected))[:, None], rtol=100 * near, atol=near
        )


def qr_of_dependent_columns_is_refused_on_every_rank(layout):
    repeated, sums = X.copy(), X.copy()
    repeated[:, 4], sums[:, 6] = X[:, 1], X[:, 0] + X[:, 1]
    bad = X.copy()
    bad[0, 0] = np.nan
    for whole in (repeated, sums, bad, X * 0, X[:3]):
        where = Layout(layout.grid, Cut(layout.row_axes), layout.cols)
        with pytest.raises(UserError, match="dependent"):
            dg.scatter(whole, where).qr()


def slices_of_columns(layout):
    H = dg.scatter(X, layout)
    for first, last, step in ((0, F, 1), (2, 5, 1), (None, 3, 1), (3, 4, 1), (-2, None, 1), (5, 2, 1),
                              (6, 99, None), (None, None, 2), (1, 6, 3), (5, 2, 2),
                              (4, None, 9)):  # fmt: skip
        with dg.Ledger() as ledger:
            part = H[:, first:last:step]
        expected = np.ascontiguousarray(X[:, first:last:step])
        check(part, expected)
        assert part.layout.same(Layout(layout.grid, layout.rows, Cut(layout.col_axes)), part.shape)
        mine = np.arange(F)[first:last:step][slice(*part.col_range)]
        left, right = H.col_range
        assert ledger.words == len(part.block) * np.count_nonzero((mine < left) | (mine >= right))
        part.block[...] = 0
    check(H, X)


def gather_on_another_rank(layout):
    last = layout.grid.size - 1
    whole = dg.gather(dg.scatter(X, layout), root=last)
    with layout.grid.world.together():
        assert (whole is None) == (layout.grid.rank != last)
        if whole is not None:
            np.testing.assert_array_equal(whole, X)


ALGEBRA = [
    expressions_are_numpys,
    expressions_in_place_and_copies,
    reductions_are_numpys_on_every_rank,
    products_of_tall_matrices,
    words_of_products_are_as_documented,
    qr_has_orthonormal_columns,
    qr_of_dependent_columns_is_refused_on_every_rank,
    slices_of_columns,
    reductions_of_rows_are_columns,
    gather_on_another_rank,
]


@each("statement", ALGEBRA)
def check_that(layout, statement):
    """Check what the function says, on this layout."""
    statement(layout=layout)


@sizes
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algebra_is_numpys(comm, backend, algorithm):
    for layout in make_layouts(comm, backend, algorithm):
        check_that(layout=layout)


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("algorithm", ["2d", "3d"])
def test_messages_of_real_sizes(comm, algorithm):
    """Blocks of megabytes, of uneven rows and columns."""
    grid = dg.Grid(comm, backend="numpy", **grids(algorithm, comm.size)[0])
    axes = tuple(grid.shape)
    whole = np.random.default_rng(1).standard_normal((30011, 37))
    H = dg.scatter(whole, Layout(grid, Cut(axes[:1]), Cut(axes[1:])))
    np.testing.assert_allclose(H.T @ H, whole.T @ whole, rtol=1e-10, atol=1e-9)
    check(H @ whole[:37], whole @ whole[:37], exact=False)
    check(H[:, 5:31] * whole[:26, 0] + H[:, 36:], whole[:, 5:31] * whole[:26, 0] + whole[:, 36:])
    Q, R = H.qr()
    np.testing.assert_allclose(Q.T @ Q, np.eye(37), atol=1e-12)
    assert abs(Q @ R - H).max() < 1e-10
    grid.free()


WRONG = {
    "text": (TypeError, "expected a number, an array or a DistDense", lambda H, G: H + "a"),
    "nothing": (TypeError, "expected a number, an array", lambda H, G: None * H),
    "sparse": (TypeError, "expected a number, an array", lambda H, G: H * MATRIX),
    "long row": (ValueError, r"expected shape \(7,\), a number for each column", lambda H, G: H * X[0, :2]),
    "whole array": (ValueError, "expected shape", lambda H, G: X * H),
    "complex": (UserError, "complex", lambda H, G: H * (ROW + 1j)),
    "shapes": (ValueError, "are not cut alike; redistribute", lambda H, G: H * H[:, :3]),
    "layouts": (ValueError, "are not cut alike; redistribute", lambda H, G: H * G),
    "columns": (ValueError, "are not cut alike; redistribute", lambda H, G: H * G[:, :1]),
    "in place": (ValueError, "are not cut alike; redistribute", lambda H, G: np.add(H, 1, out=G)),
    "into an array": (TypeError, "does not fit into ndarray", lambda H, G: np.add(H, 1, out=X.copy())),
    "array": (TypeError, r"gather\(H\) gives one rank the whole", lambda H, G: np.asarray(H)),
    "norm": (TypeError, r"gather\(H\) gives", lambda H, G: np.linalg.norm(H)),
    "reduce": (TypeError, r"np.add.reduce does not take", lambda H, G: np.add.reduce(H)),
    "two results": (TypeError, "np.modf does not take", lambda H, G: np.modf(H)),
    "array @": (TypeError, "np.matmul does not take", lambda H, G: X.T @ H),
    "truth": (ValueError, "neither true nor false", lambda H, G: bool(H == H)),
    "tall @ tall": (TypeError, "one must be small", lambda H, G: H @ H),
    "small": (ValueError, r"expected \(7, k\)", lambda H, G: H @ np.ones((3, 3))),
    "vector": (ValueError, r"expected \(7, k\)", lambda H, G: H @ ROW),
    "no small": (TypeError, "expected a number, an array", lambda H, G: H @ None),
    "T of an array": (TypeError, "scatter makes one", lambda H, G: H.T @ X),
    "T of others": (ValueError, "are not cut alike; redistribute", lambda H, G: H.T @ G),
    "T of another dtype": (ValueError, "two dtypes; G.astype", lambda H, G: H.T @ H.astype(np.float32)),
    "T of integers": (ValueError, "products are of floats", lambda H, G: (H > 0).T @ (H > 0)),
    "axis": (UserError, "axis=2: expected 0", lambda H, G: H.sum(axis=2)),
    "rows": (TypeError, r"expected H\[:, first:last:step\]", lambda H, G: H[2:4]),
    "one column": (TypeError, r"expected H\[:, first:last:step\]", lambda H, G: H[:, 3]),
    "step": (TypeError, r"expected H\[:, first:last:step\]", lambda H, G: H[:, ::-1]),
    "dtype": (UserError, "complex", lambda H, G: H.astype(complex)),
    "root": (UserError, "root=99: expected a rank", lambda H, G: dg.gather(H, root=99)),
}


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_line_on_every_rank(comm, backend, case):
    kind, problem, compute = WRONG[case]
    grid = dg.Grid(comm, backend=backend, rows=comm.size)
    H = dg.scatter(X, Layout(grid, Cut(("rows",)), Cut()))
    G = dg.scatter(X, Layout(grid, Cut((), np.array([0, N])), Cut(("rows",))))
    with pytest.raises(kind, match=problem) as caught:
        compute(H, G)
    assert "\n" not in str(caught.value) and "float() argument" not in str(caught.value)
    grid.free()


@pytest.mark.ranks(3)
def test_arrays_that_differ_between_ranks_are_refused(comm, backend):
    grid = dg.Grid(comm, backend=backend, rows=comm.size)
    H = dg.scatter(X, Layout(grid, Cut(("rows",)), Cut()))
    for compute in (
        lambda: H + ROW * comm.rank,
        lambda: H @ np.full((F, 2), comm.rank),
        lambda: H * [comm.rank] * F,
    ):
        with pytest.raises(DisagreementError):
            compute()
    with pytest.raises(DisagreementError, match="root is 0 on rank 0"):
        dg.gather(H, root=comm.rank)
    grid.free()

"""Krylov methods on cut vectors beside SciPy's on whole ones: results, iterations, and words as priced."""

from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse import linalg

import distgnn as dg
from distgnn.errors import UserError
from distgnn.krylov import cg, lanczos, lobpcg
from distgnn.krylov.vectors import dots
from distgnn.operators import ALGORITHMS, grids
from distgnn.operators.prices import relaid
from distgnn.operators.tall import whole_rows

N, K = 211, 3
RNG = np.random.default_rng(11)
HALF = sp.random_array((N, N), density=0.02, rng=RNG, format="csr")
#: Symmetric positive definite, with six large eigenvalues that lie apart.
DIAGONAL = np.append(RNG.uniform(3, 4, N - 6), 10.0 * np.arange(1, 7))
MATRIX = sp.csr_array((HALF + HALF.T) / 2 + sp.diags_array(DIAGONAL))
EXACT = np.linalg.eigvalsh(MATRIX.toarray())
X = RNG.standard_normal((N, K))
WAYS = [*((name, False) for name in ALGORITHMS), ("1d", True), ("1.5d", "cover"), ("rdm", True)]

ways = pytest.mark.parametrize(("name", "aware"), WAYS)


def made(comm, name, aware=False, backend="numpy", matrix=MATRIX):
    """Make the operator on the most even grid."""
    sizes = min(grids(name, comm.size), key=lambda sizes: max(sizes.values()))
    return dg.distribute(matrix, dg.Grid(comm, backend=backend, **sizes), name, aware)


class Words:
    """Words that a rank should receive: of products by so many columns, and of sums and small arrays."""

    def __init__(self, A, cut):
        self.A, self.cut, self.total = A, cut, Fraction(0)

    def moved(self, source, target, columns):
        self.total += relaid(source, target, (N, columns)).words

    def products(self, number, columns):
        for _ in range(number):
            self.moved(self.cut, self.A.input_layout, columns)
            self.total += self.A.prices.product(columns).words
            self.moved(self.A.output_layout, self.cut, columns)

    def summed(self, words):
        self.total += Fraction(2 * (self.A.grid.size - 1) * words, self.A.grid.size)

    def from_first(self, words):
        self.total += words if self.A.grid.rank else 0


def gathered(H):
    """Return the whole matrix on every rank."""
    return H.grid.world.share(dg.gather(H))


@pytest.mark.ranks(1, 4)
@ways
def test_conjugate_gradients(comm, name, aware):
    A = made(comm, name, aware)
    b, counts = dg.scatter(X, A.input_layout), []
    np.testing.assert_allclose(dots((b, b), (b, 2 * b)), np.outer([1, 2], (X * X).sum(axis=0)))
    with dg.Ledger() as ledger:
        x, info = cg(A, b, rtol=1e-9, callback=counts.append)
    assert info == 0 and x.layout.same(A.input_layout, (N, K))
    found = gathered(x)
    np.testing.assert_allclose(MATRIX @ found, X, atol=1e-9 * np.linalg.norm(X, axis=0).max())
    most = 0
    for column in range(K):
        theirs, _ = linalg.cg(MATRIX, X[:, column], rtol=1e-9, callback=(steps := []).append)
        np.testing.assert_allclose(found[:, column], theirs, atol=1e-9)
        most = max(most, len(steps))
    assert abs(len(counts) - most) <= 1
    expected = Words(A, A.input_layout)
    expected.products(len(counts), K)
    expected.summed((2 * len(counts) + 2) * K)
    assert ledger.words == round(expected.total)
    A.grid.free()


@pytest.mark.ranks(1, 4)
@ways
def test_lanczos(comm, name, aware):
    A, m = made(comm, name, aware), 24
    v0, rows = dg.scatter(X[:, 0], A.input_layout), whole_rows(A.input_layout, N)
    with dg.Ledger() as ledger:
        values, V = lanczos(A, 4, v0=v0, ncv=m, tol=1e-9)
    np.testing.assert_allclose(values, linalg.eigsh(MATRIX, 4, v0=X[:, 0])[0], rtol=1e-9)
    whole = gathered(V)
    np.testing.assert_allclose(MATRIX @ whole, whole * values, atol=1e-6)
    np.testing.assert_allclose(whole.T @ whole, np.eye(4), atol=1e-12)
    expected = Words(A, rows)  # of one basis, without restarts
    expected.moved(A.input_layout, rows, 1)
    expected.products(m, 1)
    expected.summed(1 + sum(2 * (j + 1) + 1 for j in range(m)))
    expected.from_first(m * (m + 1))
    expected.moved(rows, A.input_layout, 4)
    assert ledger.words == round(expected.total)
    A.grid.free()


@pytest.mark.ranks(1, 6)
@ways
def test_lobpcg(comm, name, aware):
    A, steps = made(comm, name, aware), 3
    start, rows = dg.scatter(X, A.input_layout), whole_rows(A.input_layout, N)
    with dg.Ledger() as ledger, pytest.warns(UserWarning, match="not reaching the requested tolerance 0"):
        lobpcg(A, start, tol=0, maxiter=steps)
    expected = Words(A, rows)
    expected.moved(A.input_layout, rows, K)
    expected.products(1 + steps, K)
    widths = [K, *(min(step + 2, 3) * K for step in range(steps))]  # of bases: X, then with W, then with P
    squares = 2 * K**2 + sum(width**2 for width in widths)
    beside = sum(width - K for width in widths[1:])  # what W is orthogonal to
    expected.summed(squares + 2 * K * beside + 2 * steps * K**2 + (1 + steps) * K)
    expected.from_first(sum((1 + width) * 2 * K for width in widths) + 2 * steps * K**2)
    expected.moved(rows, A.input_layout, K)
    assert ledger.words == round(expected.total)
    values, V = lobpcg(A, start, tol=1e-7, maxiter=60)
    theirs, _ = linalg.lobpcg(MATRIX, X.copy(), tol=1e-7, maxiter=60)
    np.testing.assert_allclose(values, theirs, rtol=1e-10)
    whole = gathered(V)
    assert (np.linalg.norm(MATRIX @ whole - whole * values, axis=0) < 2e-7).all()
    np.testing.assert_allclose(whole.T @ whole, np.eye(K), atol=1e-12)
    A.grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_dtypes_and_backends_with_preconditioners(comm, backend, dtype):
    """Restarts, the smallest eigenvalues, a start near the solution, sums of operators."""
    matrix, near = MATRIX.astype(dtype), 2e-3 if dtype == np.float32 else 1e-7
    A = made(comm, "2d", backend=backend, matrix=matrix)
    inverse = 1 / A.diagonal().redistribute(A.input_layout)
    jacobi = lambda H: H * inverse  # noqa: E731
    exact = np.linalg.solve(MATRIX.toarray(), X)
    shifted = A + 2 * dg.I
    b, x0 = dg.scatter(X, A.input_layout, dtype), dg.scatter(exact * 0.9, A.input_layout, dtype)
    for M in (None, jacobi):
        x, info = cg(A, b, x0, rtol=near / 10, M=M)
        assert info == 0 and x.dtype == dtype
        np.testing.assert_allclose(gathered(x), exact, atol=near)
    values, V = lanczos(shifted, 3, ncv=8, tol=near / 10, which="LA")
    np.testing.assert_allclose(values, EXACT[-3:] + 2, rtol=near)
    assert V.dtype == dtype
    start = dg.random((N, K), A.input_layout, dtype)
    values, V = lobpcg(A, start, jacobi, tol=near * 3, maxiter=150, largest=False)
    np.testing.assert_allclose(values, EXACT[:K], rtol=near)
    assert V.layout.same(A.input_layout, (N, K)) and V.dtype == dtype
    A.grid.free()


@pytest.mark.ranks(1, 3)
def test_breakdown_and_what_does_not_converge(comm):
    A = made(comm, "1d")
    b = dg.scatter(X, A.input_layout)
    x, info = cg(A, b, maxiter=2)
    assert info == 2 and (A @ x - b).norm() < b.norm()
    nothing, info = cg(A, 0 * b, x0=b)
    assert info == 0 and nothing.norm() == 0
    mixed = b * np.array([1.0, 0.0, 1.0])  # a column that has converged from the first on
    x, info = cg(A, mixed, rtol=1e-9)
    assert info == 0 and (A @ x - mixed).norm() < 1e-6
    assert (x.norm(axis=0) > 0).tolist() == [True, False, True]
    turned = dg.distribute(sp.diags_array(np.where(np.arange(N) % 2, 1.0, -1.0)[: N - 1]), A.grid, "1d")
    ones = dg.ones(N - 1, turned.input_layout)
    assert cg(turned, ones)[1] == -1  # pᵀ A p = 0
    assert cg(A, b * np.nan)[1] == -1
    with pytest.raises(linalg.ArpackNoConvergence, match=r"\(1 restarts, ./3 eigenvectors") as caught:
        lanczos(A, 3, which="SA", ncv=5, maxiter=1)
    assert len(caught.value.eigenvalues) == caught.value.eigenvectors.shape[1] < 3
    A.grid.free()


@pytest.mark.ranks(1, 3)
def test_invariant_spaces_and_multiple_eigenvalues(comm):
    """Lanczos goes on with another vector; LOBPCG stops where nothing is left to add."""
    repeated = np.repeat([1.0, 2.0, 5.0, 9.0], [20, 10, 3, 2])
    n = repeated.size
    A = made(comm, "1d", matrix=sp.diags_array(repeated, format="csr"))
    values, V = lanczos(A, 5, which="LA", ncv=n)
    np.testing.assert_allclose(values, [5, 5, 5, 9, 9], atol=1e-10)
    assert abs(V.T @ V - np.eye(5)).max() < 1e-10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values, V = lobpcg(A, dg.random((n, 4), A.input_layout), tol=1e-9, maxiter=30)
    np.testing.assert_allclose(values, [9, 9, 5, 5], atol=1e-8)
    A.grid.free()


@pytest.mark.ranks(3)
def test_bad_input_is_one_line_on_every_rank(comm):
    A = made(comm, "1d")
    wide = dg.distribute(HALF[:, :99], A.grid, "1d")
    b = dg.scatter(X, A.input_layout)
    for kind, problem, call in (
        (UserError, "A=csr_array: expected an operator", lambda: cg(MATRIX, b)),
        (UserError, "b=ndarray: expected a DistDense", lambda: cg(A, X)),
        (UserError, "b=211 x 3 float32: expected 211 rows of float64", lambda: cg(A, b.astype(np.float32))),
        (UserError, "M=float: expected an operator", lambda: cg(A, b, M=2.0)),
        (ValueError, "expected a square matrix", lambda: cg(wide, b)),
        (UserError, "k=211: expected 1 to 210", lambda: lanczos(A, N)),
        (UserError, "ncv=4: expected 5 to 211", lambda: lanczos(A, 3, ncv=4)),
        (UserError, "which=BE: expected one of LM, SM", lambda: lanczos(A, 3, "BE")),
        (UserError, "v0=zero", lambda: lanczos(A, 3, v0=0 * b[:, :1])),
        (UserError, "v0=211 x 3", lambda: lanczos(A, 3, v0=b)),
        (ValueError, "is not finite", lambda: lanczos(A, 3, v0=b[:, :1] * np.inf)),
        (UserError, "columns are dependent", lambda: lobpcg(A, b * 0)),
    ):
        with pytest.raises(kind, match=problem) as caught:
            call()
        assert "\n" not in str(caught.value)
    A.grid.free()

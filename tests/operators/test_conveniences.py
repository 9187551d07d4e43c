"""Conveniences of operators and matrices beside products: their text, their counts, sums and norms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import cg

import distgnn as dg
from distgnn.operators import ALGORITHMS, grids

A = sp.random_array((10, 10), density=0.4, rng=np.random.default_rng(2), format="csr")
X = np.random.default_rng(3).standard_normal((10, 3))


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("place", [0, -1], ids=["first-grid", "last-grid"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sums_norms_and_counts_are_those_of_the_whole(comm, backend, algorithm, place) -> None:
    grid = dg.Grid(comm, backend=backend, **grids(algorithm, comm.size)[place])  # the last has most replicas
    op = dg.distribute(A, grid, algorithm)
    H = dg.scatter(X, op.input_layout)
    assert op.nnz == op.T.nnz == A.nnz
    assert H.norm() == pytest.approx(np.linalg.norm(X)) and H.sum() == pytest.approx(X.sum())
    found = dg.gather(np.float64(2) * (H + H) - H * 0.5 + -H)
    if comm.rank == 0:
        assert found == pytest.approx(2.5 * X)
    assert f"<{algorithm} 10 x 10 float64; input: rows" in repr(op) and "10 x 3 float64" in repr(H)
    grid.free()


@pytest.mark.ranks(1, 4)
def test_what_is_not_cut_alike_is_not_added(comm) -> None:
    grid = dg.Grid(comm, backend="numpy", rows=comm.size)
    layout = dg.distribute(A, grid, "1d").input_layout
    with pytest.raises(ValueError, match="are not cut alike"):
        dg.scatter(X, layout) + dg.scatter(X[:, :2], layout)
    blocks = dg.LocalBlocks((10, 10), [(layout.row_range, (0, 10), A[slice(*layout.row_range)])])
    assert dg.distribute(blocks, grid, "1d").nnz == A.nnz
    grid.free()


@pytest.mark.ranks(1)
def test_on_one_rank_arrays_are_multiplied(comm) -> None:
    op = dg.distribute(A, dg.Grid(comm, backend="numpy", rows=1), "1d")
    assert op @ X == pytest.approx(A @ X) and op.T @ X[:, 0] == pytest.approx(A.T @ X[:, 0])
    definite = dg.distribute(A @ A.T + sp.eye_array(10), op.grid, "1d").aslinearoperator()
    solution, failed = cg(definite, X[:, 0], rtol=1e-10)
    assert not failed and definite @ solution == pytest.approx(X[:, 0])
    assert definite.rmatvec(solution) == pytest.approx(X[:, 0])

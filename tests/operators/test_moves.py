"""Moves: the page's algorithm has every operation, and its operation runs on every algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
import documents
from chosen_grids import some_grids
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.operators.sources import MatrixSource

from .counts import check_price
from .test_edges import compare, everywhere, matrix, numbers

WAYS = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]
PAGE = documents.read(Path(__file__).parents[2] / "docs/extending.md")


def names_of(file: str) -> dict[str, Any]:
    """Return the names that a program of the page on extending defines."""
    found: dict[str, Any] = {"__name__": file}
    exec(compile(PAGE.files[file], file, "exec"), found)
    return found


@pytest.mark.ranks(1, 2, 3, 4)
def test_an_algorithm_of_the_page_has_every_operation(comm) -> None:
    r, Gathered = np.random.default_rng(5), names_of("gathered.py")["Gathered"]
    for n, heads, width in ((41, 3, 12), (150, 2, 16)):  # messages below and above the eager limit
        M = matrix(r, n)
        grid = dg.Grid(comm, backend="numpy", all=comm.Get_size())
        A = dg.DistSparse(Gathered(grid, MatrixSource(M)))
        X = r.standard_normal((n, width))
        H, G = dg.scatter(X, A.input_layout), dg.scatter(X, A.output_layout)
        np.testing.assert_allclose(everywhere(comm, A @ H), M @ X, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(everywhere(comm, A.T @ G), M.T @ X, rtol=1e-12, atol=1e-12)
        check_price(lambda A=A, H=H: A @ H, A.prices.product(width))
        check_price(lambda A=A, G=G: A.T @ G, A.prices.adjoint(width))
        check_price(lambda A=A, H=H, G=G: A.sddmm(G, H), A.prices.sddmm(width))
        compare(comm, A, M, r, heads, width)
        pattern = (M != 0).astype(float)
        Y, picked = A.aggregate(H, "max", keep=True)
        best = np.stack([X[row].max(axis=0) if row.size else np.zeros(width)
                         for row in np.split(M.indices, M.indptr[1:-1])])  # fmt: skip
        np.testing.assert_array_equal(everywhere(comm, Y), best)
        back = everywhere(comm, A.aggregate_back(G, picked))
        assert back.sum() == pytest.approx((X * (pattern.sum(axis=1) > 0)[:, None]).sum())


@pytest.mark.ranks(1, 3, 4, 6)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_an_operation_of_the_page_runs_on_every_algorithm(comm, name, aware) -> None:
    r, distances = np.random.default_rng(6), names_of("distances.py")["distances"]
    M = matrix(r, 90)
    U, V = r.standard_normal((2, 90, 24))
    expected = ((U[:, None] - V[None]) ** 2).sum(axis=2) * (M.toarray() != 0)
    for sizes in some_grids(name, comm.Get_size()):
        A = dg.distribute(M, make_grid(comm, name, sizes, backend="numpy"), name, aware)
        ends = dg.scatter(U, A.output_layout), dg.scatter(V, A.input_layout)
        E = distances(A, *ends)
        check_price(lambda A=A, ends=ends: distances(A, *ends), A.prices.sddmm(24), str(sizes))
        np.testing.assert_allclose(numbers(comm, E)[:, :, 0], expected, rtol=1e-12, err_msg=str(sizes))

"""Operators whose nodes were permuted: layouts carry the order, and no product sends more for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.operators import ALGORITHMS, make_grid

from .orders import Permuted

N, WIDTH = 29, 3


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_ledger_does_not_change(comm: Any, name: str, backend: Any) -> None:
    """Scatter, both products and gather charge the same, and the results are by node."""
    r = np.random.default_rng(0)
    p, q = r.permutation(N), r.permutation(N)
    A = sp.csr_array(np.where(r.random((N, N)) < 0.3, r.standard_normal((N, N)), 0))
    B, X = sp.csr_array(A.toarray()[np.argsort(p)][:, np.argsort(q)]), r.standard_normal((N, WIDTH))
    grid, ledgers, found = wide_grid(comm, name, backend), [], []
    for matrix in (A, Permuted(B, p, q)):  # the same blocks on every rank
        operator = dg.distribute(matrix, grid, name)
        with dg.Ledger() as ledger:
            H, G = dg.scatter(X, operator.input_layout), dg.scatter(X, operator.output_layout)
            found.append([dg.gather(product) for product in (operator @ H, operator.T @ G)])
        ledgers.append(ledger.entries())
    assert ledgers[0] == ledgers[1]
    if grid.rank == 0:
        np.testing.assert_allclose(found[1][0], B @ X, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[1][1], B.T @ X, rtol=1e-10, atol=1e-12)
    grid.free()


@pytest.mark.ranks(2)
def test_large_results_have_no_second_copy(comm: Any) -> None:
    """Rank 0 puts the rows of one rank in order at a time, and other ranks know their own rows only."""
    asked, n = [], 64
    p = np.random.default_rng(0).permutation(n)
    source = Permuted(sp.eye_array(n, format="csr"), p)
    order = source.row_order
    watched = lambda first, last: asked.append((first, last)) or order.permutation(first, last)  # noqa: E731
    source.row_order = source.col_order = dg.layout.NodeOrder(order.name, order.key, watched)
    grid = make_grid(comm, "1d")
    A = dg.distribute(source, grid, "1d")
    dg.gather(A @ dg.scatter(np.ones((n, 1)), A.input_layout))
    dg.nn.GCN(A, [1, 1])
    assert asked == ([(0, n), (0, n), (0, n // 2)] if grid.rank == 0 else [(n // 2, n)])
    grid.free()

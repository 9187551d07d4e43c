"""Dense matrices from one layout to another."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import distgnn as dg
from distgnn.arrays.tuning import TUNING
from distgnn.gallery import rmat
from distgnn.layout import Cut, Layout, NodeOrder
from distgnn.operators import distribute, make_grid
from distgnn.operators.dense import DistDense
from distgnn.operators.relayout import relayout

N, F = 23, 7


def layouts(grid):
    """List every cut of rows and columns over the axes, copies along the rest, and rows in uneven blocks."""
    axes = tuple(grid.shape)
    cuts = ((), axes[:1], axes[1:], axes, axes[::-1])
    found = [Layout(grid, Cut(r), Cut(c)) for r, c in product(cuts, cuts) if not {*r} & {*c}]
    uneven = np.minimum(np.arange(grid.size + 1) ** 2 * 2, N)
    uneven[-1] = N
    return [*found, Layout(grid, Cut(axes, uneven), Cut())]


@pytest.mark.ranks(1, 3, 4, 6)
def test_every_layout_becomes_every_other(comm, backend):
    """Numbers are the same, the matrix before is left alone, and only what a rank lacks is charged."""
    size = comm.Get_size()
    grid = dg.Grid(
        comm, backend=backend, rows=2 if size % 2 == 0 else size, cols=size // 2 if size % 2 == 0 else 1
    )
    X = np.arange(N * F, dtype=np.float64).reshape(N, F)
    for source, target in product(layouts(grid), repeat=2):
        H = dg.scatter(X, source)
        with dg.Ledger() as ledger:
            moved = H.redistribute(target)
        (top, bottom), (left, right) = target.ranges(X.shape)
        np.testing.assert_array_equal(backend.to_host(moved.block), X[top:bottom, left:right])
        assert moved.layout is target and moved.block is not H.block
        (above, below), (before, after) = source.ranges(X.shape)
        np.testing.assert_array_equal(backend.to_host(H.block), X[above:below, before:after])
        held = max(min(bottom, below) - max(top, above), 0) * max(min(right, after) - max(left, before), 0)
        assert ledger.words == (bottom - top) * (right - left) - held
    grid.free()


@pytest.mark.ranks(1, 4)
def test_what_cannot_be_is_refused_on_every_rank(comm, backend):
    grid, other = (dg.Grid(comm, backend=backend, rows=comm.Get_size()) for _ in range(2))
    H = dg.scatter(np.ones((N, F)), Layout(grid, Cut(("rows",)), Cut()))
    parts = np.arange(comm.Get_size() + 1) * 5
    backwards = NodeOrder("backwards", "backwards", lambda first, last: N - 1 - np.arange(first, last))
    for layout, problem in (
        (Layout(other, Cut(), Cut()), "another grid"),
        (Layout(grid, Cut(("rows",), parts), Cut()), f"cuts {parts[-1]} rows"),
        (Layout(grid, Cut(order=backwards), Cut()), "another order"),
        (Cut(), "expected a Layout"),
    ):
        with pytest.raises(dg.UserError, match=problem):
            dg.redistribute(H, layout)
    with pytest.raises(ValueError, match="are in different orders"):
        relayout(H, DistDense.empty(Layout(grid, Cut(order=backwards), Cut()), H.shape, H.dtype))
    for free in (grid, other):
        free.free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("aware", [False, True, "cover"])
def test_what_a_product_needs_is_loaded_before_columns_travel(comm, aware, monkeypatch):
    """A rank that loads with all others sends none of its columns that are left meanwhile."""
    monkeypatch.setattr(TUNING, "exchange_sends", 1)
    A = rmat(4096, degree=4, directed=True, features=0, classes=0).A.astype(np.float32)
    X = np.random.default_rng(0).standard_normal((A.shape[0], 64)).astype(np.float32)
    for cols in (4, 2):
        for _ in range(3):
            grid = make_grid(comm, "rdm", {"cols": cols})
            operator = distribute(A, grid, "rdm", aware)
            for times, B in ((operator.T, A.T), (operator, A)):
                Y = dg.gather(times @ dg.scatter(X, times.input_layout))
                if comm.rank == 0:
                    np.testing.assert_allclose(Y, B @ X, rtol=1e-4, atol=1e-4)
            grid.free()

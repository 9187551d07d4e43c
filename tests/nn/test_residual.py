"""Residual connections, layer norm and clipped gradients: every algorithm against the serial reference."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.layout import Cut, Layout
from distgnn.nn import SageMean
from distgnn.nn.norm import LayerNorm
from distgnn.nn.products import TRANSFORM
from distgnn.nn.whole_weights import collect
from distgnn.operators import make_grid
from distgnn.operators.relayout import relayout

from ..operators.orders import Permuted
from .problem import ALGORITHMS, Problem

PROBLEM = Problem()
#: Layer 0 and layer 2 have an input as wide as their output; layer 3 as well, which is the last.
DEEP = {"hidden": (11, 5, 5), "residual": True, "layer_norm": True}


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_the_reference(comm, name, backend):
    """SGD hides no factor in a gradient; every step's gradient is clipped, that of the features with it."""
    how = {"optimizer": "sgd", "lr": 2.0, "clip": 0.1, "dropout": 0.3, "bias": True}
    PROBLEM.compare(wide_grid(comm, name, backend), name, epochs=2, train_features=True, **how, **DEEP)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1.5d", "2d"])
def test_so_it_does_transform_first(comm, name, backend):
    PROBLEM.compare(wide_grid(comm, name, backend), name, epochs=2, product_order=TRANSFORM, **DEEP)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "2d"])
def test_so_it_does_without_norm(comm, name, backend):
    """ReLU and dropout are of the sum, with the bias and H."""
    how = DEEP | {"layer_norm": False, "bias": True, "dropout": 0.3, "product_order": TRANSFORM}
    PROBLEM.compare(wide_grid(comm, name, backend), name, epochs=2, **how)


@pytest.mark.ranks(1, 6)
def test_graphsage_adds_its_input_before_the_norm(comm, backend):
    grid = wide_grid(comm, "2d", backend)
    A = abs(PROBLEM.A)
    model = SageMean(dg.distribute(A, grid, "2d"), [11, 11, 5], residual=True, layer_norm=True)
    Z = dg.gather(model.forward(dg.scatter(PROBLEM.X, model.input_layout)))
    (first, last), mean = model.get_weights(), A.toarray() / A.sum(axis=1)[:, None]
    H = np.hstack([PROBLEM.X, mean @ PROBLEM.X]) @ first + PROBLEM.X
    H = (H - H.mean(axis=1, keepdims=True)) / np.sqrt(H.var(axis=1, keepdims=True) + 1e-5)
    H = np.maximum(H, 0)
    if grid.rank == 0:
        np.testing.assert_allclose(Z, np.hstack([H, mean @ H]) @ last, rtol=1e-9, atol=1e-11)


@pytest.mark.ranks(1, 4)
def test_layer_norm_of_rows_that_are_nearly_constant(comm, backend):
    """Far from zero, single precision, fewer columns than ranks: no digits are lost to the mean's square."""
    grid = make_grid(comm, "2d", backend=backend)
    layout = Layout(
        grid, Cut(("rows",), np.linspace(0, 7, grid.shape["rows"] + 1, dtype=int)), Cut(("cols",))
    )
    X = (4096 + np.random.default_rng(0).random((7, 2))).astype(np.float32)
    Z, norm = dg.scatter(X, layout), LayerNorm(layout, 2, np.float32)
    norm.gain.block *= 3
    norm.shift.block += 1
    norm.normalize(Z)
    norm.apply(Z, Z)
    exact = X.astype(np.float64)
    exact = (exact - exact.mean(axis=1, keepdims=True)) / np.sqrt(exact.var(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(collect(Z), 3 * exact + 1, rtol=1e-4, atol=1e-4)


@pytest.mark.ranks(1, 4, 6)
def test_a_matrix_is_cut_another_way(comm, backend):
    """Uneven, with empty blocks, between any two layouts of a grid; every rank gets each number once."""
    grid = dg.Grid(comm, backend=backend, z=2 if comm.size % 2 == 0 else 1, x=max(comm.size // 2, 1), y=1)
    parts = np.array([*[0, 1, 5, 5][: grid.shape["x"]], 5])
    over_x, whole = Cut(("x",), parts), Cut((), np.array([0, 5]))
    cuts = [(over_x, Cut(("z",))), (over_x, Cut()), (whole, Cut(("z", "x"))), (whole, Cut())]
    layouts = [Layout(grid, rows, cols) for rows, cols in cuts]
    X = np.random.default_rng(1).random((5, 7))
    for source in layouts:
        for target in layouts:
            with dg.Ledger() as ledger:
                out = relayout(dg.scatter(X, source), dg.DistDense.empty(target, X.shape, X.dtype), "moved")
            (top, bottom), (left, right) = out.layout.ranges(X.shape)
            np.testing.assert_array_equal(backend.to_host(out.block), X[top:bottom, left:right])
            words = sum(entry["words"] for entry in ledger.entries() if entry["matrix"] == "moved")
            assert words <= out.block.size and (words == 0 or not source.same(target, X.shape))


@pytest.mark.ranks(1, 4)
def test_residual_connections_that_cannot_be_are_refused(comm, backend):
    grid = make_grid(comm, "3d", backend=backend)
    with pytest.raises(dg.UserError, match=r"residual=True: no layer but the last .* widths \[11, 8, 5\]"):
        PROBLEM.model(grid, "3d", hidden=(8,), residual=True)
    here, there = np.arange(PROBLEM.n), np.arange(PROBLEM.n)[::-1].copy()
    even, odd = Permuted(PROBLEM.A, here, there), Permuted(PROBLEM.A, there, here)
    A = dg.distribute(even, grid, "3d", odd=odd)
    with pytest.raises(dg.UserError, match="residual=True: layers give nodes in another order"):
        dg.nn.GCN(A, [11, 11, 5], residual=True)
    dg.nn.GCN(A, [11, 11, 5], layer_norm=True)

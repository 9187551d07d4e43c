"""GraphSAGE on the whole graph: every algorithm against the formula, gradients against finite differences."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import each_grid
from distgnn.nn import Adam, SageMean
from distgnn.operators import make_grid
from distgnn.split import TRAIN
from distgnn.store.read.neighbours import Neighbours
from distgnn.train import train
from oracle_scores import labelled, softmax_cross_entropy

from .problem import ALGORITHMS, Problem, central_differences

PROBLEM = Problem()
ABLE = [name for name in ALGORITHMS if name != "3d"]
WIDTHS = [PROBLEM.width, 6, PROBLEM.classes]


def weighted() -> sp.csr_array:
    """Make a directed matrix without loops, with positive weights; the first vertex has no neighbours."""
    A = abs(PROBLEM.A).tolil()
    A.setdiag(0)
    A[0] = 0
    A = sp.csr_array(A)
    A.eliminate_zeros()
    return A


A = weighted()
SUMS = np.asarray(A.sum(axis=1)).reshape(-1)
MEAN = A.toarray() / np.where(SUMS == 0, 1, SUMS)[:, None]


def problem(grid: dg.Grid, name: str, **options: Any) -> tuple[SageMean, Any, Any]:
    model = SageMean(dg.distribute(A, grid, name), WIDTHS, bias=True, **options)
    targets = model.targets(PROBLEM.labels, PROBLEM.split)
    return model, dg.scatter(PROBLEM.X, model.input_layout), targets


def logits(
    weights: list[np.ndarray], biases: list[np.ndarray], X: np.ndarray = PROBLEM.X, elu: bool = False
) -> np.ndarray:
    H = X
    for layer, (W, b) in enumerate(zip(weights, biases, strict=True)):
        H = np.maximum(H, np.expm1(np.minimum(H, 0)) if elu else 0) if layer else H
        H = np.hstack([H, MEAN @ H]) @ W + b
    return H


def loss(
    weights: list[np.ndarray], biases: list[np.ndarray], X: np.ndarray = PROBLEM.X, elu: bool = False
) -> float:
    rows = labelled(PROBLEM.labels, PROBLEM.split, TRAIN)
    return softmax_cross_entropy(logits(weights, biases, X, elu), PROBLEM.labels, rows)[0]


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("name", ABLE)
@pytest.mark.slow
def test_logits_and_gradients(comm: Any, name: str, backend: Any) -> None:
    for number, grid in enumerate(each_grid(comm, name, backend)):
        elu = number % 2 == 0
        model, X, targets = problem(grid, name, activation="elu" if elu else "relu")
        Z = dg.gather(model.forward(X))
        weights, biases = model.get_weights(), model.get_biases()
        assert [W.shape for W in weights] == [(2 * WIDTHS[0], WIDTHS[1]), (2 * WIDTHS[1], WIDTHS[2])]
        if grid.rank == 0:
            np.testing.assert_allclose(Z, logits(weights, biases, elu=elu), rtol=1e-10, atol=1e-12)
        found, _, gradients, dX = model.gradients(X, targets, need_input=True)
        assert found == pytest.approx(loss(weights, biases, elu=elu), rel=1e-10)
        assert dX is not None
        whole = [
            dg.gather(parameter.matrix.like(g))
            for parameter, g in zip(model.parameters, gradients, strict=True)
        ]
        whole.append(dg.gather(dX))
        if grid.rank == 0:
            values = [*weights, *(b[None] for b in biases), PROBLEM.X]
            of_values = lambda v, elu=elu: loss(v[:2], v[2:4], v[4], elu)  # noqa: E731
            differences = central_differences(f"elu {elu}", of_values, values)
            for gradient, by_place in zip(whole, differences, strict=True):
                for place, numeric in by_place.items():
                    assert gradient.reshape(-1)[place] == pytest.approx(numeric, abs=1e-8)
        grid.workspace.give_back(dX.block)
        grid.free()


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_every_algorithm_trains_the_same_network(comm: Any, backend: Any) -> None:
    """With dropout and trained features; and with a mean of features that is kept."""
    for options, features in (({"dropout": 0.4}, True), ({}, False), ({"keep_aggregate": False}, False)):
        curves = []
        for name in ABLE:
            for grid in islice(each_grid(comm, name, backend), None if features else 1):
                records = train(
                    *problem(grid, name, seed=2, **options), Adam(0.05), 3, train_features=features
                )
                curves.append([record["loss"] for record in records])
                grid.free()
        for curve in curves[1:]:
            np.testing.assert_allclose(curve, curves[0], rtol=1e-9)
        assert curves[0][-1] < curves[0][0]


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("name", ABLE)
def test_scores_multiply_the_narrower_matrix(comm: Any, name: str, backend: Any) -> None:
    """Layers that widen and narrow, residual, with norms; whatever the borrowed memory holds before."""
    for grid in islice(each_grid(comm, name, backend), 2):
        matrix = dg.distribute(A, grid, name)
        widths = [PROBLEM.width, 6, 6, 14, PROBLEM.classes]
        for options in ({"residual": True, "layer_norm": True, "bias": True}, {"dropout": 0.5}):
            model = SageMean(matrix, widths, **options)
            X = dg.scatter(PROBLEM.X, model.input_layout)
            expected = dg.gather(model.forward(X, keep=True))
            model.drop()
            poison(grid)
            for scratch in (False, True):
                given = X.like(X.block.copy()) if scratch else X
                found = dg.gather(model.forward(given, scratch=scratch))
                if grid.rank == 0:
                    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert not grid.workspace._lent
        grid.free()


def poison(grid: dg.Grid) -> None:
    """Fill memory that the workspace will lend again."""
    for buffer in grid.workspace._buffers:
        buffer.memory[...] = 0xFF  # NaN


@pytest.mark.ranks(4)
def test_scores_hold_the_least_memory(comm: Any, backend: Any) -> None:
    """H of the widest layer, and beside it the two halves of H W; what is received lies in the place of H."""
    grid = make_grid(comm, "1d", backend=backend)
    widths = [4, 64, 4]
    model = SageMean(dg.distribute(A, grid, "1d"), widths)
    X = dg.scatter(PROBLEM.X[:, :4].copy(), model.input_layout)
    targets = model.targets(PROBLEM.labels % 4, PROBLEM.split)
    for _ in range(3):
        model.evaluate(X, targets, False)
    narrow = len(X.block) * 4 * X.dtype.itemsize
    rounded = 2 * X.dtype.itemsize * 4  # blocks are unequal by a row
    assert grid.workspace.borrowed <= 16 * narrow + 2 * narrow + rounded
    grid.free()


@pytest.mark.ranks(1, 2)
def test_what_cannot_be_is_refused(comm: Any, backend: Any) -> None:
    grid = make_grid(comm, "3d", backend=backend)
    if comm.size > 1:
        with pytest.raises(dg.UserError, match="model=sage: algorithm 3d"):
            SageMean(dg.distribute(A, grid, "3d"), WIDTHS)
    grid = make_grid(comm, "1d", backend=backend)
    with pytest.raises(dg.UserError, match="transform-first"):
        SageMean(dg.distribute(A, grid, "1d"), WIDTHS, product_order="transform-first")


def test_neighbours_are_ones_off_the_diagonal() -> None:
    """Every window, whatever the weights; zeros of either sign are edges if they are stored."""
    M = sp.csr_array(np.array([[2.0, 0.5, 0], [3, 1, -4], [0, 9, 1]]))
    M.data[[0, 1, 2]] = 0, -0.0, 0  # a loop, and the edges (0, 1) and (1, 0)
    expected = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    source = Neighbours(dg.MatrixSource(M), symmetric=False)
    for rows in ((0, 3), (1, 3), (1, 1)):
        for cols in ((0, 3), (0, 1), (1, 3)):
            found = source.block(rows, cols)
            np.testing.assert_array_equal(found.toarray(), expected[slice(*rows), slice(*cols)])
            assert found.nnz == np.count_nonzero(expected[slice(*rows), slice(*cols)])
    assert source.shape == (3, 3) and source.dtype == np.float64

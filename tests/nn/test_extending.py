"""The layers of the page on extending: their formulas, their gradients, equal losses on every algorithm."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
import documents
from chosen_grids import wide_grid
from distgnn.nn import Adam
from distgnn.split import TRAIN
from distgnn.train import train
from oracle_scores import labelled, softmax_cross_entropy

from .problem import ALGORITHMS, Problem, central_differences

PROBLEM, WIDTHS = Problem(), [11, 7, 5]
NAMES = {
    "Pool": ["W0", "W1", "P0", "P1", "V0", "V1", "c0", "c1", "X"],
    "GIN": ["W0", "W1", "eps0", "eps1", "V0", "V1", "c0", "c1", "X"],
}


def networks() -> dict[str, Any]:
    path = Path(__file__).parents[2] / "docs/extending.md"
    found: dict[str, Any] = {"__name__": "layers"}
    exec(compile(documents.read(path).files["layers.py"], "layers.py", "exec"), found)
    return found


def pool(H: np.ndarray, W: np.ndarray, P: np.ndarray, V: np.ndarray, c: np.ndarray) -> np.ndarray:
    pooled = np.maximum(H @ P + c, 0)
    ends = pairwise(PROBLEM.A.indptr)
    best = np.stack([pooled[PROBLEM.A.indices[a:b]].max(axis=0) for a, b in ends])  # each has its own node
    return H @ V + best @ W


def gin(H: np.ndarray, W: np.ndarray, eps: np.ndarray, V: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.maximum(((PROBLEM.A != 0) @ H + (1 + eps) * H) @ V + c, 0) @ W


def loss(name: str, values: list[np.ndarray]) -> float:
    """Compute the loss by the formula."""
    layer, X = {"Pool": pool, "GIN": gin}[name], values[-1]
    Z = layer(np.maximum(layer(X, *values[:8:2]), 0), *values[1:8:2])
    return softmax_cross_entropy(Z, PROBLEM.labels, labelled(PROBLEM.labels, PROBLEM.split, TRAIN))[0]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_loss_and_gradients_are_those_of_the_formula(comm, algorithm, backend) -> None:
    for name, kinds in NAMES.items():
        grid = wide_grid(comm, algorithm, backend)
        model = networks()[name](dg.distribute(PROBLEM.A, grid, algorithm), WIDTHS)
        X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
        for p in model.parameters:  # so that none is where its gradient is special
            p.matrix.block += 0.1
        whole = [dg.gather(p.matrix) for p in model.parameters] + [PROBLEM.X]
        found, _, gradients, dX = model.gradients(X, targets, need_input=True)
        made = [dg.gather(p.matrix.like(g)) for p, g in zip(model.parameters, gradients, strict=True)]
        made.append(dg.gather(dX))
        assert [*(p.name for p in model.parameters), "X"] == kinds
        with grid.world.together():
            if grid.rank == 0:
                compare(name, kinds, found, whole, made)


def compare(name: str, kinds: Any, found: float, whole: Any, made: Any) -> None:
    """Compare the gradients with central differences of the loss."""
    assert found == pytest.approx(loss(name, whole), rel=1e-10)
    differences = central_differences(name, partial(loss, name), whole)
    for kind, gradient, by_place in zip(kinds, made, differences, strict=True):
        for place, numeric in by_place.items():
            assert gradient.reshape(-1)[place] == pytest.approx(numeric, rel=1e-8, abs=1e-8), (name, kind)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_equal_on_every_algorithm(comm, name) -> None:
    curves = {}
    for algorithm in ALGORITHMS:
        A = dg.distribute(PROBLEM.A, wide_grid(comm, algorithm), algorithm)
        model = networks()[name](A, WIDTHS, bias=True, layer_norm=True)
        X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
        curves[algorithm] = [epoch["loss"] for epoch in train(model, X, targets, Adam(0.02), 3)]
    assert curves["1d"][-1] < curves["1d"][0]
    for curve in curves.values():
        assert curve == pytest.approx(curves["1d"], rel=1e-9)

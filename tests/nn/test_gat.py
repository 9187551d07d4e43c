"""Graph attention: its formula and gradients on every algorithm, equal losses, minibatches."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from distgnn.nn import Adam
from distgnn.nn.gat import GAT
from distgnn.nn.reference import labelled, softmax_cross_entropy
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.operators.one_rank import Alone, OneRank
from distgnn.sampling import GraphSage, Replicated
from distgnn.split import TRAIN
from distgnn.train import MinibatchTraining, Predictor, Run, Settings
from distgnn.train.full_graph import train

from ..train.stores import small_store
from .problem import Problem, wide_grid

PROBLEM, WIDTHS, HEADS = Problem(), [11, 6, 5], [3, 1]
WAYS = [(name, False) for name in ALGORITHMS] + [(name, True) for name in SPARSITY_AWARE]


def attention(H: np.ndarray, W: np.ndarray, left: np.ndarray, right: np.ndarray, heads: int) -> np.ndarray:
    """Compute a layer by its formula, on dense arrays."""
    stored, parts = PROBLEM.A.toarray() != 0, []
    for Y, a, b in zip(*(np.split(X, heads, axis=1) for X in (H @ W, left.T, right.T)), strict=True):
        e = Y @ a.T + (Y @ b.T).T
        e = np.where(stored, np.where(e > 0, e, 0.2 * e), -np.inf)
        P = np.exp(e - e.max(axis=1, keepdims=True))
        parts.append(P / P.sum(axis=1, keepdims=True) @ Y)
    return np.hstack(parts)


def loss(values: list[np.ndarray]) -> float:
    W0, W1, left0, left1, right0, right1, b0, b1, X = values
    H = np.maximum(attention(X, W0, left0, right0, HEADS[0]) + b0, 0)
    Z = attention(H, W1, left1, right1, HEADS[1]) + b1
    return softmax_cross_entropy(Z, PROBLEM.labels, labelled(PROBLEM.labels, PROBLEM.split, TRAIN))[0]


def made(comm: Any, name: str, aware: bool, backend: Any = "numpy", **options: Any) -> Any:
    A = dg.distribute(PROBLEM.A, wide_grid(comm, name, backend), name, aware)
    model = GAT(A, WIDTHS, heads=HEADS, bias=True, **options)
    return model, dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_loss_and_gradients_are_those_of_the_formula(comm, name, aware, backend):
    model, X, targets = made(comm, name, aware, backend)
    for p in model.parameters:
        p.matrix.block += 0.1
    whole = [dg.gather(p.matrix) for p in model.parameters] + [PROBLEM.X]
    value, _, gradients, dX = model.gradients(X, targets, need_input=True)
    ours = [dg.gather(p.matrix.like(g)) for p, g in zip(model.parameters, gradients, strict=True)]
    ours.append(dg.gather(dX))
    assert [p.name for p in model.parameters] == [
        "W0",
        "W1",
        "left0",
        "left1",
        "right0",
        "right1",
        "b0",
        "b1",
    ]
    if comm.Get_rank() > 0:
        return
    assert value == pytest.approx(loss(whole), rel=1e-10)
    for number, gradient in enumerate(ours):
        for place in range(min(4, whole[number].size)):
            ends = []
            for step in (1e-6, -1e-6):
                nudged = [array.copy() for array in whole]
                nudged[number].reshape(-1)[place] += step
                ends.append(loss(nudged))
            assert gradient.reshape(-1)[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8), number


@pytest.mark.ranks(1, 3, 4, 12)
@pytest.mark.parametrize(("name", "aware"), WAYS)
def test_losses_are_equal_on_every_algorithm(comm, name, aware):
    losses = []
    for alone in (False, True):
        where = comm.Split(comm.Get_rank(), 0) if alone else comm
        model, X, targets = made(where, "1d" if alone else name, aware and not alone, dropout=0.3)
        losses.append([record["loss"] for record in train(model, X, targets, Adam(lr=0.01), 3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)


@pytest.mark.ranks(1, 3)
def test_heads_that_do_not_divide_are_refused(comm):
    A = dg.distribute(PROBLEM.A, wide_grid(comm, "1d", "numpy"), "1d")
    with pytest.raises(dg.UserError, match="hidden=6: must be shared evenly by the 4 heads of layer 0"):
        GAT(A, WIDTHS, heads=4)
    with pytest.raises(dg.UserError, match="one for each of 2 layers"):
        GAT(A, WIDTHS, heads=[1, 2, 3])


@pytest.mark.ranks(1, 4)
def test_minibatches_of_all_neighbours_make_the_same_update(comm):
    trained = []
    for minibatches in (False, True):
        grid = make_grid(comm, "1.5d", {"rows": comm.size, "reps": 1}, backend="numpy")
        model = GAT(dg.distribute(PROBLEM.A, grid, "1.5d"), WIDTHS, heads=HEADS)
        X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
        if minibatches:
            graph = Replicated(dg.MatrixSource(PROBLEM.A), backend="numpy")
            sampler, size = GraphSage(graph, [PROBLEM.n] * 2), targets.counts[TRAIN]
            list(MinibatchTraining(model, X, targets, sampler, size, 1).train(Adam(0.1), 1))
        else:
            list(train(model, X, targets, Adam(0.1), 1))
        trained.append(np.concatenate([p.block.ravel() for p in model.parameters]))
    np.testing.assert_allclose(*trained, rtol=1e-6)


@pytest.mark.ranks(1)
def test_blocks_of_minibatches_go_with_their_last_use(comm):
    """Edges hold the matrix of a minibatch, which does not hold them: no cycle waits to be collected."""
    alone = Alone(make_grid(comm, "1d", backend="numpy"))
    block = OneRank(alone, (2, 3), np.ones(2), np.array([0, 2]), np.array([0, 1, 2]), np.float64)
    edges = block.edges().softmax()
    assert block.pattern is edges.pattern
    gone = weakref.ref(block)
    gc.disable()
    try:
        del block, edges
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.ranks(1, 4)
def test_a_store_is_trained_and_predicted(comm, shared_tmp_path):
    store, weights = small_store(shared_tmp_path, comm), str(shared_tmp_path / "w")
    settings = Settings(
        model="gat", algorithm="2d", hidden=[16], epochs=3, recipe="plain", checkpoint=weights
    )
    run = Run(store, settings, comm)
    losses = [record["loss"] for record in run.train()]
    assert losses[-1] < losses[0]
    scores = Predictor(store, weights, comm, "3d", which="last").scores()
    assert scores == pytest.approx({name: run.end[name] for name in scores})

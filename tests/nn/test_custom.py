"""The layer that the text of ``nn/custom.py`` adds: its formula, its gradients, minibatches, errors."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.nn import GCN, NETWORKS, Adam, CustomLayer, custom
from distgnn.operators import make_grid
from distgnn.plan import Graph, dry_run
from distgnn.sampling import GraphSage, Ladies, Replicated
from distgnn.split import TRAIN
from distgnn.train import MinibatchTraining, Predictor, Run, Settings, train
from distgnn.train.export import contents
from distgnn.train.resolve import resolved
from oracle_scores import labelled, softmax_cross_entropy

from ..train.stores import small_store
from .problem import ALGORITHMS, Problem, central_differences

PROBLEM, WIDTHS = Problem(), [11, 7, 5]


def example() -> Any:
    """Return the `network` of the text, which is code of at most 40 lines."""
    lines = (custom.__doc__ or "").splitlines()
    code = [line for line in lines if line.startswith("    ") or not line]
    assert 15 < sum(map(bool, code)) <= 40
    names: dict[str, Any] = {}
    exec(textwrap.dedent("\n".join(code)), names)
    return names["network"]


def loss(values: list[np.ndarray]) -> float:
    """Compute the loss by the formula, from W0, W1, eps0, eps1, b0, b1, g0, s0 and X."""
    (W0, W1, eps0, eps1, b0, b1, g0, s0, X), A = values, PROBLEM.A
    H = (A @ X + (1 + eps0) * X) @ W0 + b0
    H = (H - H.mean(axis=1, keepdims=True)) / np.sqrt(H.var(axis=1, keepdims=True) + 1e-5)
    H = np.maximum(H * g0 + s0, 0)
    Z = (A @ H + (1 + eps1) * H) @ W1 + b1
    return softmax_cross_entropy(Z, PROBLEM.labels, labelled(PROBLEM.labels, PROBLEM.split, TRAIN))[0]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_loss_and_gradients_are_those_of_the_formula(comm, name, backend) -> None:
    grid = wide_grid(comm, name, backend)
    model = example()(dg.distribute(PROBLEM.A, grid, name), WIDTHS)
    X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
    for p in model.parameters:  # so that none is where its gradient is special
        p.matrix.block += 0.1
    whole = [dg.gather(p.matrix) for p in model.parameters] + [PROBLEM.X]
    found, _, gradients, dX = model.gradients(X, targets, need_input=True)
    made = [dg.gather(p.matrix.like(g)) for p, g in zip(model.parameters, gradients, strict=True)]
    made.append(dg.gather(dX))
    names = [p.name for p in model.parameters]
    assert names == ["W0", "W1", "eps0", "eps1", "b0", "b1", "g0", "s0"]
    if grid.rank > 0:
        return
    assert found == pytest.approx(loss(whole), rel=1e-10)
    differences = central_differences("example", loss, whole)
    for array, gradient, by_place in zip([*names, "X"], made, differences, strict=True):
        for place, numeric in by_place.items():
            assert gradient.reshape(-1)[place] == pytest.approx(numeric, abs=1e-8), array


@pytest.mark.ranks(1, 4)
def test_it_is_trained_as_any_network_is(comm, backend) -> None:
    """On all nodes, and on minibatches that have all neighbours, the first update is the same."""
    epsilons = []
    for minibatches in (False, True):
        grid = make_grid(comm, "1.5d", {"rows": comm.size, "reps": 1}, backend=backend)
        A = dg.distribute(PROBLEM.A, grid, "1.5d")
        model = example()(A, WIDTHS)
        X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
        if minibatches:
            graph = Replicated(dg.MatrixSource(PROBLEM.A), backend=backend)
            sampler, size = GraphSage(graph, [PROBLEM.n] * 2), targets.counts[TRAIN]
            list(MinibatchTraining(model, X, targets, sampler, size, 1).train(Adam(0.1), 1))
            with pytest.raises(ValueError, match="GIN needs every vertex's own features first, where Ladies"):
                MinibatchTraining(model, X, targets, Ladies(graph, [9, 9]), size, 1)
        else:
            list(train(model, X, targets, Adam(0.1), 1))
        epsilons.append([float(p.block[0, 0]) for p in model.parameters if p.kind == "eps"])
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-6) and 0 not in epsilons[0]


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_runs_predictions_exports_and_plans_can_name_it(comm, shared_tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(NETWORKS, "gin", example().__globals__["GIN"])
    store, weights = small_store(shared_tmp_path, comm), str(shared_tmp_path / "w")
    how: Any = {"model": "gin", "hidden": [6], "bias": True, "epochs": 3, "checkpoint": weights}
    run = Run(store, Settings(algorithm="2d", keep_best="val", **how), comm)
    losses = [record["loss"] for record in run.train()]
    assert losses[-1] < losses[0]
    predictor = Predictor(store, weights, comm, "3d", which="last")
    found = predictor.scores()
    assert found == pytest.approx({name: run.end[name] for name in found})
    model = dg.Model.load(weights, comm, which="last", algorithm="2d")
    report, embedded = model.report(store), model.embeddings(1, store)
    if comm.Get_rank() == 0:
        assert report.accuracy == pytest.approx({name: found[f"{name}_acc"] for name in report.parts})
        assert embedded.shape == (60, 6) and embedded.min() == 0 < embedded.max()
    sampled = Run(store, Settings(sampler="sage", resume=False, force=True, **how), comm)
    assert len(list(sampled.train())) == 3
    with pytest.raises(dg.UserError, match="sampler=ladies|model=gin: needs every vertex's own features"):
        resolved(Settings(sampler="ladies", model="gin"), 1)
    if comm.Get_rank() == 0:
        arrays, config = contents(weights)
        assert config["model"] == "gin" and arrays["eps1"].shape == (1, 1)
        plan = dry_run(Settings(model="gin", algorithm="2d", hidden=[6]), Graph.of_size(60, 300, 8, 4), 4)
        assert plan.ranks[0].epoch.words > 0
    monkeypatch.undo()
    with pytest.raises(dg.UserError, match="holds weights of model=gin; enter it in distgnn.nn.NETWORKS"):
        Predictor(store, weights, comm)
    with pytest.raises(dg.UserError, match="holds weights of model=gin; enter it in distgnn.nn.NETWORKS"):
        dg.Model.load(weights, comm).predict(store)


class Plain(CustomLayer):
    """Z = (A H) W, of which it keeps H."""

    def propagate(self, A, H):
        return self.times(A, A @ H), (H,)

    def propagate_back(self, A, kept, G):
        dW, dT = self.times_back(A, A @ kept[0], G)
        return [dW], A.T @ dT


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["2d", "3d"])
def test_what_a_layer_keeps_is_given_back(comm, name, backend) -> None:
    """Epoch after epoch a network of layers that are those of a GCN has its gradients, in the same memory."""
    grid, found = wide_grid(comm, name, backend), []
    A = dg.distribute(PROBLEM.A, grid, name)
    for network in (GCN, type("Mine", (GCN,), {"convolution": Plain})):
        model = network(A, WIDTHS, dropout=0.3, layer_norm=True)
        X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
        for epoch in (1, 2, 3):
            gradients = model.gradients(X, targets, epoch)[2]
            assert not grid.workspace._lent
        found.append([backend.to_host(gradient).copy() for gradient in gradients])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


class Forgetful(Plain):
    """A network whose backward pass forgets a gradient."""

    def __init__(self, A, index, shape, **options):
        super().__init__(A, index, shape, **options)
        self.add_parameter("scale", [[1.0]])


class Narrow(Forgetful):
    """A network whose Z is the wrong matrix: it leaves out the weights."""

    def propagate(self, A, H):
        return A @ H, (H,)


@pytest.mark.ranks(1, 2)
def test_mistakes_are_named(comm, backend) -> None:
    A = dg.distribute(PROBLEM.A, make_grid(comm, "1d", backend=backend), "1d")
    for layer, message in (
        (Forgetful, "Forgetful: propagate_back gave 1 gradients of 2 parameters"),
        (Narrow, "Narrow: propagate made .* 53 x 11 .* where times gives n x 7"),
    ):
        model = type("Mine", (GCN,), {"convolution": layer})(A, WIDTHS)
        X, targets = dg.scatter(PROBLEM.X, model.input_layout), model.targets(PROBLEM.labels, PROBLEM.split)
        with pytest.raises(ValueError, match=message):
            model.gradients(X, targets)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("g", [[1.0]], "parameter name 'g': expected letters"),  # g0 is the gain of layer 0's norm
        ("scale", [[1.0]], "parameter name 'scale'.* once in a layer"),
        ("a1", [[1.0]], "parameter name 'a1'"),  # of layer 0 it would be that of "a" in layer 10
        ("shape", 1.0, "shape is .., expected .rows, columns."),
    ],
)
def test_parameters_that_cannot_be_told_apart(comm, name, values, message) -> None:
    class Second(Forgetful):
        def __init__(self, A, index, shape, **options):
            super().__init__(A, index, shape, **options)
            self.add_parameter(name, values)

    A = dg.distribute(PROBLEM.A, make_grid(comm, "1d"), "1d")
    with pytest.raises(ValueError, match=message):
        type("Mine", (GCN,), {"convolution": Second})(A, WIDTHS)

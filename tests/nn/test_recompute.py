"""Layers that are gone through again before their backward pass: equal losses, less memory, more words."""

from __future__ import annotations

from typing import Any

import pytest

import distgnn as dg
from distgnn.errors import ArgumentError, DisagreementError
from distgnn.nn.optim import make
from distgnn.nn.whole_weights import collect
from distgnn.operators import make_grid
from distgnn.train import Run, Settings
from distgnn.train.full_graph import train
from distgnn.train.resolve import resolved
from loops import each
from nn.problem import Problem, received
from train.stores import small_store

DEEP: dict[str, Any] = {"hidden": [6] * 4, "bias": True, "lr": 0.05, "epochs": 2, "tune_gemm": False}
BATCHES = {"sampler": "sage", "fanout": [2] * 5, "batch_size": 4}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"dropout": 0.0},
    "aggregate first": {"product_order": "aggregate-first", "dropout": 0.0, "algorithm": "rdm"},
    "dropout": {"dropout": 0.4, "hidden": [7, 6, 5, 9], "algorithm": "2d"},
    "norm": {"layer_norm": True, "residual": True, "dropout": 0.3},
    "elu": {"activation": "elu", "dropout": 0.3, "algorithm": "3d"},
    "elu, norm": {"activation": "elu", "layer_norm": True, "algorithm": "1.5d", "wire": "bfloat16"},
    "sage": {"model": "sage", "dropout": 0.3, "residual": True},
    "gat": {"model": "gat", "heads": 3, "attention_dropout": 0.3, "layer_norm": True},
    "gatv2": {"model": "gatv2", "heads": 2, "attention_dropout": 0.3, "algorithm": "2d"},
    "trained": {"train_features": True, "dropout": 0.2},
    "minibatches": BATCHES | {"model": "gcn", "dropout": 0.0},
    "sampled sage": BATCHES | {"model": "sage", "dropout": 0.3, "layer_norm": True},
    "sampled gat": BATCHES | {"model": "gat", "heads": 3, "attention_dropout": 0.3},
}


def trained(store, comm, recompute, **settings):
    """Return losses, scores and weights, and the run."""
    given = DEEP | {"algorithm": None if "sampler" in settings else "1d"} | settings
    run = Run(store, Settings(**given, recompute=recompute), comm)
    records = [(r["loss"], r.get("val_acc")) for r in run.train()]
    return records, [collect(p.matrix).tobytes() for p in run.model.parameters], run


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_weights_are_equal(comm, shared_tmp_path, kind):
    store = small_store(shared_tmp_path, comm)
    *expected, _ = trained(store, comm, 0, **KINDS[kind])
    assert len({loss for loss, _ in expected[0]}) == 2
    for every in (2, 3):
        *found, run = trained(store, comm, every, **KINDS[kind])
        assert found == expected, every
        run.grid.free()


@pytest.mark.ranks(1, 4)
@each("every, buffers", [(0, 13), (1, 13), (2, 8), (3, 7), (4, 7), (6, 8), (12, 13)])
def test_buffers_are_those_of_kept_inputs_and_a_stretch(comm, every, buffers):
    """Twelve layers of one width keep their inputs, but for the first, whose input is features."""
    problem, width, layers = Problem(), 5, 12
    grid = make_grid(comm, "1d", backend="numpy")
    options = {"recompute": every, "product_order": "transform-first"}
    A = dg.distribute(problem.A, grid, "1d")
    rooms, model = received(A, width), dg.nn.GCN(A, [width] * (layers + 1), **options)
    targets = model.targets(problem.labels, problem.split)
    X = dg.scatter(problem.X[:, :width], model.input_layout)
    list(train(model, X, targets, make("adam"), 3))
    assert grid.workspace.borrowed == buffers * X.block.nbytes + rooms
    model.forward(X, 1, keep=True)
    model.drop()
    assert not grid.workspace._lent
    grid.free()


@pytest.mark.ranks(2)
def test_no_rank_keeps_fewer_than_another(comm):
    problem, grid = Problem(), make_grid(comm, "1d", backend="numpy")
    A = dg.distribute(problem.A, grid, "1d")
    with pytest.raises(DisagreementError, match="recompute"):
        dg.nn.GCN(A, [5] * 4, recompute=comm.rank)
    with pytest.raises(ArgumentError, match="recompute=-1"):
        resolved(Settings(recompute=-1), 1)

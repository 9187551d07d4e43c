"""Numbers that are not finite: all ranks stop together, name epoch and layer, keep the last checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.errors import TrainingError
from distgnn.nn import SGD, Adam
from distgnn.nn.finite import NotFiniteError
from distgnn.operators import make_grid
from distgnn.sampling import GraphSage, Replicated
from distgnn.train import MinibatchTraining, Run, Settings, train
from distgnn.train.check import CheckFailedError, SerialCheck
from distgnn.train.full_graph import parameters

from ..nn.problem import ALGORITHMS, Problem
from .stores import events, run, small_store

PROBLEM = Problem()


def raised(comm: MPI.Intracomm, work: Any) -> NotFiniteError:
    """Return the error that `work` raises, the same on every rank."""
    with pytest.raises(NotFiniteError) as error:
        work()
    assert len(set(comm.allgather(str(error.value)))) == 1
    assert "\n" not in str(error.value)
    return error.value


def made(comm: MPI.Intracomm, name: str, backend: Any, **options: Any) -> Any:
    return PROBLEM.model(wide_grid(comm, name, backend), name, dtype=np.float32, **options)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_that_overflows_is_not_kept(comm, name, backend):
    """Weights cut or whole, biases and trained features, before the epoch has a record."""
    for make, options in ((SGD, {"bias": True}), (Adam, {"dropout": 0.5})):
        model, X, targets = made(comm, name, backend, **options)
        loop = train(model, X, targets, make(1e38), 40, train_features=make is SGD)
        error = raised(comm, lambda loop=loop: next(loop))
        assert error.epoch == 1 and str(error).startswith(f"epoch 1, layer {error.layer}: "), error


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_layer_where_it_begins_is_named(comm, name, backend):
    model, X, targets = made(comm, name, backend)
    sizes = [weights.shape for weights in model.get_weights()]
    for first in range(1, 3):
        scales = [1e30 if layer in (first - 1, first) else 1 for layer in range(3)]
        model.set_weights([np.full(shape, scale) for shape, scale in zip(sizes, scales, strict=True)])
        X.block[...] = 1
        for due in (0, 1):
            loop = train(model, X, targets, SGD(0.1), 9, first_epoch=5, eval_every=due)
            error = raised(comm, lambda loop=loop: next(loop))
            assert (error.epoch, error.layer) == (5, first), error
        assert raised(comm, lambda: model.evaluate(X, targets)).layer == first
        assert raised(comm, lambda: model.gradients(X, targets)).layer == first
        assert not model.grid.workspace._lent


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("number", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("name", ["1d", "2d", "3d"])
def test_what_one_rank_sees_stops_all(comm, name, number, backend):
    """One number in the gradient on the last rank that has any stops all ranks.

    It is in the weights, biases or features; or two squares are too large for Adam.
    """
    model, X, _ = made(comm, name, backend, bias=True)
    trained = parameters(model, X, True)
    before = [p.block.copy() for p in trained]
    for place in range(7):
        for p, block in zip(trained, before, strict=True):
            p.block[...] = block  # a step that fails leaves anything there
        gradients = [backend.xp.ones_like(p.block) for p in trained]
        mine = gradients[place]
        last = max(comm.allgather(comm.Get_rank() if mine.size else -1))
        if comm.Get_rank() == last:
            mine[-1, -1] = number
        error = raised(comm, lambda: Adam(0.1).step(trained, gradients))  # noqa: B023
        assert (error.layer, error.epoch) == (trained[place].layer, None) and "gradient" in error.problem


@pytest.mark.ranks(1, 4)
def test_looking_costs_no_words(comm, backend):
    model, X, _ = made(comm, "3d", backend)
    trained = parameters(model, X, True)
    with dg.Ledger() as counted:
        Adam(0.1).step(trained, [backend.xp.ones_like(p.block) for p in trained])
    assert counted.words == counted.messages == 0


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("weight", [1.0, 1e30])
def test_minibatches(comm, weight, backend):
    grid = wide_grid(comm, "1.5d", backend)
    model, X, targets = PROBLEM.model(grid, "1.5d", hidden=(8,), dtype=np.float32)
    model.set_weights([np.full(one.shape, weight) for one in model.get_weights()])
    X.block[...] = abs(X.block)
    sampler = GraphSage(Replicated(abs(PROBLEM.A).astype(np.float32)), [3, 3])
    training = MinibatchTraining(model, X, targets, sampler, 4, comm.Get_size())
    error = raised(comm, lambda: list(training.train(SGD(1e38), 3, eval_every=0)))
    assert error.epoch == 1 and (error.layer == 1 or weight == 1)
    assert ("the loss" in str(error)) == (weight > 1)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_features_that_are_not_finite_are_named(comm, number, backend):
    model, X, targets = made(comm, "1d", backend)
    if X.row_range[0] <= 50 < X.row_range[1]:
        X.block[50 - X.row_range[0], 3] = number
    training = MinibatchTraining
    sampler = GraphSage(Replicated(PROBLEM.A.astype(np.float32)), [3, 3, 3])
    loops = (
        lambda: list(train(model, X, targets, SGD(0.1), 3)),
        lambda: training(model, X, targets, sampler, 4, 1).train(SGD(0.1), 3),
    )
    for loop in loops:
        with pytest.raises(dg.UserError, match=rf"X={number}: .* node 50, column 3; "):
            loop()


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("name", ["1d", "3d"])
def test_features_changed_between_runs_are_multiplied_again(comm, name, backend):
    """Into the same matrix or another block of it; with what was kept, losses would be of the old ones."""
    model, X, targets = made(comm, name, backend)
    for change in (1.5, -2.0):
        X.block *= change
        start = model.get_weights()
        got = [record["loss"] for record in train(model, X, targets, SGD(0.1), 2)]
        assert (model.layers[0].fixed.kept is not None) == (model.dropout == 0)
        fresh, same, wanted = made(comm, name, backend)
        same.block[...] = X.block
        fresh.set_weights(start)
        assert got == [record["loss"] for record in train(fresh, same, wanted, SGD(0.1), 2)]
        assert model.evaluate(X, targets) == fresh.evaluate(same, wanted)
    X.block, same.block = X.block * 3, same.block * 3
    fresh.forget()
    assert model.gradients(X, targets)[0] == fresh.gradients(same, wanted)[0]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("words", ["--algorithm 3d --train-features", "--sampler sage --fanout 3,3 --bias"])
@pytest.mark.slow
def test_the_last_good_checkpoint_stays(comm, shared_tmp_path, words, capfd):
    """`--lr 1e38`: code 1, one line, a log that says why, and a checkpoint that goes on."""
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log"
    words = [store, *words.split(), "--checkpoint", shared_tmp_path / "kept", "--checkpoint-every", 1]
    words += ["--quiet", "--log", log]
    assert run(comm, *words, "--epochs", 2) == 0
    capfd.readouterr()
    assert run(comm, *words, "--epochs", 9, "--resume", "--lr", 1e38) == 1
    comm.Barrier()
    out, err = capfd.readouterr()
    if comm.Get_rank() == 0:
        assert err.startswith("distgnn: error: epoch 3, layer ") and err.count("\n") == 1 and not out, err
        last = json.loads(log.read_text().splitlines()[-1], parse_constant=pytest.fail)
        assert last["event"] == "failed" and last["epoch"] == 3 and last["problem"] in err
    comm.Barrier()
    assert run(comm, *words, "--epochs", 4, "--resume") == 0
    comm.Barrier()
    if comm.Get_rank() == 0:  # the failure is cut off with the epochs after the checkpoint
        assert [event["epoch"] for event in events(log, "epoch")] == [1, 2, 3, 4]
        assert not events(log, "failed")
        assert all(np.isfinite(event["loss"]) for event in events(log, "epoch"))


def test_the_serial_reference_stops_too():
    reference = PROBLEM.reference(dtype=np.float32, bias=True)
    records = reference.train(PROBLEM.X, PROBLEM.labels, PROBLEM.split, 5, "sgd", 1e39)
    assert np.isfinite(next(records)["loss"])
    with pytest.raises(NotFiniteError, match="epoch 1, layer 0: W0 is not finite after the update"):
        next(records)
    reference.weights = [
        np.full_like(weights, 1e30) for weights in PROBLEM.reference(dtype=np.float32).weights
    ]
    with pytest.raises(NotFiniteError, match=r"epoch 1, layer \d: the loss is "):
        list(reference.train(np.ones_like(PROBLEM.X), PROBLEM.labels, PROBLEM.split, 5))


@pytest.mark.ranks(1, 4)
def test_a_reference_that_stops_fails_the_check_on_every_rank(comm):
    world = make_grid(comm, "1d", backend="numpy").world

    class Stops:
        def epoch(self, epoch, lr):
            raise NotFiniteError("the loss is nan", 1, epoch)
            yield

        def shaken(self, seed, size):
            return self

    with pytest.raises(CheckFailedError, match=r"loss 0.5, but serially epoch 1, layer 1: the loss is nan"):
        SerialCheck(world, Stops).compare(1, 0.1, [0.5])
    assert issubclass(CheckFailedError, TrainingError)


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_weights_that_overflow_in_the_next_pass_are_not_saved(comm, shared_tmp_path):
    """Finite weights can overflow in three layers.

    Their squares are finite too.
    """
    store, saved = small_store(shared_tmp_path, comm), shared_tmp_path / "saved"
    settings = Settings(layers=3, epochs=2, checkpoint=saved, backend="numpy")
    list(Run(store, settings, comm).train())
    resumed = replace(settings, epochs=3, lr=1e15, resume=True)
    with pytest.raises(NotFiniteError, match="epoch 3, layer"):
        list(Run(store, resumed, comm).train())
    (record,) = Run(store, replace(resumed, lr=0.01), comm).train()
    assert record["epoch"] == 3 and np.isfinite(record["loss"])

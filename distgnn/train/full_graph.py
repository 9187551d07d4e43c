"""The loop over epochs, and full-graph training: one update per epoch, from all training nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from distgnn import ledger, records
from distgnn.errors import ArgumentError, TrainingError, UserError
from distgnn.nn.buffers import lent
from distgnn.nn.features import gone
from distgnn.nn.finite import check_features
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import Targets
from distgnn.nn.optim import Optimizer, Parameter
from distgnn.operators.dense import DistDense
from distgnn.operators.moves import told
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features
from distgnn.split import TRAIN
from distgnn.train.epoch_graph import Captured, EpochGraph, wanted, why_not_wanted

Array = Any
Record = records.Epoch
#: Called before the update, or the updates, of an epoch: with its number and the accuracies of the weights up
#: to then, empty where they were not evaluated. May set ``optimizer.lr``, on all ranks alike.
Before = Callable[[int, dict[str, float]], None]


def parameters(model: GCN, X: Features, train_features: bool = False) -> list[Parameter]:
    """List the trained matrices: weights, biases and, if asked, the features (this rank's block)."""
    if not train_features:
        return model.parameters
    if isinstance(X, SparseFeatures):
        raise ArgumentError("train_features", True, "sparse features stay as they are; train X.to_dense()")
    return [*model.parameters, Parameter("X", 0, "features", X)]


def train(
    model: GCN, X: Features, targets: Targets, optimizer: Optimizer, epochs: int, *, first_epoch: int = 1,
    eval_every: int = 1, train_features: bool = False, timing: bool = False, before: Before | None = None,
    cuda_graph: bool | None = False, captured: Captured | None = None,
) -> Iterator[Record]:  # fmt: skip
    """Train until epoch `epochs`, counted from 1; yield a record after every epoch's update. Collective.

    Args:
        X: finite features in `model.input_layout`, sparse ones where the network takes them; changed in place
            with `train_features`.
        targets: with a labelled training node; else UserError on every rank, as where ranks disagree.
        first_epoch: the epoch to start with, after a resume.
        eval_every: epochs between evaluations, the first and the last included; 0 for none.
        timing: measure the phases, on a GPU by marks in its queue, for which it does not wait.
        before: called before every update with the epoch and the accuracies, if evaluated; for schedules.
        cuda_graph: on one GPU, queue an epoch as CUDA graphs, captured after the first epochs; see
            :class:`~distgnn.train.epoch_graph.EpochGraph`. Its phases are not measured. None: for small
            graphs, where that is possible.
        captured: told which epochs were CUDA graphs.

    Yields:
        "epoch"; "loss" (with dropout), "train_acc", "val_acc", "test_acc" (without; where evaluated; of other
        metrics "val_f1" or "val_rocauc"), of the weights before the update; "lr", its step size; "seconds" of
        this rank for the update and all before it; "phases", its parts ("other" alone without `timing`);
        "words" received; "flight", the seconds in which messages were under way, and phase "comm" the part
        that was not hidden; "eval_seconds".

    NotFiniteError on every rank: loss, gradient or update is not finite; it names epoch and layer.
    """
    settings: dict[str, Any] = {"epochs": epochs, "first_epoch": first_epoch, "eval_every": eval_every}
    settings |= {"cuda_graph": cuda_graph}
    model.grid.world.agree(optimizer.facts() | settings | {"train_features": train_features})
    check(X, targets)
    trained = parameters(model, X, train_features)
    with_the_step = not model.draws  # then the logits of the training pass are those to evaluate
    known = model, X, targets, optimizer, trained, train_features, eval_every > 0, bool(cuda_graph)
    graph = EpochGraph(*known) if wanted(cuda_graph, model, X, optimizer) else None
    told_of = captured or Captured()
    told_of.why_not = graph.why_not if graph else why_not_wanted(cuda_graph, model, X, optimizer)
    graph = None if graph is not None and graph.failed else graph

    def step(epoch: int, due: bool, scores: dict[str, float]) -> Record:
        due = due and with_the_step
        finish: Callable[[], None]
        if graph is not None:
            (loss, seen), finish = graph.step(epoch, due), graph.update
            told_of.epochs, told_of.why_not = told_of.epochs + graph.captured, graph.why_not
        else:
            loss, seen, gradients, dX = model.gradients(X, targets, epoch, train_features, due)
            finish = partial(update, optimizer, trained, gradients, dX)
        scores = scores or seen
        if before is not None:
            with told(model.grid):
                before(epoch, scores)
        finish()
        return {"loss": loss, **records.named(scores), "lr": optimizer.lr}

    def evaluate(epoch: int) -> dict[str, float]:
        if with_the_step:
            return {}
        return graph.evaluate(epoch) if graph else model.evaluate(X, targets, train_features)

    yield from run_epochs(model, step, evaluate, range(first_epoch, epochs + 1), eval_every, timing)


def check(X: Features, targets: Targets) -> None:
    """Raise the UserError of `train` for features and targets. Collective."""
    if not gone(X):
        check_features(X)
    if targets.counts[TRAIN] == 0:
        raise UserError("nothing to train on: no node is both labelled and in the training split")


def update(
    optimizer: Optimizer, trained: Sequence[Parameter], gradients: Sequence[Array],
    dX: DistDense | None = None,
) -> None:  # fmt: skip
    """Step with the optimiser. `dX`: the gradient of trained features, whose memory the workspace lent."""
    grid = trained[0].matrix.grid
    gradients = gradients if dX is None else [*gradients, dX.block]
    with nullcontext() if dX is None else lent(dX):
        with ledger.timed("optimizer", "step", on=grid.backend):
            optimizer.step(trained, gradients)


def run_epochs(
    model: GCN, step: Callable[[int, bool, dict[str, float]], Record],
    evaluate: Callable[[int], dict[str, float]], epochs: range, eval_every: int, timing: bool,
) -> Iterator[Record]:  # fmt: skip
    """Yield the record of every epoch: `evaluate(epoch)` if due, `step(epoch, due, scores)`, its costs."""
    model.forget()
    for epoch in epochs:
        due = eval_every > 0 and ((epoch - 1) % eval_every == 0 or epoch == epochs[-1])
        record: Record = {"epoch": epoch, "loss": None}
        started = time.perf_counter()
        with of_epoch(epoch):
            scores = evaluate(epoch) if due else {}
        evaluated = time.perf_counter()
        with of_epoch(epoch), ledger.Ledger(timing) as counted:
            record |= records.named(scores)
            record |= step(epoch, due, scores)
            model.grid.backend.synchronize()
        seconds, phases = time.perf_counter() - evaluated, counted.seconds
        other = max(seconds - sum(phases.values()), 0.0)
        record |= {"seconds": seconds, "phases": phases | {"other": other}}
        record |= {"flight": counted.flight, "words": counted.words, "eval_seconds": evaluated - started}
        yield record


@contextmanager
def of_epoch(epoch: int) -> Iterator[None]:
    """Name this epoch in the error of a number that is not finite."""
    try:
        yield
    except TrainingError as error:
        raise error.in_epoch(epoch) from None

"""Full-graph training: one update per epoch from the gradient over all training nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from distgnn.comm.grid import Grid
from distgnn.errors import UserError
from distgnn.ledger import Ledger
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import PARTS, TRAIN, Targets
from distgnn.nn.optim import Optimizer, Parameter
from distgnn.operators.dense import DistDense

Array = Any


def parameters(model: GCN, X: DistDense, train_features: bool = False) -> list[Parameter]:
    """What is trained: weights, biases and, if asked, the features themselves (this rank's block)."""
    features = [Parameter("X", 0, "features", X)] if train_features else []
    return model.parameters + features


def train(
    model: GCN, X: DistDense, targets: Targets, optimizer: Optimizer, epochs: int, *, first_epoch: int = 1,
    eval_every: int = 1, train_features: bool = False, timing: bool = False,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Train until epoch `epochs`, counted from 1; yields a record after every epoch's update. Collective.

    Args:
        X: features in `model.input_layout`; changed in place with `train_features`.
        first_epoch: the epoch to start with, after a resume.
        eval_every: epochs between evaluations, the first and the last included; 0 for none.
        timing: measure the phases, which makes a GPU wait for itself around every operation.

    Yields:
        {"epoch", "loss", "train_acc", "val_acc", "test_acc", "seconds", "phases", "flight", "words",
        "eval_seconds"}.
        Loss (cross-entropy only, with the epoch's dropout) and accuracies (without dropout) belong to the
        weights at the start of the epoch; epochs without evaluation have no accuracies. `seconds` is this
        rank's time for forward, loss, backward and update, of which `phases` gives the parts (all of it
        "other" without `timing`), `words` what it received in them, and `flight` the seconds in which
        communication was under way, of which phase "comm" was not hidden. Evaluation is counted apart.

    Raises:
        UserError: there is not a single labelled training node (on every rank).
    """
    if targets.counts[TRAIN] == 0:
        raise UserError("nothing to train on: no node is both labelled and in the training split")
    for epoch in range(first_epoch, epochs + 1):
        wanted = is_due(epoch, epochs, eval_every)
        # Without dropout the logits of the training pass are those to evaluate.
        evaluate_too = wanted and model.dropout == 0
        step = partial(_step, model, X, targets, optimizer, epoch, train_features, evaluate_too)
        evaluate = (
            partial(model.evaluate, X, targets, train_features) if wanted and not evaluate_too else None
        )
        yield measured(epoch, step, evaluate, model.grid, timing)


def is_due(epoch: int, epochs: int, every: int) -> bool:
    """Is this epoch evaluated: the first, the last, and one in so many; none for 0?"""
    return every > 0 and ((epoch - 1) % every == 0 or epoch == epochs)


def measured(
    epoch: int,
    step: Callable[[], dict[str, Any]],
    evaluate: Callable[[], dict[str, float]] | None,
    grid: Grid,
    timing: bool,
) -> dict[str, Any]:
    """The record of an epoch: what `evaluate`, where it is wanted, and then `step` return, and what the step
    cost.
    """
    record: dict[str, Any] = {"epoch": epoch, "loss": None}
    started = time.perf_counter()
    if evaluate is not None:
        record |= evaluate()
    evaluated = time.perf_counter()
    with Ledger(timing) as ledger:
        record |= step()
        grid.backend.synchronize()
    seconds = time.perf_counter() - evaluated
    phases = ledger.seconds
    record["seconds"] = seconds
    record["phases"] = phases | {"other": max(seconds - sum(phases.values()), 0.0)}
    record["flight"] = ledger.flight
    record["words"] = ledger.words
    record["eval_seconds"] = evaluated - started
    return record


def _step(
    model: GCN, X: DistDense, targets: Targets, optimizer: Optimizer, epoch: int, train_features: bool,
    evaluate_too: bool,
) -> dict[str, Any]:  # fmt: skip
    """One epoch: forward, loss, backward, update."""
    loss, found, gradients, dX = model.gradients(X, targets, epoch, train_features, evaluate_too)
    if dX is not None:
        gradients.append(dX.block)
    optimizer.step(parameters(model, X, train_features), gradients)
    if dX is not None:
        model.grid.workspace.give_back(dX.block)
    return {"loss": loss, **{name: found[name] for name in PARTS if name in found}}

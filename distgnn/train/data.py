"""The data of a run: features and targets of a store, and the settings that these decide."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.errors import UserError
from distgnn.ledger import holds
from distgnn.nn.features import OwnedFeatures, Scaling, are_counts, normalize_rows, scaling_of, standardize
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import Targets, as_numbers
from distgnn.nn.metrics import scores
from distgnn.operators.dense import DistDense
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features
from distgnn.split import TRAIN, VAL, labelled
from distgnn.store.read.distributed import load_features, load_targets
from distgnn.store.read.store import Store
from distgnn.train.minibatches import at_most
from distgnn.train.parts import number_of
from distgnn.train.settings import BATCH_SIZE, CLUSTER, NONE, PARTS_OF_BATCH, STEPS_OF_VERTICES, Settings

log = logging.getLogger(__name__)

#: Scales of features that differ by more make training hard.
APART = 10.0


class Data(NamedTuple):
    """Features and targets of a run.

    Attributes:
        scaling: of X, where it is standardised, else None.
        settings: with all that the data decide.
    """

    X: Features
    targets: Targets
    scaling: Scaling | None
    settings: Settings


def load_data(s: Settings, store: Store, model: GCN, dense: str = "") -> Data:
    """Load what a run trains on, and scale the features. Collective.

    The data decide whether rows or columns of the features are scaled, whether the best weights are kept, and
    the batch size. The best trained features are kept only where that is asked for: they may be as large as
    all else together.

    Args:
        s: resolved, see ``of_store``. dense: why features must be dense, if so.

    Raises:
        UserError: there is nothing to train on, or to validate by where settings ask for that.
    """
    X = as_taken(load_features(store, model.input_layout, dtype=s.dtype), model, dense or must_be_dense(s))
    targets = targets_of(store, model, str(s.loss), s.metric)
    if targets.counts[TRAIN] == 0:
        problem = "no node of the training split has a label, so there is nothing to train on"
        raise UserError(f"{store.path}: {problem}")
    X, rows, scaling = _scaled(X, store, s)
    decided: dict[str, Any] = {"normalize_features": rows, "standardize_features": scaling is not None}
    kept = s.keep_best is None and s.eval_every and not s.train_features
    unscored = _not_validated(model, targets, s) if kept or s.watchers else None
    if unscored and s.watchers:
        given = " and ".join(f"{name}={value}" for name, value in s.watchers.items())
        raise UserError(f"{store.path}: {unscored}, or leave out {given}")
    if s.keep_best is None:
        decided["keep_best"] = "val" if kept and unscored is None else NONE
    if s.samples:
        default, most, kind = of_batches(s, store, targets.counts[TRAIN])
        said = model.grid.rank == 0
        (decided["batch_size"],) = at_most("batch_size", [s.batch_size or default], most, kind, said)
        if s.fanout is not None:
            decided["fanout"] = at_most("fanout", s.fanout, store.n, "nodes", said)
    return Data(owned(X, s), targets, scaling, replace(s, **decided))


def of_batches(s: Settings, store: Store, trained: int) -> tuple[int, int, str]:
    """Return the size of minibatches by default, the largest one, and the name of what is counted.

    trained: training nodes of the graph, with labels.
    """
    if s.together:
        return max(BATCH_SIZE, -(-store.n // STEPS_OF_VERTICES)), store.n, "nodes"
    if s.sampler == CLUSTER:
        return PARTS_OF_BATCH, number_of(s, store.order(s.order)), "parts"
    return BATCH_SIZE, trained, "training nodes"


def must_be_dense(s: Settings) -> str:
    """Return why features must be dense by the settings; empty where they need not be."""
    return "they are trained" * s.train_features or "a CUDA graph has dense products" * bool(s.cuda_graph)


def owned(X: Features, s: Settings) -> Features:
    """Give features to the network of a run, unless minibatches or an optimiser have a use for them, too."""
    shared = s.samples or s.train_features
    return X if shared or isinstance(X, SparseFeatures) else OwnedFeatures(X)


def as_taken(X: Features, model: GCN, dense: str = "", said: bool = True) -> Features:
    """Return features as a network takes them; sparse ones stay sparse where that pays. Collective.

    ``dense``: why they must be dense, if so. ``said``: the log says why they are.
    """
    if isinstance(X, SparseFeatures):
        dense = dense or model.needs_dense() or ""
        if not dense and X.share > TUNING.densest_features:
            dense = f"{X.share:.0%} of them are not 0"
        if not dense:
            return X
        if said and X.grid.rank == 0:
            log.info("sparse features are made dense: %s", dense)
        X = X.to_dense()
    holds(X.block, "features", X.block.nbytes)
    return X


def _scaled(X: Features, store: Store, s: Settings) -> tuple[Features, bool, Scaling | None]:
    """Divide rows by their sums where they are counts, standardise columns where they differ, or as asked."""
    rows, columns = s.normalize_features, s.standardize_features
    counts = (rows is None or (columns is None and not rows)) and are_counts(X)
    if rows is None and counts:
        log.info("features are counts: rows are divided by their sums")
    rows = counts if rows is None else rows
    if rows:
        normalize_rows(X)
    if not (columns or (columns is None and not rows and not counts)):
        return X, rows, None
    scaling, differ = scaling_of(X, _training_rows(store, X))
    if columns is None and not differ > APART:
        return X, rows, None
    if columns is None and X.grid.rank == 0:
        how = "they are standardised by the training nodes; standardize_features=False leaves them"
        log.warning("scales of features differ by %.2g times: %s", differ, how)
    return standardized(X, scaling), rows, scaling


def standardized(X: Features, scaling: Scaling) -> DistDense:
    """Return features with standard columns, made in place; sparse ones become dense: means are taken off."""
    if isinstance(X, SparseFeatures):
        if X.grid.rank == 0:
            log.info("sparse features are made dense: columns are standardised")
        X = X.to_dense()
        holds(X.block, "features", X.block.nbytes)
    standardize(X, scaling)
    return X


def _training_rows(store: Store, X: Features) -> Any:
    """Return which of this rank's rows are labelled training nodes, bool, on the backend. Collective."""
    labels, split = load_targets(store, X.layout)
    on = X.grid.backend
    return on.asarray((on.to_host(split.block)[:, 0] == TRAIN) & labelled(on.to_host(labels.block)))


def targets_of(store: Store, model: GCN, loss: str, metric: str | None = None) -> Targets:
    """Load the labels and the split of a store for a network with this loss. Collective."""
    labels, split = load_targets(store, model.output_layout)
    if loss == "mse":
        on = model.grid.backend
        block = on.asarray(as_numbers(on.to_host(labels.block)))
        labels = DistDense(block, labels.layout, labels.shape)
    return model.targets(labels, split, metric)


def _not_validated(model: GCN, targets: Targets, s: Settings) -> str | None:
    """Return why validation gives no score, whatever the logits, or None where it gives one. Collective."""
    layout, shape = model.output_layout, (model.A.shape[0], model.widths[-1])
    logits = model.grid.backend.zeros(layout.local_shape(shape), np.dtype(s.dtype))
    measured = scores(DistDense(logits, layout, shape), targets)
    name = next(name for name in measured if name.startswith("val_"))
    if not math.isnan(measured[name]):
        return None
    problem = "no node of the validation split has a label; prepare the store with split=0.6/0.2/0.2"
    if targets.counts[VAL]:
        reason = "no class is that of some validation nodes and not of others"
        few = "R² needs two validation nodes, and there is one"
        reason = few if s.metric == "r2" else reason
        problem = f"{name} cannot be measured, as {reason}; take another metric or split"
    return problem

"""Targets of a network that learns or predicts the labels of a store."""

from __future__ import annotations

from typing import Any

from distgnn.layout import Layout
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import Targets, as_numbers
from distgnn.operators.dense import DistDense
from distgnn.split import TRAIN, labelled
from distgnn.store.read.distributed import load_targets
from distgnn.store.read.store import Store


def targets_of(store: Store, model: GCN, loss: str, metric: str | None = None) -> Targets:
    """Load the labels and the split of a store for a network with this loss. Collective."""
    labels, split = load_targets(store, model.output_layout)
    if loss == "mse":
        on = model.grid.backend
        block = on.asarray(as_numbers(on.to_host(labels.block)))
        labels = DistDense(block, labels.layout, labels.shape)
    return model.targets(labels, split, metric)


def training_rows(store: Store, layout: Layout) -> Any:
    """Return which of this rank's rows are those of labelled training nodes, bool, on the grid's backend.
    Collective.
    """
    labels, split = load_targets(store, layout)
    on = layout.grid.backend
    return on.asarray((on.to_host(split.block)[:, 0] == TRAIN) & labelled(on.to_host(labels.block)))

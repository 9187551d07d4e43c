"""The engine on one rank in float64, as `--check` trains with it, beside the serial oracle.

Every loss of every update, and every parameter after it, whose step by SGD is its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.nn.loss import as_numbers
from distgnn.sampling import Replicated
from distgnn.split import TRAIN
from distgnn.store import prepare
from distgnn.train import Run
from distgnn.train.minibatches import Minibatches, sampler_on
from distgnn.train.serial import Reference
from oracle import GCNReference, SageReference
from oracle_attention import GATReference, GATv2Reference
from oracle_optim import ReferenceOptimizer
from oracle_scores import labelled

from .stores import Communities, made, small_store
from .test_check import DEEP, KINDS
from .test_multilabel_job import several
from .test_regression_job import stored

NETWORKS = {"gcn": GCNReference, "sage": SageReference, "gat": GATReference, "gatv2": GATv2Reference}
OPTIONS = "seed", "dropout", "bias", "residual", "layer_norm", "activation"
MORE = {
    "adamw": f"{DEEP} --optimizer adamw --weight-decay 0.3,0.1,0 --train-features --clip 0.2",
    "momentum": f"{DEEP} --optimizer sgd --momentum 0.9 --weight-decay 0.1 --standardize-features",
    "double": f"{DEEP} --algorithm 3d --order double --train-features".replace("--residual", ""),
}


class Oracle:
    """The training of a run by the serial networks, and its minibatches one after the other."""

    def __init__(self, run: Run) -> None:
        s, store, order = run.settings, run.store, run.order
        inputs, whole = order.layer(-1), (0, store.n)
        ids, A = inputs.permutation(*whole), order.block(whole, whole).astype(np.float64)
        if s.samples:
            ids = np.arange(store.n)
            A = neighbours(A) if s.model == "sage" else A
        elif inputs is not order:
            A = A[order.positions(ids)]
        options = {name: getattr(s, name) for name in OPTIONS}
        if str(s.model).startswith("gat"):
            options |= {"heads": s.heads, "attention_dropout": s.attention_dropout}
        self.network = NETWORKS[str(s.model)](A, run.widths, dtype=np.float64, nodes=ids, **options)
        labels, split = store.labels(inputs), store.split(inputs)
        self.labels = as_numbers(labels) if s.loss == "mse" else labels
        self.rows = labelled(labels, split, TRAIN)
        X = store.features(inputs).astype(np.float64)
        if s.normalize_features:
            sums = abs(X).sum(axis=1, keepdims=True)
            X /= np.where(sums == 0, 1, sums)
        if s.standardize_features:
            X = (X - X[self.rows].mean(axis=0)) / X[self.rows].std(axis=0)
        self.network.features = X
        self.settings, self.A = s, A
        self.optimizer = ReferenceOptimizer(s.optimizer, s.decays, s.momentum, s.clip)

    def epoch(self, epoch: int, lr: float) -> Iterator[float]:
        """Yield the loss of each update when it is made."""
        s, network = self.settings, self.network
        if not s.samples:
            updates = iter([network.epoch_gradients(self.labels, self.rows, epoch, s.train_features)])
        else:
            updates = self.of_minibatches(epoch)
        for loss, gradients in updates:
            network.update(self.optimizer, gradients, lr, epoch)
            yield loss

    def of_minibatches(self, epoch: int) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield the mean loss and the mean gradients over the nodes of the minibatches of each update."""
        s, sampler = self.settings, sampler_on(self.settings, Replicated(self.A), lambda: self.rows, None)
        minibatches = Minibatches(self.rows, int(s.batch_size or 0), s.seed)
        batches, per_update = minibatches.epoch(epoch), int(s.batches_per_update or 0)
        for first in range(0, len(batches), per_update):
            total, count, sums = 0.0, 0, dict.fromkeys(self.network.parameters(), 0.0)
            for number in range(first, min(first + per_update, len(batches))):
                (sample,) = sampler.sample_at([batches[number]], epoch=epoch, first=number)
                size, step = len(sample.batch), (epoch - 1) * len(minibatches) + number + 1
                count += size if sample.loss_weights is None else int(sample.population or 0)
                weights = size * (np.ones(size) if sample.loss_weights is None else sample.loss_weights)
                graphs = [(self.network.block_operator(block.A), block.cols) for block in sample.blocks]
                given = self.network.features[sample.inputs], self.labels[sample.batch], np.arange(size), step
                known = {"features": False, "graphs": graphs, "loss_weights": weights}
                loss, gradients = self.network.named_gradients(*given, **known)
                total += loss
                sums = {name: g + gradients[name] for name, g in sums.items()}
            yield total / count, {name: g / count for name, g in sums.items()}


def neighbours(A: sp.csr_array) -> sp.csr_array:
    entries = A.tocoo()
    others = entries.row != entries.col
    parts = np.ones(others.sum()), (entries.row[others], entries.col[others])
    return sp.csr_array(parts, shape=A.shape)


def compare(store: str | Path, words: str, comm: Any, epochs: int = 3) -> None:
    """Compare every loss, and all parameters after every update."""
    run = made(comm, store, *words.split(), "--dtype", "float64", "--epochs", 9, "--seed", 3)
    ours = Reference(run.store, run.order, run.widths, run.settings)
    theirs = Oracle(run)
    arrays = theirs.network.parameters(run.settings.train_features)
    assert {p.name for p in ours.trained} == set(arrays)
    seen = set()
    for epoch in range(1, epochs + 1):
        lr = run.settings.lr / epoch
        for loss, expected in zip(ours.epoch(epoch, lr), theirs.epoch(epoch, lr), strict=True):
            assert loss == pytest.approx(expected, rel=1e-13, abs=1e-13)
            seen.add(loss)
            if run.minibatches is not None:
                same(ours, arrays)
        same(ours, arrays)
    assert len(seen) >= epochs
    run.grid.free()


def same(ours: Reference, arrays: dict[str, np.ndarray]) -> None:
    for p in ours.trained:
        theirs = arrays[p.name].reshape(p.block.shape)
        np.testing.assert_allclose(p.block, theirs, rtol=1e-11, atol=1e-12, err_msg=p.name)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", [*KINDS, *MORE])
def test_updates_are_those_of_the_serial_networks(comm, kind, tmp_path) -> None:
    """With the optimiser of the kind, and with SGD, which takes gradients as they are."""
    words, path = (KINDS | MORE)[kind], tmp_path / "any.dg"
    prepare(Communities(directed="sampled" in kind), path, order=("random", "double"))
    compare(path, words, comm)

    compare(path, f"{words} --optimizer sgd --momentum 0 --lr 1", comm)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", ["deep", "sage", "gatv2", "sampled-gcn", "saint"])
def test_losses_of_several_classes_and_of_numbers(comm, kind, tmp_path) -> None:
    for store in (several(tmp_path), stored(tmp_path), small_store(tmp_path)):
        compare(store, f"{KINDS[kind]} --lr 0.05", comm)

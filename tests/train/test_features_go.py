"""Features of a run go when A X is kept and nothing else needs them, and no loss changes by that."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from distgnn import ledger
from distgnn.errors import TrainingError
from distgnn.nn.features import gone
from distgnn.operators.dense import DistDense
from distgnn.store.read.distributed import load_features
from distgnn.train import Run, Settings, data
from distgnn.train.full_graph import train

from .stores import small_store

GO = {"gcn": {}, "evaluated": {"eval_every": 1}, "norm": {"layer_norm": True}, "3d": {"algorithm": "3d"}}
STAY = {
    "dropout": {"dropout": 0.5},
    "sage": {"model": "sage"},
    "gat": {"model": "gat", "heads": [1, 1]},
    "trained": {"train_features": True},
    "transformed first": {"product_order": "transform-first"},
    "in every epoch": {"keep_aggregate": False},
    "minibatches": {"sampler": "sage", "model": "gcn", "fanout": [3, 3], "batch_size": 5},
}


def started(store, comm, **settings):
    how = {"epochs": 4, "hidden": [6], "dropout": 0.0, "eval_every": 0, "product_order": "aggregate-first"}
    how |= {"tune_gemm": False}  # whose choice goes by seconds
    return Run(store, Settings(**{**how, "algorithm": "1d", **settings}), comm)


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("case", [*GO, *STAY])
def test_features_go_where_nothing_needs_them(comm, shared_tmp_path, case) -> None:
    settings = (GO | STAY)[case]
    settings |= {"algorithm": None} if "sampler" in settings else {}
    settings |= {"product_order": "auto"} if case in ("gat", "minibatches") else {}
    run = started(small_store(shared_tmp_path, comm), comm, **settings)
    gc.collect()
    held, loaded = ledger.books().held, ledger.books().held["features"]
    records = list(run.train())
    gc.collect()
    assert len(records) == 4 and gone(run.X) == (case in GO)
    assert held["features"] == loaded - run.X.block.size * 4 * (case in GO)
    assert (run.report() is not None) == (comm.rank == 0)  # from A X


@pytest.mark.ranks(1, 3, 4)
def test_losses_are_those_of_features_that_stay(comm, shared_tmp_path, monkeypatch) -> None:
    """And those of a second training, and the logits are those of the features, to rounding."""
    store, found = small_store(shared_tmp_path, comm), []
    for goes in (True, False):
        with monkeypatch.context() as patch:
            if not goes:
                patch.setattr(data, "owned", lambda X, s: X)
            run = started(store, comm, eval_every=2)
            found.append([(record["loss"], record.get("val_acc")) for record in run.train()])
            assert gone(run.X) == goes
            options = run.model, run.X, run.targets, run.optimizer, 6
            found[-1] += [(record["loss"], None) for record in train(*options, first_epoch=5, eval_every=0)]
            stored = load_features(run.store, run.model.input_layout, dtype="float32")
            assert isinstance(stored, DistDense)
            Z, anew = run.model.forward(run.X), run.model.forward(stored)
            np.testing.assert_allclose(Z.block, anew.block, rtol=1e-4, atol=1e-5)
            assert np.isfinite(stored.block).all()
    assert found[0] == found[1] and len(found[0]) == 6


@pytest.mark.ranks(1, 2)
def test_the_layer_is_named_where_features_are_gone(comm, shared_tmp_path) -> None:
    run = started(small_store(shared_tmp_path, comm), comm)
    next(epochs := run.train())
    epochs.close()
    run.model.layers[1].W.block[...] = np.nan
    with pytest.raises(TrainingError, match="layer 1: "):
        run.model.evaluate(run.X, run.targets, False)

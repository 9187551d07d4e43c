"""Stores whose nodes may have several classes: training, minibatches, predictions, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
from distgnn import cli
from distgnn.errors import ArgumentError, UserError
from distgnn.nn import GCN, SGD
from distgnn.operators import grids, make_grid
from distgnn.operators.dense import gather
from distgnn.sampling import GraphSage, Replicated
from distgnn.store.read.distributed import load, load_features, load_targets
from distgnn.train import Minibatches, MinibatchTraining, Run, Settings
from distgnn.train.answers import sigmoid
from distgnn.train.predict import Predictor
from oracle import GCNReference
from oracle_scores import METRICS, labelled

from .stores import events, run, small_store

N, CLASSES = 60, 9  # bits of two bytes


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    r = np.random.default_rng(5)
    rows = (r.random((N, CLASSES)) < 0.3).astype(np.int8)
    X = (rows @ r.standard_normal((CLASSES, 7)) + 0.1 * r.standard_normal((N, 7))).astype(np.float32)
    rows[[3, 4]] = -1
    return np.stack([np.arange(N).repeat(2), r.integers(0, N, 2 * N)]), X, rows, [1, 2, 3] * (N // 3)


EDGES, X, ROWS, SPLIT = problem()
SPLITS = {"train": 1, "val": 2, "test": 3}


def several(folder: Path, comm: Any = None) -> str:
    path = folder / "several.dg"
    if comm is None or comm.Get_rank() == 0:
        dg.prepare(EDGES, X, ROWS, SPLIT, out=path, order=["random", "double"], directed=False)
    if comm is not None:
        comm.Barrier()
    return str(path)


def expected(logits: np.ndarray, metric: str) -> dict[str, float]:
    measure = METRICS[metric][0]
    split = np.array(SPLIT)
    return {f"{p}_{metric}": measure(logits, ROWS, labelled(ROWS, split, k)) for p, k in SPLITS.items()}


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ["1d", "2d", "3d"])
@pytest.mark.slow
def test_a_run_is_logged_checked_and_predicts(comm, shared_tmp_path, capsys, algorithm) -> None:
    """Classes cut over ranks too; the log's names are those of the metric."""
    store, log, weights = several(shared_tmp_path, comm), shared_tmp_path / "l", shared_tmp_path / "w"
    order = "double" if algorithm == "3d" else "random"
    words = [store, "--algorithm", algorithm, "--order", order, "--metric", "rocauc", "--epochs", 3]
    words += ["--hidden", 6, "--lr", 0.1, "--log", log, "--checkpoint", weights, "--check"]
    assert run(comm, *words) == 0
    predictor = Predictor(store, weights, comm, algorithm, order=order)
    path, lines = (predictor.write(shared_tmp_path / f"p.{kind}") for kind in ("npz", "csv"))
    logits, found = gather(predictor.model.forward(predictor.X)), predictor.scores("rocauc")
    names = list("abcdefghi")
    predictor.class_names = names
    named = predictor.write(shared_tmp_path / "named.csv")
    comm.Barrier()
    if comm.rank:
        return
    out = capsys.readouterr().out
    assert "val rocauc 0." in out and "macro ROC-AUC after the last update: train 0." in out
    (begin,), epochs, (end,) = (events(log, kind) for kind in ("run", "epoch", "end"))
    assert begin["config"]["metric"] == "rocauc" and not any(name.endswith("_acc") for name in epochs[0])
    assert {name: end["best"][name] for name in found} == pytest.approx(found) == expected(logits, "rocauc")
    columns = [f"{what}_{name}" for what in ("label", "probability") for name in names]
    assert named.read_text().splitlines()[0] == ",".join(["node", *columns])
    assert named.read_text().splitlines()[1:] == lines.read_text().splitlines()[1:]
    with np.load(path) as saved:
        assert saved["probability"] == pytest.approx(1 / (1 + np.exp(-logits)), rel=1e-5)
        assert saved["label"].dtype == np.int8 and (saved["label"] == (logits > 0)).all()
        head, *rows = csv.reader(lines.read_text().splitlines())
        names = [f"{what}_{k}" for what in ("label", "probability") for k in range(CLASSES)]
        assert head == ["node", *names] and [int(row[0]) for row in rows] == list(range(N))
        assert (np.array([row[1:10] for row in rows], int) == saved["label"]).all()
        assert np.array([row[10:] for row in rows], float) == pytest.approx(saved["probability"], rel=1e-5)


@pytest.mark.ranks(1, 3)
def test_minibatches_take_steps_of_the_reference(comm, shared_tmp_path, backend) -> None:
    """Two minibatches to an update, all neighbours: gradients of the reference over their nodes."""
    store = dg.Store(several(shared_tmp_path, comm))
    grid = make_grid(comm, "1.5d", grids("1.5d", comm.Get_size())[0], backend=backend)
    A = load(store, grid, "1.5d", "random", np.float64)
    model, order = GCN(A, [7, 5, CLASSES]), store.order("random")
    features = load_features(store, model.input_layout, dtype=np.float64)
    targets = model.targets(*load_targets(store, model.output_layout))
    order.dtype = np.dtype(np.float64)
    sampler = GraphSage(Replicated(order, backend=grid.backend), [N, N], rescale=True)
    training = MinibatchTraining(model, features, targets, sampler, 4, 2, seed=6)
    found = [record["loss"] for record in training.train(SGD(3.0), 2)]
    split, rows, matrix = store.split(order), store.labels(order), order.block((0, N), (0, N))
    known = labelled(rows, split, 1)
    serial = GCNReference(matrix, [7, 5, CLASSES], dtype=np.float64)
    for epoch, loss in enumerate(found, 1):
        batches, total = Minibatches(known, 4, seed=6).epoch(epoch), 0.0
        for first in range(0, len(batches), 2):
            nodes = np.concatenate(batches[first : first + 2])
            mean, gradients, _, _ = serial.gradients(store.features(order), rows, nodes, features=False)
            total += mean * len(nodes)
            for W, gradient in zip(serial.weights, gradients, strict=True):
                W -= 3.0 * gradient
        assert loss == pytest.approx(total / len(known), rel=1e-9)
    assert abs(serial.weights[0] - GCN(A, [7, 5, CLASSES]).get_weights()[0]).max() > 1e-3
    for ours, theirs in zip(model.get_weights(), serial.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    grid.free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sampler", ["saint", "ladies"])
@pytest.mark.slow
def test_samplers_that_weigh_losses_train(comm, shared_tmp_path, sampler) -> None:
    how = {"sampler": sampler, "fanout": [30], "batch_size": 8, "lr": 0.05, "hidden": [8], "order": "random"}
    how |= {"recipe": "plain"}
    how |= {"fanout": [30, 30]} if sampler == "ladies" else {"partition_graph": True}
    records = list(Run(several(shared_tmp_path, comm), Settings(**how, epochs=12), comm).train())
    assert records[-1]["loss"] < 0.95 * records[0]["loss"] and 0 < records[-1]["train_f1"] < 1


@pytest.mark.ranks(1, 2)
def test_what_labels_do_not_have_is_refused(comm, shared_tmp_path) -> None:
    store = several(shared_tmp_path, comm)
    for path, metric, words in (
        (store, "accuracy", "metric=accuracy: several classes of a node have f1 and rocauc"),
        (small_store(shared_tmp_path, comm), "rocauc", "one class of a node has accuracy"),
    ):
        with pytest.raises(ArgumentError, match=words):
            Run(path, Settings(metric=metric), comm)
    with pytest.raises(ArgumentError, match="metric=auc: expected one of accuracy, f1, rocauc"):
        Run(store, Settings(metric="auc"), comm)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ["1d", "2d", "3d"])
def test_validation_without_a_score_is_followed_by_nothing(comm, shared_tmp_path, algorithm) -> None:
    """All validation nodes have the same class: their ROC-AUC is NaN, and patience would stop the run."""
    path, rows = shared_tmp_path / "one.dg", ROWS.copy()
    rows[(np.array(SPLIT) == 2) & (rows[:, 0] >= 0)] = np.eye(CLASSES, dtype=np.int8)[2]
    if comm.Get_rank() == 0:
        dg.prepare(EDGES, X, rows, SPLIT, out=path, directed=False)
    comm.Barrier()
    how = {"algorithm": algorithm, "epochs": 12, "metric": "rocauc"}
    for name, value in (("keep_best", "val"), ("patience", 7), ("schedule", "plateau:3,0.5")):
        words = f"one.dg: val_rocauc cannot be measured, as no class .*, or leave out {name}={value}$"
        with pytest.raises(UserError, match=words):
            Run(path, Settings(**how, **{name: value}), comm)
    records = list(Run(path, Settings(**how), comm).train())
    assert len(records) == 12 and np.isnan(records[-1]["val_rocauc"]) and records[-1]["train_rocauc"] > 0
    how |= {"metric": "f1", "patience": 12}
    assert len(list(Run(path, Settings(**how), comm).train())) == 12


@pytest.mark.ranks(1)
@pytest.mark.slow
def test_networks_belong_to_a_kind_of_labels(comm, tmp_path, capsys) -> None:
    """A run does not go on with labels of another kind, and such a graph gives predictions and no scores."""
    store, weights = several(tmp_path), str(tmp_path / "w")
    settings = Settings(epochs=1, checkpoint=weights, order="random", metric="rocauc")
    list(Run(store, settings, comm).train())
    list(Run(store, Settings(epochs=2, checkpoint=weights, resume=True, order="random"), comm).train())
    single = str(tmp_path / "single.dg")
    dg.prepare(EDGES, X, np.arange(N) % CLASSES, SPLIT, out=single, directed=False)
    with pytest.raises(UserError, match="was written by a run with"):
        Run(single, Settings(epochs=3, checkpoint=weights, resume=True), comm)
    assert Predictor(single, weights, comm).scores() == {}
    capsys.readouterr()
    out = str(tmp_path / "p.npz")
    how = ["predict", store, "--checkpoint", weights, "--out", out]
    assert cli.main([*how, "--metric", "accuracy"]) == 2 and not Path(out).exists()
    assert "--metric accuracy: several classes" in capsys.readouterr().err
    assert cli.main(how) == 0 and "after epoch 2, train f1 0." in capsys.readouterr().out


@pytest.mark.ranks(1)
def test_prepare_info_and_train_say_what_it_is(comm, tmp_path, capsys) -> None:
    np.save(tmp_path / "y.npy", ROWS)
    np.save(tmp_path / "x.npy", X)
    np.savetxt(tmp_path / "edges.csv", EDGES.T, "%d", ",")
    files = ["--features", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--split", "0.6/0.2/0.2"]
    store = str(tmp_path / "s.dg")
    assert cli.main(["prepare", str(tmp_path / "edges.csv"), store, *map(str, files)]) == 0
    assert "9 classes, of which a node may have several, 58 nodes labelled" in capsys.readouterr().out
    assert cli.main(["info", store, "--verify"]) == 0
    assert "9, of which a node may have several, 58 labelled nodes" in capsys.readouterr().out
    assert cli.main(["train", store, "--epochs", "2"]) == 0
    assert "micro F1 after the last update: train 0." in capsys.readouterr().out


def test_probabilities_of_large_logits() -> None:
    logits = np.array([-1e4, -1.0, 0.0, 2.0, 1e4])
    assert sigmoid(logits) == pytest.approx([0, 1 / (1 + np.e), 0.5, 1 / (1 + np.exp(-2)), 1])

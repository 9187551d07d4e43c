"""Stores of numbers to predict: training, minibatches, plans, predictions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgnn as dg
import oracle_scores as reference
from chosen_grids import wide
from distgnn import cli
from distgnn.errors import ArgumentError, UserError
from distgnn.operators.dense import gather
from distgnn.plan import Graph, dry_run
from distgnn.train import Run, Settings
from distgnn.train.predict import Predictor
from oracle_scores import labelled

from ..nn.problem import Problem
from ..plan.test_dry_run import HIDDEN, compare
from .stores import events, run

N = 60
SPLITS = {"train": 1, "val": 2, "test": 3}


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    r = np.random.default_rng(5)
    X = r.standard_normal((N, 7)).astype(np.float32)
    numbers = (X @ r.standard_normal((7, 3)) + 4).astype(np.float32)
    numbers[[3, 4]] = np.nan
    return np.stack([np.arange(N).repeat(2), r.integers(0, N, 2 * N)]), X, numbers, [1, 2, 3] * (N // 3)


EDGES, X, Y, SPLIT = problem()


def stored(folder: Path, comm: Any = None, y: Any = Y, name: str = "numbers", **options: Any) -> str:
    path = folder / f"{name}.dg"
    if comm is None or comm.Get_rank() == 0:
        given = {"regression": True, "order": ["random", "double"], "directed": False} | options
        dg.prepare(EDGES, X, y, SPLIT, out=path, **given)
    if comm is not None:
        comm.Barrier()
    return str(path)


def expected(logits: np.ndarray, numbers: np.ndarray) -> dict[str, float]:
    split, measures = np.array(SPLIT), {"r2": reference.determination, "mae": reference.mean_absolute_error}
    return {
        f"{part}_{short}": measure(logits, numbers, labelled(numbers, split, k))
        for short, measure in measures.items()
        for part, k in SPLITS.items()
    }


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("algorithm", ["1d", "1.5d", "2d", "3d", "rdm"])
def test_a_run_is_logged_checked_resumed_and_predicts(comm, shared_tmp_path, capsys, algorithm) -> None:
    """Three columns, cut over ranks too."""
    store, log, weights = stored(shared_tmp_path, comm), shared_tmp_path / "l", shared_tmp_path / "w"
    order = "double" if algorithm == "3d" else "random"
    words = [store, "--algorithm", algorithm, "--order", order, "--hidden", 6, "--lr", 0.05, "--bias"]
    words += ["--log", log, "--checkpoint", weights, "--keep-best", "val"]
    assert run(comm, *words, "--epochs", 4, "--check", "all") == 0
    assert run(comm, *words, "--epochs", 9, "--resume", "--check", "all") == 0
    predictor = Predictor(store, weights, comm, algorithm, order=order, which="last")
    path, lines = (predictor.write(shared_tmp_path / f"p.{kind}") for kind in ("npz", "csv"))
    outputs, found = gather(predictor.model.forward(predictor.X)), predictor.scores()
    comm.Barrier()
    if comm.rank:
        return
    out = capsys.readouterr().out
    assert "val r2 " in out and " mae " in out and "R² after the last update: train " in out
    (begin, *_), epochs, (*_, end) = (events(log, kind) for kind in ("run", "epoch", "end"))
    assert (begin["config"]["loss"], begin["config"]["metric"]) == ("mse", "r2")
    assert len(epochs) == 9 and epochs[-1]["loss"] < epochs[0]["loss"]
    assert {name: end[name] for name in found} == pytest.approx(found) == expected(outputs, Y)
    best = max(record["val_r2"] for record in [*epochs[1:], end])
    assert end["best"]["val_r2"] == best
    with np.load(path) as saved:
        assert set(saved) == {"prediction"} and (saved["prediction"] == outputs).all()
    head, *rows = lines.read_text().splitlines()
    assert head == "node,prediction_0,prediction_1,prediction_2"
    got = np.array([row.split(",") for row in rows], float)
    assert got[:, 1:] == pytest.approx(outputs, rel=1e-5) and (got[:, 0] == np.arange(N)).all()


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("sampler", ["sage", "ladies", "fastgcn", "saint"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_minibatches_are_those_of_the_serial_training(comm, shared_tmp_path, sampler, dtype) -> None:
    """Every update is compared with the reference on the same samples."""
    store = stored(shared_tmp_path, comm)
    fanout = (5,) if sampler == "saint" else (5, 5)
    settings = Settings(
        sampler=sampler, fanout=fanout, batch_size=6, hidden=5, epochs=3, check="all", dtype=dtype,
        batches_per_update=3,
    )  # fmt: skip
    job = Run(store, settings, comm)
    records = list(job.train())
    assert job.check is not None and job.check.compared >= 3
    assert all(np.isfinite(record["loss"]) for record in records) and "val_mae" in records[-1]


@pytest.mark.ranks(1, 3)
def test_fit_is_a_run_on_a_store(comm, shared_tmp_path) -> None:
    """One column and three; a model predicts numbers of the shape that it was given."""
    mine = (EDGES, X, Y, SPLIT) if comm.Get_rank() == 0 else (None,) * 4
    how: Any = {"hidden": 6, "epochs": 5, "algorithm": "1d", "lr": 0.05}
    model = dg.fit(*mine, directed=False, loss="mse", comm=comm, **how)
    job = Run(stored(shared_tmp_path, comm), Settings(order="random", **how), comm)
    *_, last = job.train()
    assert model.loss == pytest.approx(last["loss"], rel=1e-5) and model.regression
    assert set(model.metrics) == {f"{part}_{short}" for part in SPLITS for short in ("r2", "mae")}
    assert model.val_score == model.metrics["val_r2"] == pytest.approx(job.end["val_r2"], rel=1e-4)
    whole = model.predict()
    model.save(shared_tmp_path / "saved")
    comm.Barrier()
    predictor = Predictor(stored(shared_tmp_path, comm, name="again"), shared_tmp_path / "saved", comm)
    assert predictor.scores() == pytest.approx(dict(model.metrics), rel=1e-4)
    one = dg.fit(EDGES, X, Y[:, 0], SPLIT, directed=False, loss="mse", comm=comm, **how)
    if comm.Get_rank() == 0:
        assert expected(whole, Y) == pytest.approx(dict(model.metrics), rel=1e-6)
        assert one.predict().shape == (N,) and one.predict([2, 1]).shape == (2,)
        assert repr(one).startswith("<Model gcn, 1 numbers, epoch 5: train_r2")


@pytest.mark.ranks(1, 3)
def test_whole_numbers_are_predicted_where_asked_for(comm, shared_tmp_path) -> None:
    """Numbers of classes have one column; -1 is no label. Names of classes are no numbers."""
    counts = np.arange(N) % 5 - 1
    store = stored(shared_tmp_path, comm, counts, regression=False, order=["random"])
    job = Run(store, Settings(loss="mse", hidden=4, epochs=3, check="all", checkpoint=None), comm)
    list(job.train())
    assert job.widths == [7, 4, 1] and job.targets.counts[1:] == [16, 16, 16]
    numbers = np.where(counts < 0, np.nan, counts.astype(float))
    got, outputs = job.model.evaluate(job.X, job.targets), gather(job.model.forward(job.X))
    if comm.Get_rank() == 0:
        assert got == pytest.approx(expected(outputs, numbers), rel=1e-6)
    classes = [*"abc"] * (N // 3)
    named = stored(shared_tmp_path, comm, classes, "named", regression=False, order=["random"])
    numbered = stored(shared_tmp_path, comm, name="numbered")
    for path, loss, what in (
        (named, "mse", "loss=mse: the classes have names, such as 'a', and names are no numbers to predict"),
        (numbered, "softmax", "loss=softmax: numbers of a node have the loss mse"),
        (store, "binary", "loss=binary: one class of a node has the loss softmax"),
    ):
        with pytest.raises(ArgumentError, match=what):
            Run(path, Settings(loss=loss), comm)
    with pytest.raises(ArgumentError, match="metric=accuracy: numbers of a node have r2"):
        Run(numbered, Settings(metric="accuracy"), comm)


@pytest.mark.ranks(1, 3)
def test_wrong_numbers_are_refused_on_every_rank(comm) -> None:
    partly, infinite, large = Y.copy(), Y.copy(), Y.astype(np.float64)
    partly[7, 1], infinite[7, 2], large[7, 0] = np.nan, np.inf, 1e300
    for y, what in (
        (partly, "label 1 of node 7 is nan; a node has all of its numbers or none"),
        (infinite, "label 2 of node 7 is inf; expected finite numbers to predict"),
        (large, "label 0 of node 7 is 1e\\+300; expected finite numbers to predict, in the range of float32"),
        ([*"abc"] * (N // 3), "expected a number for each node"),
    ):
        with pytest.raises(UserError, match=what):
            dg.fit(EDGES, X, y, SPLIT, loss="mse", comm=comm)
    with pytest.raises(UserError, match="no classes; expected whole numbers; .* loss=mse, predicts numbers"):
        dg.fit(EDGES, X, np.nan_to_num(Y[:, 0]), SPLIT, comm=comm)
    with pytest.raises(UserError, match="no node of the training split has a label"):
        one = np.where(np.arange(N) == 7, 1.0, np.nan)
        dg.fit(EDGES, X, one, {"train": [3], "val": [7]}, loss="mse", comm=comm)
    with pytest.raises(UserError, match="y=.*: every label is NaN; expected a number for some node"):
        dg.fit(EDGES, X, np.full(N, np.nan), SPLIT, loss="mse", comm=comm)


def test_prepare_reads_numbers_from_files(tmp_path, capsys) -> None:
    """A column of a table, some columns, an array, or JSON: the same as from memory."""
    np.savetxt(tmp_path / "edges.csv", EDGES.T, "%d", ",")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    cells = [[k, *("" if np.isnan(y) else repr(float(y)) for y in row)] for k, row in enumerate(Y)]
    table = ["node,a,b,c", *(",".join(map(str, row)) for row in cells)]
    (tmp_path / "y.csv").write_text("\n".join(table))
    known = {str(k): row.tolist() for k, row in enumerate(Y) if not np.isnan(row[0])}
    (tmp_path / "y.json").write_text(json.dumps(known))
    base = ["prepare", tmp_path / "edges.csv", tmp_path / "o.dg", "--features", tmp_path / "x.npy", "--force"]
    base += ["--split", "0.6/0.2/0.2"]
    contents = set()
    for name, more in (("y.npy", []), ("y.csv", ["--label-column", "a,b,c"]), ("y.json", [])):
        words = [*base, "--labels", tmp_path / name, "--regression", *more]
        assert cli.main([*map(str, words)]) == 0
        assert "7 features; 3 numbers to predict, 58 nodes labelled" in capsys.readouterr().out
        store = dg.Store(tmp_path / "o.dg", verify=True)
        np.testing.assert_array_equal(store.labels(), Y)
        assert store.labels().dtype == np.float32 and store.regression and not store.multilabel
        contents.add(store.manifest["content"]["labels"])
    assert len(contents) == 1
    assert cli.main(["info", str(tmp_path / "o.dg")]) == 0
    assert "none; 3 numbers to predict, 58 labelled nodes" in capsys.readouterr().out
    words = [*base, "--labels", tmp_path / "y.csv", "--regression", "--label-column", "b"]
    assert cli.main([*map(str, words)]) == 0
    np.testing.assert_array_equal(dg.Store(tmp_path / "o.dg").labels(), Y[:, 1:2])
    (tmp_path / "y.csv").write_text("node,a\n0,1.5\n1,red\n")
    capsys.readouterr()
    for words, what in (
        (["--labels", tmp_path / "y.csv", "--regression"], "label 'red' is no number"),
        (["--regression"], "--regression: no numbers to predict were read"),
        (["--labels", tmp_path / "y.npy"], "numbers to predict (regression) are no labels"),
    ):
        assert cli.main([*map(str, [*base, *words])]) == 2
        assert what in capsys.readouterr().err


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("sampler", [None, "sage"])
def test_a_run_is_charged_what_was_planned(comm, sampler) -> None:
    r = np.random.default_rng(0)
    p = Problem()
    numbers = r.standard_normal((p.n, p.classes))
    numbers[p.labels < 0] = np.nan
    graph = Graph.known(abs(p.A), p.width, p.classes, numbers, p.split)
    algorithm = "1.5d" if sampler else "2d"
    settings = Settings(algorithm=algorithm, grid=wide(algorithm, comm.Get_size()), **HIDDEN)
    if sampler:
        settings = Settings(sampler=sampler, fanout=[4, 3, 2], batch_size=3, replication=1, **HIDDEN)
    compare(comm, settings, graph)


def test_plans_of_numbers(tmp_path, capsys) -> None:
    store = stored(tmp_path)
    how = ["plan", "--ranks", "4", "--machine", "infiniband-cpu", "--json", "--algorithm", "2d"]
    assert cli.main([*how, store, "--order", "random"]) == 0
    planned = json.loads(capsys.readouterr().out)["graph"]
    assert (planned["loss"], planned["classes"]) == ("mse", 3)
    assert cli.main([*how, store, "--loss", "softmax"]) == 2
    assert "--loss softmax: numbers of a node have the loss mse" in capsys.readouterr().err
    sizes = Graph.of_size(1200, 24_000, 8, 4, loss="mse")
    dry_run(Settings(algorithm="2d", grid="2x2", hidden=8), sizes, 4)
    with pytest.raises(ArgumentError, match="the graph to plan for has labels of the loss mse"):
        dry_run(Settings(algorithm="2d", grid="2x2", hidden=8, loss="softmax"), sizes, 4)

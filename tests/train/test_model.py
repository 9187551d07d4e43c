"""Models that one keeps: saved, loaded and used on another graph, equal to the serial oracle's."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn import cli
from distgnn.errors import ArgumentError
from distgnn.store import checkpoint
from distgnn.store.checkpoint import read_alone
from distgnn.train import Predictor
from mpi_helpers import mpiexec
from oracle import GCNReference, SageReference
from oracle_attention import GATReference, GATv2Reference

N, M, WIDTH, CLASSES = 72, 49, 10, 4
RNG = np.random.default_rng(11)


def graph(n: int, directed: bool = False):
    """Make edges (2, edges), features whose scales differ much, and labels."""
    ends = RNG.integers(0, n, (2, 4 * n))
    edges = ends if directed else np.hstack([ends, ends[::-1]])
    labels = RNG.integers(0, CLASSES, n)
    X = RNG.normal(size=(n, WIDTH)) + 2 * np.eye(CLASSES, WIDTH)[labels]
    return edges, (X * 10.0 ** np.arange(-2, WIDTH - 2)).astype(np.float32), labels


EDGES, X, Y = graph(N)
OTHER, X2, Y2 = graph(M)
ONE_WAY, X3, Y3 = graph(N, directed=True)
ONE_WAY2, X4, Y4 = graph(M, directed=True)
SPLIT = 1 + np.arange(N) % 3
HOW = {"epochs": 2, "hidden": 8, "dtype": "float64", "tune_gemm": False}


def fitted(comm, *arrays, **settings):
    given = arrays or (EDGES, X, Y, SPLIT)
    return dg.fit(*(given if comm.rank == 0 else [None] * len(given)), comm=comm, **HOW | settings)


def on_root(comm, *arrays):
    return arrays if comm.rank == 0 else [None] * len(arrays)


def matrix(edges, n, loops=True, gcn=True, weights=None):
    """Make the engine's A by its definition: each edge once, divided by roots of sums of rows and columns."""
    A = np.zeros((n, n))
    A[edges[1], edges[0]] = 1 if weights is None else weights
    if loops:
        A[np.arange(n), np.arange(n)] = np.where(np.diag(A) != 0, np.diag(A), 1)
    if gcn:
        rows, cols = (np.maximum(A.sum(axis=axis), 1e-300) for axis in (1, 0))
        A = A / np.sqrt(rows)[:, None] / np.sqrt(cols)[None, :]
    return sp.csr_array(A)


def expected(weights: Path, kind, A, features, widths, which="last", **options):
    """Return logits and first hidden outputs of the oracle with the weights of a checkpoint."""
    reader = read_alone(weights)
    net, prefix = kind(A, widths, dtype="float64", **options), "best." if which == "best" else ""
    arrays = {"W": net.weights, "b": net.biases, "g": net.gains, "s": net.shifts} | getattr(net, "added", {})
    for name, held in arrays.items():
        for layer in range(len(held)):
            shape = reader.shapes[f"{prefix}{name}{layer}"]
            held[layer] = reader.piece(f"{prefix}{name}{layer}", (0, shape[0]), (0, shape[1])).reshape(
                held[layer].shape
            )
    stages = net._forward(features, None, net._whole())
    hidden = net._norm(0, stages[1])
    return stages[-1], np.expm1(np.minimum(hidden, 0)) * (hidden < 0) + hidden * (hidden > 0) if (
        net.elu
    ) else np.maximum(hidden, 0)


def standardized(features, train):
    rows = train.astype(np.float64)
    return (features.astype(np.float64) - rows.mean(axis=0)) / rows.std(axis=0)


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize(
    ("settings", "kind", "options"),
    [
        ({"layer_norm": True, "keep_best": "val", "algorithm": "2d"}, GCNReference, {"layer_norm": True}),
        ({"model": "sage", "sampler": "sage", "batch_size": 9}, SageReference, {}),
        ({"model": "gat", "heads": 2, "keep_best": "none"}, GATReference, {"heads": 2}),
        ({"model": "gatv2", "heads": 2, "keep_best": "none"}, GATv2Reference, {"heads": 2}),
    ],
    ids=["gcn", "sage", "gat", "gatv2"],
)
def test_answers_for_another_graph_are_the_oracles(comm, shared_tmp_path, settings, kind, options) -> None:
    """A model in memory and one that was loaded agree; features are scaled as in training."""
    settings = settings if comm.size == 4 or "algorithm" not in settings else settings | {"algorithm": "1d"}
    model = fitted(comm, **settings)
    model.save(shared_tmp_path / "w")
    comm.Barrier()
    loaded = dg.Model.load(shared_tmp_path / "w", comm)
    assert loaded.settings == model.settings and loaded.epoch == model.epoch
    assert loaded.metrics == pytest.approx(dict(model.metrics), nan_ok=True)
    given = on_root(comm, OTHER, X2)
    classes, shares = model.predict(*given), loaded.predict_proba(*given)
    embedded, logits = loaded.embeddings(1, *given), loaded.embeddings(2, *given)
    if comm.rank:
        assert classes is shares is embedded is logits is None
        return
    best = "best" if model.settings.keep_best == "val" else "last"
    known = standardized(X2, X[SPLIT == 1])
    A, widths = matrix(OTHER, M), [WIDTH, 8, CLASSES]
    Z, hidden = expected(shared_tmp_path / "w", kind, A, known, widths, best, bias=True, **options)
    np.testing.assert_allclose(logits, Z, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(embedded, hidden, rtol=1e-9, atol=1e-11)
    assert (classes == Z.argmax(axis=1)).all() and np.ptp(Z) > 0.1
    powers = np.exp(Z - Z.max(axis=1, keepdims=True))
    np.testing.assert_allclose(shares, powers / powers.sum(axis=1, keepdims=True), rtol=1e-8)


@pytest.mark.ranks(1, 3)
def test_the_recipe_is_that_of_training(comm, shared_tmp_path, caplog) -> None:
    """Directions, weights, self-loops and normalisation; of graphs in every form, and without edges."""
    W = RNG.random(ONE_WAY.shape[1])
    keys = np.unique(ONE_WAY2[0] * M + ONE_WAY2[1])
    distinct = np.stack([keys // M, keys % M])
    W2 = RNG.random(len(keys))
    how = {"normalize": "row", "self_loops": False, "weights": W, "keep_best": "none"}
    model = fitted(comm, ONE_WAY, X3, Y3, SPLIT, **how)
    model.save(shared_tmp_path / "w")
    comm.Barrier()
    A = matrix(distinct, M, loops=False, gcn=False, weights=W2)
    rows = np.maximum(A.sum(axis=1), 1e-300)
    known, widths = standardized(X4, X3[SPLIT == 1]), [WIDTH, 8, CLASSES]
    oracle = lambda A, known: expected(shared_tmp_path / "w", GCNReference, A, known, widths, bias=True)[0]  # noqa: E731
    Z = oracle(sp.diags_array(1 / rows) @ A, known)
    source = SimpleNamespace(edge_index=distinct, x=X4, edge_weight=W2, y=["any"], train_mask="thing")
    store = shared_tmp_path / "a.dg"
    dg.prepare(A, X4, out=store, weights=True, normalize="row", self_loops=False, dtype="float64",
               directed=True, comm=comm)  # fmt: skip
    for given, more in (((distinct, X4), {"weights": W2}), ((source,), {}), ((A, X4), {}), ((store,), {})):
        got = model.embeddings(2, *on_root(comm, *given), **(more if comm.rank == 0 else {}))
        if comm.rank == 0:
            np.testing.assert_allclose(got, Z, rtol=1e-6, atol=1e-8)
    bare = model.embeddings(2, *on_root(comm, np.zeros((2, 0), int), X4[:2]), weights=np.zeros(0))
    if comm.rank == 0:
        np.testing.assert_allclose(bare, oracle(sp.csr_array((2, 2)), known[:2]), rtol=1e-9, atol=1e-11)
    undirected = fitted(comm, keep_best="none")
    undirected.save(shared_tmp_path / "u")
    comm.Barrier()
    assert "reverse" not in caplog.text
    got = undirected.embeddings(2, *on_root(comm, OTHER[:, : OTHER.shape[1] // 2], X2))
    if comm.rank == 0:
        assert "some edges come without their reverse, which is added" in caplog.text
        both = undirected.embeddings(2, OTHER, X2) if comm.size == 1 else None
        assert both is None or (both == got).all()
        Z = expected(shared_tmp_path / "u", GCNReference, matrix(OTHER, M), standardized(X2, X[SPLIT == 1]),
                     widths, bias=True)[0]  # fmt: skip
        np.testing.assert_allclose(got, Z, rtol=1e-9, atol=1e-11)


LOAD = """
import sys, numpy as np, distgnn as dg
model = dg.Model.load(sys.argv[1])
with np.load(sys.argv[2]) as held:
    found = model.predict(held["edges"], held["X"]), model.embeddings(1, held["edges"], held["X"])
if found[0] is not None:
    np.savez(sys.argv[3], classes=found[0], embedded=found[1])
"""


def test_a_model_is_loaded_in_another_process(tmp_path) -> None:
    """Other ranks load it, without the data of its training; labels are the user's own."""
    names = np.array(["ant", "bee", "cat", "dog"])
    model = fitted(MPI.COMM_SELF, EDGES, X, names[Y], SPLIT)
    model.save(tmp_path / "w")
    np.savez(tmp_path / "other.npz", edges=OTHER, X=X2)
    done = mpiexec(3, "-c", LOAD, tmp_path / "w", tmp_path / "other.npz", tmp_path / "found.npz", timeout=120)
    assert done.code == 0, done.err
    with np.load(tmp_path / "found.npz") as found:
        assert (found["classes"] == model.predict(OTHER, X2)).all()
        np.testing.assert_allclose(found["embedded"], model.embeddings(1, OTHER, X2), rtol=1e-9, atol=1e-11)


@pytest.mark.ranks(1, 3)
def test_embeddings_of_the_nodes_trained_on(comm, shared_tmp_path) -> None:
    """Also with trained features, which belong to these nodes; a saved model answers for the same graph."""
    for features in (False, True):
        model = fitted(comm, train_features=features, standardize_features=False, normalize_features=False)
        model.save(shared_tmp_path / f"w{features}")
        comm.Barrier()
        loaded = dg.Model.load(shared_tmp_path / f"w{features}", comm)
        logits, again = model.embeddings(2), loaded.embeddings(2, *on_root(comm, EDGES, X))
        if comm.rank == 0:
            np.testing.assert_allclose(logits, model.scores(logits=True), rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(again, logits, rtol=1e-9, atol=1e-11)
    with pytest.raises(dg.UserError, match=r"trained with graph .*; features that were trained belong"):
        loaded.predict(*on_root(comm, OTHER, X2))
    assert comm.allreduce(1) == comm.size


@pytest.mark.ranks(1, 3)
def test_what_cannot_be_answered_is_said_on_every_rank(comm, shared_tmp_path) -> None:
    model = fitted(comm)
    model.save(shared_tmp_path / "w")
    comm.Barrier()
    loaded = dg.Model.load(shared_tmp_path / "w", comm)
    weighted = fitted(comm, epochs=1, weights=np.ones(EDGES.shape[1]))
    text, many = np.array(["x"] * M), np.where(np.arange(M) == 3, 9, 1)
    cases = [
        ("the graph does not fit .*w: .* with features per node: 10, this graph has 7",
         lambda: loaded.predict(*on_root(comm, OTHER, X2[:, :7]))),
        ("graph=None: expected another graph", lambda: model.predict(None, None)),
        ("X=None: the network needs features", lambda: model.predict(*on_root(comm, OTHER))),
        ("layer=None: the network has layers", lambda: model.embeddings(None)),
        ("weights=None: the network was trained with weights of edges, and this graph has none",
         lambda: weighted.predict(*on_root(comm, OTHER, X2))),
        ("layer=3: the network has layers 1 to 2", lambda: loaded.embeddings(3, *on_root(comm, OTHER, X2))),
        ("w: a saved model has no graph; give one", loaded.predict), ("has no graph", loaded.report),
        ("has no graph", lambda: loaded.embeddings(1)), ("a saved model has no losses", lambda: loaded.loss),
        ("nodes=list: are of the graph trained on", lambda: model.predict(OTHER, X2, nodes=[1])),
        ("ids=list: is of another graph", lambda: model.predict(ids=[1])),
        ("trained with graph weighted False, this graph has True",
         lambda: model.predict(*on_root(comm, OTHER, X2), weights=np.ones(OTHER.shape[1]))),
        ("trained with graph directed False, this graph has True",
         lambda: model.predict(*on_root(comm, ONE_WAY2, X4), directed=True)),
        ("y=None: a report needs labels", lambda: model.report(*on_root(comm, OTHER, X2))),
        ("y=x: is no class of the network: 0, 1, 2, 3",
         lambda: model.report(*on_root(comm, OTHER, X2, text))),
        ("y=9: is no class of the network", lambda: model.report(*on_root(comm, OTHER, X2, many))),
        ("X=ndarray: is for arrays, and a store has its own", lambda: model.predict(Path("a.dg"), X2)),
        ("nothing.dg: no such store", lambda: model.predict("nothing.dg")),
        ("the checkpoint has|has the last one only", lambda: fitted(comm, keep_best="none") and dg.Model.load(
            saved(fitted(comm, keep_best="none"), shared_tmp_path / "last", comm), comm, which="best")),
    ]  # fmt: skip
    for problem, ask in cases:
        with pytest.raises(dg.UserError, match=problem) as error:
            ask()
        assert len(str(error.value).splitlines()) == 1 and comm.allreduce(1) == comm.size


def saved(model, path, comm) -> Path:
    model.save(path, force=True)
    comm.Barrier()
    return path


@pytest.mark.ranks(1, 3)
def test_foreign_and_damaged_files_are_refused(comm, shared_tmp_path) -> None:
    root = saved(fitted(comm), shared_tmp_path / "w", comm)
    if comm.rank == 0:
        np.savez(shared_tmp_path / "model.npz", X)
        (shared_tmp_path / "empty").mkdir()
        (shared_tmp_path / "json").mkdir()
        (shared_tmp_path / "json" / "manifest.json").write_text("{}")
    comm.Barrier()
    problems = {"model.npz": "is a file", "none": "no such checkpoint", "empty": "not a distgnn checkpoint",
                "json": "not a distgnn checkpoint"}  # fmt: skip
    for name, problem in problems.items():
        with pytest.raises(dg.UserError, match=problem):
            dg.Model.load(shared_tmp_path / name, comm)
    (file,) = root.glob("*.h5")
    comm.Barrier()
    if comm.rank == 0:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    comm.Barrier()
    with pytest.raises(dg.UserError, match=re.escape(file.name)):
        dg.Model.load(root, comm)


@pytest.mark.ranks(1, 2)
def test_models_of_before_open(comm, shared_tmp_path, monkeypatch, caplog) -> None:
    """Without names, settings, scores and version; then classes are numbers, and a line says so."""
    save, new = checkpoint.save, ("class_names", "settings", "metrics", "distgnn")

    def older(path, world, pieces, meta):
        save(path, world, pieces, {name: meta[name] for name in meta if name not in new})

    monkeypatch.setattr(checkpoint, "save", older)
    model = fitted(comm, EDGES, X, np.array(["a", "b", "c", "d"])[Y], SPLIT, keep_best="none")
    loaded = dg.Model.load(saved(model, shared_tmp_path / "w", comm), comm)
    assert (comm.rank != 0) == ("without names of classes; they are called 0, 1" not in caplog.text)
    assert loaded.settings.hidden == [8] and loaded.settings.dtype == "float64" and loaded.classes[3] == 3
    with pytest.raises(dg.UserError, match="has no scores; report"):
        _ = loaded.test_score
    given = on_root(comm, OTHER, X2)
    then, now = loaded.predict(*given), model.predict(*given)
    assert comm.rank or (model.classes[then] == now).all()


@pytest.mark.ranks(1, 3)
def test_a_report_counts_what_loops_count(comm) -> None:
    """Nodes trained on are counted, and those of another graph that lacks a class."""
    names = np.array(["ant", "bee", "cat", "dog"])
    hidden = np.where(np.arange(N) % 7 == 3, "", names[Y])
    model = fitted(comm, EDGES, X, hidden, SPLIT)
    few = np.where(Y2 == 0, "", names[Y2])
    reports = model.report(), model.report(*on_root(comm, OTHER, X2, few))
    predicted = model.predict(), model.predict(*on_root(comm, OTHER, X2))
    if comm.rank:
        assert reports == (None, None)
        return
    parts = [{"train": SPLIT == 1, "val": SPLIT == 2, "test": SPLIT == 3}, {"test": np.ones(M, bool)}]
    for report, said, there, rows in zip(reports, predicted, (hidden, few), parts, strict=True):
        assert report.parts == [*rows] and report.classes.tolist() == names.tolist()
        for part, some in rows.items():
            pairs = [(a, b) for a, b in zip(there[some], said[some], strict=True) if a]
            matrix = [[pairs.count((a, b)) for b in names] for a in names]
            assert report.confusion[part].tolist() == matrix and report.nodes[part] == len(pairs)
            hits = np.diag(matrix)
            assert report.accuracy[part] == pytest.approx(hits.sum() / len(pairs))
            for k in range(CLASSES):
                column, row = sum(line[k] for line in matrix), sum(matrix[k])
                precision, recall = hits[k] / max(column, 1), hits[k] / max(row, 1)
                assert report.precision[part][k] == pytest.approx(precision)
                assert report.recall[part][k] == pytest.approx(recall) and report.support[part][k] == row
                f1 = 2 * precision * recall / max(precision + recall, 1e-300)
                assert report.f1[part][k] == pytest.approx(f1)
    own = reports[0]
    assert own.accuracy == pytest.approx({part: model.metrics[f"{part}_acc"] for part in own.parts})
    assert own.micro_f1 == pytest.approx(own.accuracy)
    text = str(own).splitlines()
    assert text[0].startswith(f"train: {own.nodes['train']} nodes, accuracy {own.accuracy['train']:.4f}")
    assert text[2].split() == ["ant", *(f"{v['train'][0]:.4f}" for v in (own.precision, own.recall, own.f1)),
                               str(own.support["train"][0])]  # fmt: skip
    assert text[8].split() == ["ant", *map(str, own.confusion["train"][0])]


@pytest.mark.ranks(1, 3)
def test_reports_of_several_classes_and_of_numbers(comm) -> None:
    several = np.zeros((N, CLASSES), np.int8)
    several[np.arange(N), Y] = several[np.arange(N), (Y + 1) % CLASSES] = 1
    names = np.array(["ant", "bee", "cat", "dog"])
    listed = np.char.add(np.char.add(names[Y], ";"), names[(Y + 1) % CLASSES])
    model = fitted(comm, EDGES, X, listed, SPLIT)
    report, of_two = model.report(), model.report(*on_root(comm, OTHER, X2, np.array(["bee;dog"] * M)))
    numbers = np.stack([Y + X[:, 2], 0.5 * Y], axis=1)
    numbers[::9] = np.nan
    fit = fitted(comm, EDGES, X, numbers, SPLIT, loss="mse", epochs=4)
    of_numbers, other = fit.report(), fit.report(*on_root(comm, EDGES, X, numbers, SPLIT))
    with pytest.raises(dg.UserError, match="predicts numbers, which have no probabilities"):
        fit.predict_proba()
    with pytest.raises(ArgumentError, match="y=one class of a node: .* trained on several classes"):
        model.report(*on_root(comm, EDGES, X, np.array(["a"] * N)))
    if comm.rank:
        assert report is of_numbers is None
        return
    assert of_two.support["test"].tolist() == [0, M, 0, M] and model.classes.tolist() == names.tolist()
    said, rows = model.predict(), SPLIT == 2
    for k in range(CLASSES):
        cells = [[((several[rows, k] == a) & (said[rows, k] == b)).sum() for b in (0, 1)] for a in (0, 1)]
        assert report.confusion["val"][k].tolist() == cells
    assert report.micro_f1 == pytest.approx({part: model.metrics[f"{part}_f1"] for part in report.parts})
    assert report.accuracy["val"] == (said[rows] == several[rows]).all(axis=1).mean()
    for part in of_numbers.parts:
        assert of_numbers.r2[part].mean() == pytest.approx(fit.metrics[f"{part}_r2"], rel=1e-5)
        assert of_numbers.mae[part].mean() == pytest.approx(fit.metrics[f"{part}_mae"], rel=1e-5)
        assert other.rmse[part] == pytest.approx(of_numbers.rmse[part], rel=1e-5)
    some = (SPLIT == 3) & ~np.isnan(numbers[:, 0])
    far = fit.predict()[some] - numbers[some]
    assert of_numbers.rmse["test"] == pytest.approx(np.sqrt((far**2).mean(axis=0)), rel=1e-5)
    assert "root mean square" in str(of_numbers) and str(report).startswith("train: 24 nodes, micro F1")


def test_the_commands_print_reports(tmp_path, capsys) -> None:
    store, weights = str(tmp_path / "a.dg"), str(tmp_path / "w")
    dg.prepare(EDGES, X, Y, SPLIT, out=store)
    train = ["train", store, "--epochs", "2", "--checkpoint", weights, "--report"]
    assert cli.main(train) == 0
    trained = capsys.readouterr().out
    assert cli.main(["predict", store, "--checkpoint", weights, "--out", f"{weights}.npz", "--report"]) == 0
    table = capsys.readouterr().out.split("\n", 1)[1]
    assert trained.endswith(table) and table.startswith("train: 24 nodes, accuracy ")
    assert str(Predictor(store, weights).report()) == table.rstrip("\n")
    assert cli.main([*train, "--resume"]) == 0 and capsys.readouterr().out.endswith(table)  # nothing to train
    dg.prepare(EDGES, X, out=tmp_path / "bare.dg")
    words = ["predict", str(tmp_path / "bare.dg"), "--checkpoint", weights, "--out", str(tmp_path / "p.npz")]
    assert cli.main([*words, "--report"]) == 2 and not (tmp_path / "p.npz").exists()
    assert "--report: " in capsys.readouterr().err
    assert dg.Model.load(weights, MPI.COMM_SELF).predict(tmp_path / "bare.dg").shape == (N,)


@pytest.mark.ranks(1)
def test_models_of_one_graph_share_its_arrays(comm) -> None:
    """Not of graphs with other features; a search over settings holds one graph."""
    first, second = (fitted(comm, epochs=1, seed=seed)._kept.arrays for seed in (0, 1))
    third = fitted(comm, EDGES, X + 1, Y, SPLIT, epochs=1)._kept.arrays
    assert first.features is second.features and first.matrix is second.matrix is third.matrix
    assert third.features is not first.features


def test_warnings_of_another_graph_name_the_callers_line() -> None:
    model = fitted(MPI.COMM_SELF, epochs=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.report(OTHER, X2, np.eye(CLASSES, dtype=int)[Y2])
    assert [Path(one.filename).name for one in told] == ["test_model.py"]
    assert "no row has several classes" in str(told[0].message)

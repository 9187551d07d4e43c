"""Predictions from checkpoints: those of the trained network by node, whatever the grid and the order."""

from __future__ import annotations

import csv
import gc
import re

import numpy as np
import pytest

from distgnn import ledger
from distgnn.arrays.tuning import TUNING
from distgnn.errors import ArgumentError, UserError
from distgnn.nn.layers import GraphConvolution
from distgnn.nn.whole_weights import collect
from distgnn.operators.dense import gather
from distgnn.store import checkpoint, prepare
from distgnn.train import Run, Settings
from distgnn.train.answers import softmax
from distgnn.train.predict import Predictor
from train.stores import WIDTH, Communities, N, small_store


def trained(comm, folder, **settings):
    """Return the logits of the network by node, on rank 0, and the paths of its store and checkpoint."""
    store, weights = small_store(folder, comm), str(folder / "weights")
    how = {"epochs": 3, "hidden": [6], "bias": True, "dropout": 0.2, "eval_every": 0, "checkpoint": weights}
    run = Run(store, Settings(**(how | settings)), comm)
    list(run.train())
    return gather(run.model.forward(run.X)), store, weights


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.slow
def test_predictions_are_the_trained_networks_by_node(comm, shared_tmp_path, monkeypatch, model) -> None:
    monkeypatch.setattr(TUNING, "written_numbers", 4 * 7)  # seven nodes at a time
    logits, store, weights = trained(comm, shared_tmp_path, model=model, normalize_features=True)
    for algorithm, order in (("2d", "original"), ("1d", None)):
        predictor = Predictor(store, weights, comm, algorithm, order=order)
        path = predictor.write(shared_tmp_path / f"{algorithm}.npz")
        assert predictor.epoch == 3 and set(predictor.scores()) == {"train_acc", "val_acc", "test_acc"}
        comm.Barrier()
        with np.load(path) as found:
            assert found["label"].shape == (N,) and found["probability"].sum(axis=1) == pytest.approx(1)
            if comm.rank == 0:
                assert found["probability"] == pytest.approx(softmax(logits), rel=1e-4)
                assert (found["label"] == logits.argmax(axis=1)).all()


@pytest.mark.ranks(1, 2)
@pytest.mark.slow
def test_one_forward_pass_serves_all(comm, shared_tmp_path, monkeypatch) -> None:
    """The file of a layer, of the logits, and scores; of a network with layer norm."""
    _, store, weights = trained(comm, shared_tmp_path, hidden=[6, 6], layer_norm=True, residual=True)
    predictor, applied = Predictor(store, weights, comm, "2d"), []
    forward = GraphConvolution.forward
    monkeypatch.setattr(
        GraphConvolution, "forward", lambda self, *given: applied.append(self.index) or forward(self, *given)
    )
    embedding = predictor.write(shared_tmp_path / "e.npz", layer=1)
    assert applied == [0]
    probability = predictor.write(shared_tmp_path / "p.npz")
    found = predictor.scores()
    assert applied == [0, 1, 2]
    fresh = Predictor(store, weights, comm)
    assert fresh.scores() == pytest.approx(found)
    Z, logits = gather(fresh.model.forward(fresh.X, layers=1)), gather(fresh.model.forward(fresh.X))
    gain, shift = (collect(p.matrix) for p in fresh.model.parameters if p.name in ("g0", "s0"))
    comm.Barrier()
    if comm.rank == 0:
        normal = (Z - Z.mean(axis=1, keepdims=True)) / np.sqrt(Z.var(axis=1, keepdims=True) + 1e-5)
        expected = np.maximum(normal * gain + shift, 0)
        assert np.load(embedding)["embedding"] == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert np.load(probability)["probability"] == pytest.approx(softmax(logits), rel=1e-4)


@pytest.mark.ranks(1, 2)
def test_embeddings_and_lines_of_text(comm, shared_tmp_path) -> None:
    logits, store, weights = trained(comm, shared_tmp_path, train_features=True, dropout=0.0)
    predictor = Predictor(store, weights, comm)
    first, last = (predictor.write(shared_tmp_path / f"{layer}.npz", layer) for layer in (1, 2))
    lines = predictor.write(shared_tmp_path / "p.csv")
    comm.Barrier()
    if comm.rank == 0:
        assert np.load(first)["embedding"].shape == (N, 6) and np.load(first)["embedding"].min() >= 0
        assert np.load(last)["embedding"] == pytest.approx(logits, rel=1e-4)
        head, *rows = csv.reader(lines.read_text().splitlines())
        assert head == ["node", "label", *(f"probability_{k}" for k in range(4))]
        assert [int(row[0]) for row in rows] == list(range(N))
        assert np.array([row[2:] for row in rows], float) == pytest.approx(softmax(logits), rel=1e-4)
        assert [int(row[1]) for row in rows] == logits.argmax(axis=1).tolist()


@pytest.mark.ranks(1, 2)
def test_columns_have_the_names_of_classes(comm, shared_tmp_path) -> None:
    graph, path = Communities(), shared_tmp_path / "small.dg"
    graph.class_names = names = ["a, b", 'the "c"', "d", "e"]
    if comm.rank == 0:
        prepare(graph, path)
    comm.Barrier()
    how = {"epochs": 1, "hidden": [4], "checkpoint": str(shared_tmp_path / "w")}
    list(Run(path, Settings(**how), comm).train())
    predictor = Predictor(path, shared_tmp_path / "w", comm)
    lines, hidden = (predictor.write(shared_tmp_path / f"{layer}.csv", layer) for layer in (None, 2))
    comm.Barrier()
    head, *rows = csv.reader(lines.read_text().splitlines())
    assert head == ["node", "label", *(f"probability_{name}" for name in names)]
    assert all(row[1] == names[np.argmax([float(number) for number in row[2:]])] for row in rows)
    assert hidden.read_text().startswith("node,embedding_0,embedding_1,")


def named(folder, comm, name, class_names, classes=4):
    """Prepare a store with these class names; return its path."""
    graph, path = Communities(), folder / f"{name}.dg"
    graph.class_names, graph.classes = class_names, classes
    if comm.rank == 0:
        prepare(graph, path)
    comm.Barrier()
    return path


@pytest.mark.ranks(1, 2)
def test_classes_have_the_names_they_were_trained_with(comm, shared_tmp_path, caplog) -> None:
    """In another graph too, which gets no accuracy where its own are others."""
    folder, trained_on, other = shared_tmp_path, ["Bio", "DB", "HPC", "ML"], ["ML", "DB", "HPC", "Astro"]
    store, weights = named(folder, comm, "trained", trained_on), folder / "w"
    list(Run(store, Settings(epochs=1, hidden=[4], checkpoint=str(weights)), comm).train())
    cases = {
        "other": (other, 4, 0, r"other.dg: .* \(class 0 is ML here, was Bio\)"),
        "more": ([*trained_on, "Z"], 5, 0, r"more.dg: .* \(5 here, 4 there\)"),
        "same": (trained_on, 4, 3, None),
        "unnamed": (None, 4, 3, None),
    }
    for name, (names, classes, scored, warning) in cases.items():
        caplog.clear()
        predictor = Predictor(named(folder, comm, name, names, classes), weights, comm)
        assert predictor.class_names == trained_on and len(predictor.scores()) == scored
        told = [one.message for one in caplog.records if one.levelname == "WARNING"]
        assert len(told) == (warning is not None and comm.rank == 0)
        assert all(re.search(warning, line) for line in told)
        archive, lines = (predictor.write(folder / f"{name}.{kind}") for kind in ("npz", "csv"))
        comm.Barrier()
        assert np.load(archive)["class_name"].tolist() == trained_on
        head, *rows = csv.reader(lines.read_text().splitlines())
        assert head[2:] == [f"probability_{one}" for one in trained_on]
        assert [row[1] for row in rows] == [trained_on[label] for label in np.load(archive)["label"]]
    for name in ("unnamed", "renamed"):
        store = named(folder, comm, f"resume-{name}", None if name == "unnamed" else list("abcd"))
        with pytest.raises(UserError, match="other names of classes"):
            list(
                Run(store, Settings(epochs=2, hidden=[4], checkpoint=str(weights), resume=True), comm).train()
            )


@pytest.mark.ranks(1, 2)
def test_older_checkpoints_leave_names_to_the_store(comm, shared_tmp_path, caplog, monkeypatch) -> None:
    save = checkpoint.save

    def saved(path, world, pieces, meta):
        save(path, world, pieces, {name: meta[name] for name in meta if name != "class_names"})

    monkeypatch.setattr(checkpoint, "save", saved)
    _, _, weights = trained(comm, shared_tmp_path)
    four, five = list("abcd"), list("abcde")
    for names, expected, scored in ((four, four, 3), (five, None, 0), (None, None, 3)):
        store = named(shared_tmp_path, comm, f"{expected}{scored}", names, len(names or four))
        predictor = Predictor(store, weights, comm)
        assert predictor.class_names == expected and len(predictor.scores()) == scored
    assert not caplog.records


@pytest.mark.ranks(1, 2)
def test_classes_without_names_go_by_their_numbers(comm, shared_tmp_path, caplog) -> None:
    _, _, weights = trained(comm, shared_tmp_path)
    for names, scored in ((list("0123"), 3), (list("1234"), 0)):
        caplog.clear()
        predictor = Predictor(named(shared_tmp_path, comm, names[0], names), weights, comm)
        assert predictor.class_names is None and len(predictor.scores()) == scored
        assert ("class 0 is 1 here, was 0" in caplog.text) == (scored == 0 and comm.rank == 0)


def unlike(folder, comm, fact, value) -> str:
    """Prepare the same graph with another fact of its matrix or its features."""
    source, how = Communities(), {}
    if fact == "self_loops":
        how[fact] = value
    else:
        setattr(source, fact, value)
    if comm.rank == 0:
        prepare(source, folder / "g.dg", **how)
    comm.Barrier()
    return str(folder / "g.dg")


def named_store(folder, comm, names, columns) -> str:
    """Prepare the graph with these columns of its features, or others, by these names."""
    source, path = Communities(), str(folder / "named.dg")
    more = np.random.default_rng(5).random((N, len(columns) - len(set(columns)))).astype(np.float32)
    source._features = np.hstack([source._features[:, [*dict.fromkeys(columns)]], more])
    source.width, source.feature_names = source._features.shape[1], names
    if comm.rank == 0:
        prepare(source, path)
    comm.Barrier()
    return path


@pytest.mark.ranks(1, 3, 4)
def test_features_are_found_by_their_names(comm, shared_tmp_path, caplog) -> None:
    columns = [*range(Communities().width)]
    names, turned = [f"column {k}" for k in columns], columns[:0:-1] + columns[:1]
    stores = {}
    for name, there, of in (
        ("one", names, columns), ("turned", [names[k] for k in turned], turned), ("none", None, columns),
        ("more", [*(names[k] for k in turned), "year", "row"], [*turned, 0, 0]),
        ("less", names[1:], columns[1:]), ("twice", [*names, names[1]], [*columns, 0]),
    ):  # fmt: skip
        (folder := shared_tmp_path / name).mkdir(exist_ok=True)
        stores[name] = named_store(folder, comm, there, of)
    weights = str(shared_tmp_path / "w")
    how = {"standardize_features": True, "normalize_features": True, "checkpoint": weights}
    list(Run(stores["one"], Settings(epochs=2, hidden=[6], **how), comm).train())
    expected = None
    for name in ("one", "turned", "none", "more"):
        for algorithm in ("1d", "2d") if comm.size == 4 else ("1d",):
            predictor = Predictor(stores[name], weights, comm, algorithm)
            logits = gather(predictor.model.forward(predictor.X))
            expected = logits if expected is None else expected
            if comm.rank == 0:
                assert logits == pytest.approx(expected, abs=1e-5) and np.ptp(logits) > 0.1
    if comm.rank == 0:
        assert "2 features, such as year, are left out" in caplog.text
    for name, problem in (("less", "feature column 0, and there is none here"),
                          ("twice", "column 1, and several columns are called so")):  # fmt: skip
        with pytest.raises(UserError, match=problem):
            Predictor(stores[name], weights, comm)


@pytest.mark.ranks(1, 2)
def test_what_does_not_fit_is_refused(comm, shared_tmp_path) -> None:
    _, store, weights = trained(comm, shared_tmp_path)
    predictor = Predictor(store, weights, comm)
    for out, layer, argument in (("p.txt", None, "out"), ("p.npz", 3, "layer")):
        with pytest.raises(ArgumentError) as error:
            predictor.write(shared_tmp_path / out, layer)
        assert error.value.argument == argument
    predictor.write(shared_tmp_path / "p.npz")
    with pytest.raises(ArgumentError, match="exists"):
        predictor.write(shared_tmp_path / "p.npz")
    (shared_tmp_path / "other").mkdir(exist_ok=True)
    other = small_store(shared_tmp_path / "other", comm, normalize="none")
    for number, (fact, value) in enumerate({"self_loops": False, "directed": True}.items()):
        (folder := shared_tmp_path / f"unlike{number}").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=f"does not fit .* with graph {fact} {not value}, .* {value}"):
            Predictor(unlike(folder, comm, fact, value), weights, comm)
    with pytest.raises(UserError, match="does not fit .*: the network was trained with graph normalize"):
        Predictor(other, weights, comm)


@pytest.mark.ranks(1)
def test_the_command_says_what_it_wrote(comm, tmp_path, capsys) -> None:
    from distgnn import cli

    _, store, weights = trained(comm, tmp_path)
    out = str(tmp_path / "p.npz")
    assert cli.main(["predict", store, "--checkpoint", weights, "--out", out]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{out}: 60 nodes, by the weights after epoch 3, train ")


MODELS = {"gcn": {}, "sage": {}, "gat": {"heads": [2, 2, 1]}}


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("model", MODELS)
def test_files_in_pieces_are_those_of_whole_passes(comm, shared_tmp_path, monkeypatch, model) -> None:
    """To the bit, whichever layer is asked for first: features that went are loaded anew."""
    monkeypatch.setattr(TUNING, "written_numbers", 4 * 7)
    _, store, weights = trained(comm, shared_tmp_path, model=model, hidden=[6, 6], **MODELS[model])
    whole = Predictor(store, weights, comm)
    logits, first = (gather(whole.model.forward(whole.X, layers=layers)) for layers in (3, 1))
    predictor = Predictor(store, weights, comm)
    paths = [predictor.write(shared_tmp_path / f"{layer}.npz", layer) for layer in (2, None, 1, 3)]
    embedding, loaded = predictor.embeddings(1), predictor.X
    assert np.array_equal(loaded.block, whole.X.block) and predictor.X is loaded
    predictor.embeddings(2)
    assert np.isfinite(loaded.block).all()  # those that were asked for stay
    if comm.rank == 0:
        _, written, hidden, last = (np.load(path) for path in paths)
        hidden_rows = np.maximum(first, 0) if model != "gat" else np.where(first > 0, first, np.expm1(first))
        assert np.array_equal(written["probability"], softmax(logits)) and written["label"].dtype == np.int32
        assert np.array_equal(written["label"], logits.argmax(axis=1))
        assert np.array_equal(hidden["embedding"], hidden_rows) and np.array_equal(embedding, hidden_rows)
        assert np.array_equal(last["embedding"], logits)
    else:
        assert embedding is None


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("model", MODELS)
def test_no_features_are_there_at_the_peak(comm, shared_tmp_path, model) -> None:
    """Nor panels and layers where the file is written."""
    heads = {"heads": [2, 2, 1]} if model == "gat" else {}
    _, store, weights = trained(comm, shared_tmp_path, model=model, hidden=[32, 32], **heads)
    gc.collect()
    held = ledger.books().held
    before = dict(held)
    with ledger.Ledger() as counted:
        predictor = Predictor(store, weights, comm)
        features = held["features"] - before.get("features", 0)
        predictor.write(shared_tmp_path / "p.npz")
    assert features == predictor.model.input_layout.local_shape((N, WIDTH))[0] * WIDTH * 4
    assert counted.peak["features"] == before.get("features", 0) == held["features"]
    assert predictor.grid.workspace.reserved == 0


@pytest.mark.ranks(1, 3)
def test_ids_are_written_in_parts(comm, shared_tmp_path, monkeypatch) -> None:
    """With room for the longest, which is not in the first part."""
    monkeypatch.setattr(TUNING, "written_numbers", 7)
    _, _, weights = trained(comm, shared_tmp_path)
    graph, path = Communities(), shared_tmp_path / "ids.dg"
    names = np.array([f"node {'é' * (number // 9)}{number}" for number in range(N)])
    graph.ids = np.char.encode(names, "utf-8")
    if comm.rank == 0:
        prepare(graph, path)
    comm.Barrier()
    written = Predictor(path, weights, comm).write(shared_tmp_path / "p.npz")
    comm.Barrier()
    found = np.load(written)["id"]
    assert found.dtype == names.dtype and (found == names).all()

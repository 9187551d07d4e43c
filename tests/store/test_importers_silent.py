"""Inputs that were read as something else without a word: each is understood, noted or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import distgnn as dg
from distgnn import cli
from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions, Source

from .importing import adjacency, all_features, refused, write

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    return write(tmp_path / "e.csv", "".join(f"{a},{b}\n" for a, b in EDGES.T))


def opened(path: Path, **options: object) -> Source:
    return open_source(path, ImportOptions(**{name: str(value) for name, value in options.items()}))


def multiscale(folder: Path) -> Path:
    """Write a directory as SNAP's multiscale sets of Twitch have it."""
    write(folder / "DE_edges.csv", "from,to\n0,1\n1,2\n2,0\n")
    write(folder / "DE.json", json.dumps({"0": [0, 2], "1": [1], "2": []}))
    rows = "73,1459,False,9,True,2\n85,1629,True,3,False,0\n91,411,True,7,False,1\n"
    write(folder / "DE_target.csv", "id,days,mature,views,partner,new_id\n" + rows)
    write(folder / "README.txt", "A graph.\n")
    return folder


@pytest.mark.parametrize("features", ["DE.json", "DE_features.json", "de_FEATURES.json", "features.json"])
def test_names_of_companions_in_any_case(tmp_path: Path, features: str) -> None:
    (multiscale(tmp_path) / "DE.json").rename(tmp_path / features)
    source = opened(tmp_path, label_column="mature")
    assert all_features(source).tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert source.class_names == ["False", "True"] and source.labels.tolist() == [1, 1, 0]
    assert source.readings == [
        "DE_edges.csv (edges in from, to, ids are numbers)", f"{features} (features)",
        "DE_target.csv (labels in mature, ids in new_id)",
    ]  # fmt: skip
    assert source.left == ["id, days, views, partner of DE_target.csv", "README.txt"]


def test_which_column_has_the_labels_is_asked(tmp_path: Path) -> None:
    problem = "cannot tell the column of labels among id, days, mature, views, partner, new_id; label_column="
    refused(multiscale(tmp_path), problem)


def test_two_files_for_one_thing_are_refused(tmp_path: Path) -> None:
    write(multiscale(tmp_path) / "features.csv", "id,x\n0,1\n1,2\n2,3\n")
    told = "features=.*: DE.json and features.csv could both be it"
    refused(tmp_path, told, label_column="mature")
    source = opened(tmp_path, label_column="mature", features=tmp_path / "features.csv")
    assert source.width == 1 and source.left[1:] == ["DE.json", "README.txt"]


def test_the_summary_says_what_was_read_and_what_was_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prepare", str(multiscale(tmp_path / "DE")), str(tmp_path / "g.dg"), "--label-column", "mature"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "\nread DE_edges.csv (edges in from, to, ids are numbers); DE.json (features); DE_" in printed
    assert "\nleft out: id, days, views, partner of DE_target.csv; README.txt\n" in printed


def test_arrays_that_were_read_and_left(tmp_path: Path) -> None:
    more = {"when": [3], "pos": np.ones((4, 3))}
    np.savez(tmp_path / "g.npz", edge_index=EDGES, x=np.ones((4, 2)), y=[0, 1, 1, 0], **more)
    source = open_source(tmp_path / "g.npz")
    assert (source.readings, source.left) == (["g.npz (edge_index, x, y)"], ["when, pos of g.npz"])
    path = write(tmp_path / "a.mtx", "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n")
    assert open_source(path).readings == ["a.mtx (a graph in the format mtx)"]


@pytest.mark.parametrize("name", [None, "paper"])
def test_the_index_of_a_pandas_table_has_the_ids(edges: Path, tmp_path: Path, name: str | None) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def saved(path: str, index: list[int], **columns: list[float]) -> Path:
        called = name or "__index_level_0__"
        about = json.dumps({"index_columns": [called], "columns": [], "pandas_version": "2.0"})
        table = pa.table({**columns, called: index})
        pq.write_table(table.replace_schema_metadata({"pandas": about}), tmp_path / path)
        return tmp_path / path

    X = saved("x.parquet", [2, 0, 3, 1], a=[2.0, 0, 3, 1])
    y = saved("y.parquet", [3, 1, 0, 2], c=[1, 0, 0, 1])
    source = opened(edges, features=X, labels=y)
    assert all_features(source).tolist() == [[0], [1], [2], [3]] and source.labels.tolist() == [0, 0, 1, 1]
    listed = saved("e.parquet", [7, 8, 9, 10], src=EDGES[0].tolist(), dst=EDGES[1].tolist())
    if name is None:
        source = open_source(listed, ImportOptions(directed=True))
        assert np.argwhere(adjacency(source)).tolist() == [[0, 3], [1, 0], [2, 1], [3, 2]]
        assert source.left == ["__index_level_0__ of e.parquet"]
        X = saved("x.parquet", [5, 6, 7, 8], a=[2.0, 0, 3, 1], id=[2, 0, 3, 1])
        assert all_features(opened(edges, features=X)).tolist() == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"label_column": "kind"}, "label_column=kind: names no column that was read"),
        ({"id_column": "who"}, "id_column=who: names no column that was read"),
        ({"labels": "degree:2", "label_column": "kind"}, "label_column=kind: names no column"),
        ({"features": "x.csv", "id_column": "who"}, "id_column=who: names no column that was read"),
        ({"multilabel": True}, "multilabel=True: no labels of several classes were read"),
    ],
)
def test_options_without_effect_are_refused(
    edges: Path, given: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(edges.parent / "x.csv", "p,q\n" + "1,2\n" * 4)
    monkeypatch.chdir(edges.parent)
    refused(edges, words, **given)


def test_options_of_edges_are_refused_elsewhere(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=EDGES)
    refused(tmp_path / "g.npz", "source_column=a: is for lists of edges", source_column="a")
    path = write(tmp_path / "a.mtx", "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n")
    refused(path, "weights=True: .*a.mtx has no weights of edges", weights=True)
    for name, mark in (("separator", "tab"), ("comments", "#"), ("comments", "none")):
        words = f"{name}={mark}: is for tables in text, and none was read"
        refused(path, words, **{name: mark})
        refused(tmp_path / "g.npz", words, **{name: mark})
    labels = write(tmp_path / "y.csv", "\n".join(f"{node};{node % 2}" for node in range(4)))
    assert opened(tmp_path / "g.npz", labels=labels, separator="semicolon").classes == 2


def test_ids_and_labels_of_two_columns(edges: Path) -> None:
    """The column called `id` has the ids, wherever it stands."""
    path = write(edges.parent / "y.csv", "kind,id\n7,0\n8,1\n7,3\n")
    source = opened(edges, labels=path)
    assert source.class_names == ["7", "8"] and source.labels.tolist() == [0, 1, -1, 0]


ONE_HOT = np.eye(3, dtype=int)[[2, 0, 1, 2]]


def test_rows_of_a_single_class_are_classes(edges: Path, tmp_path: Path) -> None:
    for rows, expected, more in (
        (ONE_HOT, [2, 0, 1, 2], ""),
        (ONE_HOT * [[1], [0], [1], [1]], [2, -1, 1, 2], ", 1 rows of zeros for unlabelled nodes"),
        (np.where(np.arange(4)[:, None] == 3, np.nan, ONE_HOT), [2, 0, 1, -1], ""),
    ):
        np.save(tmp_path / "y.npy", rows)
        source = opened(edges, labels=tmp_path / "y.npy")
        assert not source.multilabel and source.classes == 3 and source.labels.tolist() == expected
        (note,) = [note for note in source.notes if "semicolons" not in note and "taken for a class" in note]
        assert f"taken for a class{more}; multilabel=True keeps them" in note
    kept = open_source(edges, ImportOptions(labels=str(tmp_path / "y.npy"), multilabel=True))
    assert kept.multilabel and kept.labels[:3].tolist() == ONE_HOT[:3].tolist()


def test_one_hot_arrays_in_memory(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="y: no row has several classes"):
        dg.prepare(EDGES, y=ONE_HOT, out=tmp_path / "a.dg", order=["original"])
    store = dg.Store(tmp_path / "a.dg")
    assert not store.multilabel and store.labels("original").tolist() == [2, 0, 1, 2]
    done = dg.prepare(EDGES, y=ONE_HOT, multilabel=True, out=tmp_path / "b.dg")
    assert done.multilabel and dg.Store(tmp_path / "b.dg").multilabel


def test_labels_between_semicolons_are_several(edges: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "y.csv", "id,label\n0,a;c\n1,b\n2,\n3,c; a;\n")
    source = opened(edges, labels=path)
    assert source.class_names == ["a", "b", "c"] and source.multilabel
    assert source.labels.tolist() == [[1, 0, 1], [0, 1, 0], [-1, -1, -1], [1, 0, 1]]
    assert any("between semicolons are several classes" in note for note in source.notes)
    with pytest.warns(UserWarning, match="between semicolons"):
        dg.prepare(EDGES, y=["a;c", "b", "", "c"], out=tmp_path / "g.dg", order=["original"])
    rows = dg.Store(tmp_path / "g.dg").labels("original").tolist()
    assert rows == [[1, 0, 1], [0, 1, 0], [-1, -1, -1], [0, 0, 1]]


def test_whole_numbers_that_float32_cannot_hold_are_no_features(edges: Path, tmp_path: Path) -> None:
    X = np.array([[0], [16777217], [3], [-4]])
    np.save(tmp_path / "x.npy", X)
    told = "feature 0 of node 1 is 16777217, which float32 cannot hold"
    refused(edges, told, features=str(tmp_path / "x.npy"))
    with pytest.raises(UserError, match=told):
        dg.prepare(EDGES, X, out=tmp_path / "g.dg")
    np.save(tmp_path / "x.npy", np.where(X == 16777217, 1 << 24, X))
    assert all_features(opened(edges, features=tmp_path / "x.npy"))[1] == 1 << 24


def test_weights_for_a_path_are_no_array(edges: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="weights=ndarray: expected True"):
        dg.prepare(edges, weights=np.ones(4), out=tmp_path / "g.dg")


NAMED = [
    ("src,dst,weight,when\n0,1,2.5,2020-01-01\n1,2,0.5,2020-01-02\n", "weight, when"),
    ("when,dst,src,weight\nmay,1,0,2.5\nmay,2,1,0.5\n", "when, weight"),
    ("weight\tto\tFROM\n2.5\t1\t0\n0.5\t2\t1\n", "weight"),
]


@pytest.mark.parametrize(("text", "left"), NAMED)
def test_columns_of_edges_are_known_by_their_names(tmp_path: Path, text: str, left: str) -> None:
    path = write(tmp_path / "e.csv", text)
    source = open_source(path, ImportOptions(directed=True))
    assert np.argwhere(adjacency(source)).tolist() == [[1, 0], [2, 1]]
    assert source.left == [f"{left} of e.csv"]
    weighted = adjacency(open_source(path, ImportOptions(directed=True, weights=True)))
    assert (weighted[1, 0], weighted[2, 1]) == (2.5, 0.5)


def test_a_third_column_of_words_is_left(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst,when\n0,1,may\n1,2,june\n")
    source = open_source(path)
    assert source.left == ["when of e.csv"] and source.edge_count == 2 and not source.notes
    refused(path, "no column of weights", weights=True)


def test_two_pairs_of_names_are_refused(tmp_path: Path) -> None:
    refused(write(tmp_path / "e.csv", "src,dst,u,v\n0,1,2,3\n"), "cannot tell source and target")


def test_features_define_nodes_without_edges(tmp_path: Path) -> None:
    path, table = write(tmp_path / "e.csv", "bob,zoe\nzoe,al\n"), "id,x\nzoe,3\nmia,4\nbob,5\nal,6\n"
    for name, content in (("x.csv", table), ("x.json", '{"zoe": [3], "mia": [4], "bob": [5], "al": [6]}')):
        features = write(tmp_path / name, content)
        source = opened(path, features=features)
        assert source.ids.tolist() == [b"al", b"bob", b"mia", b"zoe"]
        values = all_features(source)
        assert (values[:, -1] if name == "x.csv" else values.argmax(axis=1)).tolist() == [6, 5, 4, 3]
        (note,) = source.notes
        assert "1 of its nodes have no edges, such as 'mia'" in note
        assert not adjacency(source)[2].any()
    nodes = write(tmp_path / "n.txt", "zoe\nbob\nal\n")
    refused(path, "node 'mia' is not in the graph", features=str(tmp_path / "x.csv"), node_list=str(nodes))
    other = write(tmp_path / "o.csv", "id,x\nmia,3\neve,4\n")
    refused(path, "none of its nodes, such as 'mia', is in", features=str(other))


def test_features_of_numbers_define_nodes_too(edges: Path) -> None:
    source = opened(edges, features=write(edges.parent / "x.csv", "id,x\n0,1\n1,1\n2,1\n3,1\n5,2\n"))
    assert source.n == 6 and "1 of its nodes have no edges, such as 5" in source.notes[0]


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_an_infinite_label_is_an_error_at_every_door(tmp_path, infinite):
    """A class, and a number to predict: in arrays, in an archive and in a table."""
    edges, X, y = np.array([[0, 1, 2], [1, 2, 0]]), np.ones((3, 2), np.float32), np.array([0, infinite, 1])
    for loss, problem in ((None, "label of node 1"), ("mse", "label 0 of node 1")):
        with pytest.raises(UserError, match=f"y=.*{infinite}.*; expected|y={infinite}: is the {problem}; "):
            dg.fit(edges, X, y, loss=loss, epochs=1)
    np.savez(tmp_path / "graph.npz", edge_index=edges, x=X, y=y)
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n2,0\n")
    (tmp_path / "labels.csv").write_text("".join(f"{i},{label}\n" for i, label in enumerate(y)))
    for name, how in (("graph.npz", {}), ("edges.csv", {"labels": tmp_path / "labels.csv"})):
        for regression in ({}, {"regression": True}):
            with pytest.raises(UserError, match=rf"label.*{infinite}.*; expected"):
                opened(tmp_path / name, **how, **regression)

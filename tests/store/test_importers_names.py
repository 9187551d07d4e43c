"""Nodes with ids of their own: words, or whole numbers far apart, from edges to predictions."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import distgnn as dg
from distgnn import cli
from distgnn.errors import ArgumentError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.importers.names import Names
from distgnn.store.source import ImportOptions

from .importing import adjacency, all_features, refused, write

WORDS = 'bob,alice\nalice,zoë\nzoë,bob\nbob,"o\'neil, jr"\n'
NAMED = ["alice", "bob", "o'neil, jr", "zoë"]  # by UTF-8


def opened(path, **options):
    return open_source(path, ImportOptions(**{name: str(value) for name, value in options.items()}))


def called(source):
    return (
        np.char.decode(source.ids, "utf-8").tolist() if source.ids.dtype.kind == "S" else source.ids.tolist()
    )


def test_words_are_numbered_in_ascending_order(tmp_path, monkeypatch):
    for header in ("", "source,target\n", "follower,followee\n", "# who follows whom\n"):
        for size, entries in ((1 << 24, 1 << 20), (80, 1)):  # also line by line, and merged after every block
            monkeypatch.setattr(LIMITS, "text_bytes", size)
            monkeypatch.setattr(LIMITS, "entries", entries)
            source = opened(write(tmp_path / "a.csv", header + WORDS), directed=1)
            assert called(source) == NAMED and source.n == 4
            assert np.argwhere(adjacency(source)).tolist() == [[0, 1], [1, 3], [2, 1], [3, 0]]
        assert bool(source.notes) == header.startswith("follower")


def test_comments_of_tables_of_words_begin_with_percent_and_a_blank(tmp_path):
    path = write(tmp_path / "a.txt", "% x y\nbob %E4\n%E4 alice\n")
    assert called(opened(path)) == ["%E4", "alice", "bob"]
    labels = write(tmp_path / "l.csv", "% who, what\nid,label\n%E4,red\nbob,blue\n")
    assert opened(path, labels=labels).labels.tolist() == [1, -1, 0]
    source = opened(path, labels=write(labels, labels.read_text() + "eve,red\n"))
    assert called(source) == ["%E4", "alice", "bob", "eve"] and "such as 'eve'" in source.notes[0]
    nodes = write(tmp_path / "n.txt", "%\n%E4\nalice\nbob\n")
    assert called(opened(path, node_list=nodes)) == ["%E4", "alice", "bob"]
    features = write(tmp_path / "x.csv", "% node, x\nbob,1\nalice,3\n%E4,4\n")
    assert all_features(opened(path, features=features)).ravel().tolist() == [4, 3, 1]


def test_a_first_line_of_words_that_come_again_is_an_edge(tmp_path):
    source = opened(write(tmp_path / "a.txt", "bob carol\nalice bob\nalice dave\n"))
    assert called(source) == ["alice", "bob", "carol", "dave"] and not source.notes
    assert source.edge_count == 3


def test_integers_far_apart_are_ids(tmp_path):
    for ids in ([2**63 - 1, -5, 10**15, 7], [10**12, 10**12 + 9, 10**12 + 5, 3 * 10**12]):
        a, b, c, d = ids
        path = write(tmp_path / "a.tsv", f"{a}\t{b}\n{b}\t{c}\n{d}\t{a}\n")
        source = open_source(path, ImportOptions(ids="integers" if min(ids) < 0 else None, directed=True))
        assert called(source) == sorted(ids)
        rank = {one: k for k, one in enumerate(sorted(ids))}
        expected = [[rank[b], rank[a]], [rank[c], rank[b]], [rank[a], rank[d]]]
        assert np.argwhere(adjacency(source)).tolist() == sorted(expected)
        labels = write(tmp_path / "l.csv", f"{a},x\n{d},y\n")
        found = open_source(path, ImportOptions(ids="integers", labels=str(labels))).labels
        assert [found[rank[one]] for one in ids] == [0, -1, -1, 1]
        assert bool(source.notes) == (min(ids) > 0)


def test_small_integers_are_ids_on_request(tmp_path):
    path = write(tmp_path / "a.csv", "1,2\n2,5\n")
    assert open_source(path).n == 6
    source = opened(path, ids="integers")
    assert called(source) == [1, 2, 5] and not source.notes
    assert called(opened(path, ids="text")) == ["1", "2", "5"]
    refused(path, "ids=words: unknown", ids="words")
    mixed = write(tmp_path / "b.csv", "1,2\nx,2\n")
    refused(mixed, "line 2, column 0: 'x'; .*ids=text", ids="integers")
    assert called(opened(mixed, ids="text")) == called(opened(mixed)) == ["1", "2", "x"]
    assert "ids are words, such as 'x'" in opened(mixed).notes[0]


def test_leading_zeros_of_ids_are_kept(tmp_path):
    path = write(tmp_path / "a.csv", "a,b\n007,12\n7,12\n")
    assert called(opened(path)) == ["007", "12", "7"]
    assert open_source(path, ImportOptions(ids="numbers")).n == 13
    assert open_source(write(tmp_path / "b.csv", "0,1\n1,3\n")).n == 4


def test_tables_find_nodes_by_their_ids(tmp_path):
    path = write(tmp_path / "a.csv", WORDS)
    rows = '"o\'neil, jr",1,2\nzoë,3,4\nbob,5,6\nalice,7,8\n'
    expected = [[7, 8], [5, 6], [1, 2], [3, 4]]
    for header in ("", "who,p,q\n"):
        source = opened(path, features=write(tmp_path / "x.csv", header + rows))
        assert all_features(source).tolist() == expected
    labels = 'zoë,red\nalice,blue\n"o\'neil, jr",\n'
    for header in ("", "who,colour\n"):
        source = opened(path, labels=write(tmp_path / "l.csv", header + labels))
        assert source.labels.tolist() == [0, -1, -1, 1] and source.class_names == ["blue", "red"]
    split = write(tmp_path / "s.csv", "zoë,train\nalice,Test\nbob,val\n")
    assert opened(path, split=split).split.tolist() == [3, 2, 0, 1]
    active = write(tmp_path / "x.json", '{"bob": [0], "zoë": [1, 2]}')
    source = opened(path, features=active)
    assert all_features(source).tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 1]]
    (note,) = source.notes
    assert note.endswith("2 of 4 nodes have no row, such as 'alice'; their features are zeros")


def test_unknown_ids_and_duplicates_have_a_name_and_a_line(tmp_path):
    for what in ("features", "labels", "split", "node_list"):
        path, value = write(tmp_path / "a.csv", WORDS), {"labels": "x", "split": "train"}.get(what, "1")
        twice = write(tmp_path / "t.csv", f"id,v\nbob,{value}\n\nzoë,{value}\nalice,{value}\nbob,{value}\n")
        refused(path, "t.csv, line 6: node 'bob' is listed twice", **{what: str(twice)})
        other = write(tmp_path / "o.csv", f"id,v\nbob,{value}\n\nmallory,{value}\nalice,{value}\n")
        if what == "node_list":
            refused(path, "a.csv, line 2: .*'zoë' is not in .*o.csv", node_list=str(other))
        elif what == "split":
            refused(path, "o.csv, line 4: node 'mallory' is not in the graph", **{what: str(other)})


def test_a_list_of_nodes_says_their_order(tmp_path):
    path, order = write(tmp_path / "a.csv", WORDS), ["zoë", "eve of old", "bob", "alice", "o'neil, jr"]
    np.save(tmp_path / "x.npy", np.arange(5.0)[:, None])
    np.save(tmp_path / "y.npy", np.array(["b", "", "a", "b", "a"]))
    np.save(tmp_path / "s.npy", np.array([1, 0, 2, 3, 1]))
    files = {"features": tmp_path / "x.npy", "labels": tmp_path / "y.npy", "split": tmp_path / "s.npy"}
    for header in ("", "id\n"):
        lines = [f'"{one}"' for one in order]
        nodes = write(tmp_path / "n.csv", header + "\n".join(lines))
        source = opened(path, node_list=nodes, **files)
        assert called(source) == order and all_features(source).ravel().tolist() == [0, 1, 2, 3, 4]
        assert source.labels.tolist() == [1, -1, 0, 1, 0] and source.split.tolist() == [1, 0, 2, 3, 1]
        assert not adjacency(source)[1].any() and adjacency(source)[0, 2] == adjacency(source)[2, 4] == 1
    for name, file in files.items():
        refused(path, f"{file.name}: rows without ids", "node_list=FILE", **{name: str(file)})
    plain = write(tmp_path / "b.csv", "0,1\n")
    source = opened(plain, node_list=write(tmp_path / "m.csv", "0\n1\n2\n"))
    assert source.n == 3 and source.ids is None


def test_a_list_of_nodes_may_be_an_array(tmp_path):
    words, numbers = write(tmp_path / "a.csv", WORDS), write(tmp_path / "b.csv", "1,2\n2,30\n")
    nodes = tmp_path / "n.npy"
    for ids in (NAMED[::-1], [one.encode() for one in NAMED[::-1]]):
        np.save(nodes, np.array(ids))
        assert called(opened(words, node_list=nodes)) == NAMED[::-1]
    refused(numbers, "n.npy: holds strings; expected node ids that are integers", node_list=str(nodes))
    np.save(nodes, np.array([30, 2, 1], np.uint16))
    assert called(opened(numbers, ids="integers", node_list=nodes)) == [30, 2, 1]
    assert called(opened(numbers, ids="text", node_list=nodes)) == ["30", "2", "1"]
    refused(words, "a.csv, line 2: .*'alice' is not in .*n.npy", node_list=str(nodes))
    for array, told in (
        ([[1, 2, 30]], r"node ids have shape \(1, 3\); expected \(nodes\)"),
        ([1, 2, 2], "no list of nodes .node 2 is listed twice"),
        ([1.0, 2, 30], "float64"),
        ([1, 2], "30 is not in .*n.npy"),
    ):
        np.save(nodes, np.array(array))
        refused(numbers, f"n.npy.*{told}|{told}", node_list=str(nodes))


def test_ids_that_can_not_be(tmp_path):
    refused(
        write(tmp_path / "a.csv", "a,b\nb,\n"),
        "line 2, column 1: nothing; expected a node id, not an empty",
        ids="text",
    )
    refused(
        write(tmp_path / "b.csv", "a,b\nb," + "c" * 2000),
        "line 2, column 1: .*at most 1024 bytes, not 2000",
        ids="text",
    )
    refused(
        write(tmp_path / "c.mtx", "%%MatrixMarket matrix coordinate pattern general\n1 1 0\n"),
        "ids=text",
        ids="text",
    )
    labels = write(tmp_path / "l.csv", "id,label\n0,1\n1,0\n")
    refused(labels, "l.csv: columns id and label .*labels=FILE")


def test_names_are_found_whatever_their_width():
    names = Names(np.array([b"ccc", b"a", b"bb"]))
    asked = np.array([b"a", b"ccc", b"cccc", b"bb", b"", b"b", b"cc"])
    assert names.find(asked).tolist() == [1, 0, -1, 2, -1, -1, -1]
    with pytest.raises(ValueError, match="'a' is listed twice"):
        Names(np.array([b"a", b"b", b"a"]))


def test_stores_keep_ids_and_predictions_have_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(LIMITS, "file_rows", 10)  # ids in two files
    people = [f"p{k:02}é" for k in range(20)]
    edges = write(tmp_path / "e.csv", "".join(f"{people[k]},{people[(3 * k + 1) % 20]}\n" for k in range(20)))
    table = write(tmp_path / "t.csv", "".join(f"{one},{'ab'[k % 2]}\n" for k, one in enumerate(people)))
    store, out = str(tmp_path / "g.dg"), tmp_path / "p"
    words = [str(edges), store, "--labels", str(table), "--features", "random:4", "--split", "0.5/0.2/0.3"]
    assert cli.main(["prepare", *words]) == 0
    assert dg.Store(store).ids().tolist() == people and dg.Store(store).ids((3, 9)).tolist() == people[3:9]
    assert len(list((tmp_path / "g.dg" / "nodes").glob("ids-*.h5"))) == 2
    assert cli.main(["info", store]) == 0 and "text: p00é, p01é, p02é, ..." in capsys.readouterr().out
    weights = str(tmp_path / "w")
    assert cli.main(["train", store, "--epochs", "2", "--checkpoint", weights]) == 0
    for suffix in (".npz", ".csv"):
        assert cli.main(["predict", store, "--checkpoint", weights, "--out", f"{out}{suffix}"]) == 0
    with np.load(f"{out}.npz") as found:
        assert found["id"].tolist() == people and found["class_name"].tolist() == ["a", "b"]
        labels = found["class_name"][found["label"]].tolist()
    with open(f"{out}.csv", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    assert [row[:2] for row in rows] == [list(pair) for pair in zip(people, labels, strict=True)]


def test_arrays_of_words(tmp_path):
    ends = np.array([["b", "a", "c"], ["a", "c", "b"]])
    dg.prepare(ends, out=tmp_path / "a.dg")
    assert dg.Store(tmp_path / "a.dg").ids().tolist() == ["a", "b", "c"]
    ids, X = ["c", "x", "b", "a"], np.arange(4.0)[:, None]
    dg.prepare(ends, X, ["u", "", "v", "u"], ids=ids, out=tmp_path / "b.dg", order=["original"])
    store = dg.Store(tmp_path / "b.dg")
    assert store.ids().tolist() == ids and store.features()[:, 0].tolist() == [0, 1, 2, 3]
    assert store.labels().tolist() == [0, -1, 1, 0] and store.manifest["class_names"] == ["u", "v"]
    far = np.array([[10**15, 5], [7, 10**15]])
    dg.prepare(far, X[:3], ids=[7, 10**15, 5], out=tmp_path / "c.dg", order=["original"], normalize="none",
               self_loops=False)  # fmt: skip
    A = dg.Store(tmp_path / "c.dg").order().block((0, 3), (0, 3)).toarray()
    assert A.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    for graph, given, argument in (
        (ends, {"X": X}, "graph"),
        (ends, {"ids": ["a", "b"]}, "graph"),
        (ends, {"ids": ["a", "a", "b"]}, "ids"),
        (ends, {"ids": [1, 2, 3]}, "graph"),
        (far, {"ids": [[7]]}, "ids"),
        (far, {"X": X, "ids": [7, 5, 10**15]}, "graph"),
    ):
        with pytest.raises(ArgumentError) as error:
            dg.prepare(graph, **given, out=tmp_path / "d.dg")
        assert error.value.argument == argument
    with pytest.raises(ArgumentError, match="X=ndarray: expected a path"):
        dg.prepare(write(tmp_path / "e.csv", WORDS), X, out=tmp_path / "d.dg")
    assert not (tmp_path / "d.dg").exists()

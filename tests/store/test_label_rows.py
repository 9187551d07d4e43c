"""Labels of nodes that may have several classes: from every format to the store and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn.errors import ArgumentError, UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.read.inspect import describe
from distgnn.store.source import ImportOptions, random_split

from .importing import refused, write, write_gz

EDGES = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
ROWS = np.array([[1, 0, 1], [0, 0, 0], [-1, -1, -1], [0, 1, 1], [1, 1, 1]], np.int8)
FULL = np.maximum(ROWS, 0)


@pytest.fixture
def edges(tmp_path):
    return write(tmp_path / "edges.csv", "".join(f"{a},{b}\n" for a, b in EDGES.T))


def labels(edges, path, **options):
    source = open_source(edges, ImportOptions(labels=str(path), **options))
    assert source.multilabel == (source.labels.ndim == 2) and source.n == 5
    return source


def table(rows, head="", between=","):
    return head + "".join(between.join(map(str, row)) + "\n" for row in rows)


def test_every_format_gives_the_same_rows(edges, tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "row_bytes", 50)  # two rows at a time
    missing = np.where(ROWS < 0, np.nan, ROWS)
    listed = [(node, *row) for node, row in enumerate(ROWS) if node != 2][::-1]
    blank = [(2, "", "N/A", "-1"), *listed]
    named = [(row[1], row[0], *row[2:]) for row in listed]
    files = [tmp_path / name for name in ("a.npy", "b.npy", "c.npz", "d.json", "e.json")]
    np.save(files[0], ROWS)
    np.save(files[1], np.asfortranarray(missing))
    np.savez_compressed(files[2], whatever=missing.astype(np.float32))
    files[3].write_text(json.dumps({str(node): row.tolist() for node, row in enumerate(ROWS)}))
    files[4].write_text(json.dumps({str(node): [int(x) for x in row] for node, *row in listed}))
    files += [
        write(tmp_path / "f.csv", table(listed)),
        write(tmp_path / "g.tsv", table(listed, between="\t")),
        write_gz(tmp_path / "h.csv.gz", table(blank)),
        write(tmp_path / "i.csv", table(named, "p,id,q,r\n")),
        write(tmp_path / "j.csv", table(ROWS, "p,q,r\n")),
    ]
    for path in files:
        assert (labels(edges, path).labels == ROWS).all(), path
    assert labels(edges, files[-2]).class_names == ["p", "q", "r"]


def test_parquet_has_rows_too(edges, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"node": [4, 3, 1, 0], "p": [1, 0, 0, 1], "q": [1.0, 1.0, 0.0, 0.0], "r": ["1", "1", "0", "1"]}
    pq.write_table(pa.table(columns), tmp_path / "y.parquet")
    source = labels(edges, tmp_path / "y.parquet")
    assert (source.labels == ROWS).all() and source.class_names == ["p", "q", "r"]
    chosen = labels(edges, tmp_path / "y.parquet", label_column="r,q")
    assert (chosen.labels == ROWS[:, [2, 1]]).all()
    wrong = {**columns, "q": [1.0, 2.0, 0.0, 0.0]}
    pq.write_table(pa.table(wrong), tmp_path / "y.parquet")
    told = "y.parquet, row 2, column q: label '2'; expected 0 or 1 in each label column"
    refused(edges, told, labels=str(tmp_path / "y.parquet"), label_column="q,r")


def test_a_table_of_classes_without_rows_is_refused(edges, tmp_path):
    path = str(write(tmp_path / "y.csv", "id,p,q\n"))
    refused(edges, "y.csv: every label is empty", labels=path)
    refused(edges, "y.csv: every label is empty", labels=path, label_column="p,q")


def test_rows_without_ids_are_counted_and_columns_can_be_chosen(edges, tmp_path):
    plain = write(tmp_path / "plain.csv", table(FULL))
    assert (labels(edges, plain).labels == FULL).all()
    wide = [(node, "name", *row, 7) for node, row in enumerate(FULL)]
    path = write(tmp_path / "wide.csv", table(wide, "node,word,p,q,r,label\n"))
    chosen = labels(edges, path, label_column="r,p")
    assert (chosen.labels == FULL[:, [2, 0]]).all() and chosen.class_names == ["r", "p"]
    assert labels(edges, path).class_names == ["7"]  # the column called label
    one = labels(edges, path, label_column="q")
    assert not one.multilabel and (one.labels == FULL[:, 1]).all()
    with pytest.raises(ArgumentError, match="names a column twice, or that of ids"):
        labels(edges, path, label_column="p,p")


def test_arrays_and_json_of_classes_have_one_class_of_each_node(edges, tmp_path):
    classes, path = np.array([2, 0, -1, 1, 1]), tmp_path / "y.npy"
    for given in (classes, classes.astype(float), classes[:, None], np.where(classes < 0, np.nan, classes)):
        np.save(path, given)
        source = labels(edges, path)
        assert (source.labels == classes).all() and source.classes == 3
    path = write(tmp_path / "y.json", json.dumps({"0": 2, "1": 0, "3": 1, "4": 1}))
    assert (labels(edges, path).labels == classes).all()


def test_a_table_with_other_numbers_has_one_label_in_each_line(edges, tmp_path):
    """In a column that someone names: the others could be of zeros and ones by chance."""
    path = write(tmp_path / "y.csv", "0,1,1\n1,0,2\n2,1,0\n3,1,1\n4,1,0\n")
    assert labels(edges, path, label_column="2").labels.tolist() == [1, 2, 0, 1, 0]
    refused(edges, "cannot tell the column of labels", labels=str(path))


BAD_FILES = [
    ("a.csv", "0,1,0\n1,-1,1\n", "line 2 has labels of some classes only"),
    ("b.csv", "0,1,0\n3,0,1\n3,1,1\n", "line 3: node 3 is listed twice"),
    ("c.csv", "x,1,0\n1,0,1\n2,1,1\n", "line 1, column 0: 'x'; expected a node id"),
    ("e.json", '{"0": [1, 0], "1": [1]}', "every node needs as many"),
    ("f.json", '{"0": [1, 0], "x": [1, 1]}', "ids from 0"),
    ("g.json", '{"0": [1, 0], "1": [1, 3]}', "label 1 of node 1 is 3.0; expected 0 or 1"),
]


def test_bad_files(edges, tmp_path):
    for name, text, words in BAD_FILES:
        refused(edges, words, labels=str(write(tmp_path / name, text)))


def test_bad_arrays(edges, tmp_path):
    path = tmp_path / "y.npy"
    partly = FULL.astype(float)
    partly[3, 1] = np.nan
    for array, words in (
        (FULL[:4], "labels have shape"),
        (FULL / 3, "label 0 of node 0 is 0.33.*regression"),
        (partly, "node 3 has labels of some classes only"),
        (np.zeros((5, 2, 2)), "expected .nodes. or .nodes, classes."),
        (np.array([0, 1, 0.5, 0, 0]), "node 2 has label 0.5; expected a whole number"),
    ):
        np.save(path, array)
        refused(edges, words, labels=str(path))
    np.savez(tmp_path / "two.npz", a=FULL, b=FULL)
    refused(edges, "one array of labels", labels=str(tmp_path / "two.npz"))
    refused(edges, "label_column=", labels=str(write(tmp_path / "y.csv", "a,b\n0,1\n")), label_column="a,z")


def test_ogb_directories_have_rows_too(tmp_path):
    """ogbn-proteins has a column for each class, no ids, no head."""
    raw = tmp_path / "proteins" / "raw"
    for name, text in (
        ("edge", table(EDGES.T)), ("num-node-list", "5\n"), ("num-edge-list", "5\n"),
        ("node-label", table(FULL)),
    ):  # fmt: skip
        write_gz(raw / f"{name}.csv.gz", text)
    source = open_source(tmp_path / "proteins")
    assert (source.labels == FULL).all() and source.classes == 3 and not source.directed
    (raw / "node-label.csv.gz").unlink()
    np.savez(raw / "node-label.npz", node_label=np.where(ROWS < 0, np.nan, ROWS))
    assert (open_source(tmp_path / "proteins").labels == ROWS).all()


def test_archives_of_graphs_may_have_rows(tmp_path):
    """An archive with adjacency and labels is not looked at by readers of label files."""
    A, path = sp.csr_array((np.ones(5), (EDGES[0], EDGES[1])), shape=(5, 5)), tmp_path / "a.npz"
    arrays = {"adj_data": A.data, "adj_indices": A.indices, "adj_indptr": A.indptr, "adj_shape": A.shape}
    np.savez(path, **arrays, labels=ROWS.astype(np.int64))
    assert (open_source(path).labels == ROWS).all()
    np.savez(path, **arrays, labels=ROWS[:, :1])
    assert open_source(path).labels.tolist() == [1, 0, -1, 0, 1]
    np.savez(path, **arrays, labels=ROWS.astype(int) + 256)
    refused(path, "label 0 of node 0 is 257; expected 0 or 1")


@pytest.mark.parametrize("make", [np.array, sp.csr_array, lambda y: np.where(y, 1.0, 0.0)])
def test_arrays_in_memory(tmp_path, make):
    y = make(FULL)
    dg.prepare(EDGES, y=y, out=tmp_path / "a.dg", order=["random"])
    store = dg.Store(tmp_path / "a.dg")
    assert store.multilabel and store.classes == 3 and (store.labels() == FULL).all()
    for bad in (FULL * 2, FULL / 2, np.where(np.arange(15).reshape(5, 3) == 4, -1, FULL)):
        with pytest.raises(ArgumentError, match="y=.*(expected 0 or 1|some classes only)"):
            dg.prepare(EDGES, y=bad, out=tmp_path / "b.dg")
    assert not (tmp_path / "b.dg").exists()


def test_a_store_keeps_rows_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "file_rows", 2)  # three files
    split = [1, 2, 1, 3, 1]
    done = dg.prepare(EDGES, y=ROWS, split=split, out=tmp_path / "a.dg", order=["random", "original"])
    assert done.multilabel and done.labelled == 4
    store = dg.Store(tmp_path / "a.dg", verify=True)
    order = store.order("random")
    assert (store.labels("original") == ROWS).all() and store.labels().dtype == np.int8
    assert (store.labels(order) == ROWS[order.permutation(0, 5)]).all()
    assert (store.labels("original", (1, 4)) == ROWS[1:4]).all()
    facts = describe(store)
    assert (facts["multilabel"], facts["classes"], facts["labelled"]) == (True, 3, 4)
    dg.prepare(EDGES, y=[1, 0, -1, 0, 1], out=tmp_path / "one.dg")
    other = dg.Store(tmp_path / "one.dg")
    assert "multilabel" not in other.manifest and not describe(other)["multilabel"]


def test_what_was_changed_is_seen(tmp_path):
    """A hash of the rows is in the content, and every byte of the files has one."""
    dg.prepare(EDGES, y=ROWS, out=tmp_path / "a.dg")
    flipped = ROWS.copy()
    flipped[0, 0] = 0
    dg.prepare(EDGES, y=flipped, out=tmp_path / "b.dg")
    first, second = dg.Store(tmp_path / "a.dg"), dg.Store(tmp_path / "b.dg")
    assert first.manifest["content"]["labels"] != second.manifest["content"]["labels"]
    path = tmp_path / "a.dg" / "nodes" / "rows-0000.h5"
    data = bytearray(path.read_bytes())
    at = data.rfind(dg.Store(tmp_path / "a.dg").labels(first.order().name).tobytes())
    assert at > 0
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="rows-0000.h5 changed"):
        dg.Store(tmp_path / "a.dg")


def test_unlabelled_rows_are_in_no_part(edges, tmp_path):
    np.save(tmp_path / "y.npy", ROWS)
    source = labels(edges, tmp_path / "y.npy", split="0.5/0.25/0.25")
    assert sorted(source.split[[0, 1, 3, 4]]) == [1, 1, 2, 3] and source.split[2] == 0
    assert (random_split(5, "0.5/0.25/0.25", 0, ROWS) == source.split).all()


def test_rows_of_labels_by_ids(tmp_path):
    edges = write(tmp_path / "e.csv", "bob,alice\nalice,zoe\n")
    rows = "zoe,1,0\nbob,1,1\n"
    for name, content in (
        ("l.csv", rows),
        ("h.csv", "id,red,blue\n" + rows),
        ("l.json", '{"zoe": [1, 0], "bob": [1, 1]}'),
    ):
        source = open_source(edges, ImportOptions(labels=str(write(tmp_path / name, content))))
        assert source.labels.tolist() == [[-1, -1], [1, 1], [1, 0]]
    eve = write(tmp_path / "u.csv", rows[:8] + "eve,1,1\n")
    assert open_source(edges, ImportOptions(labels=str(eve))).ids.tolist() == [
        b"alice",
        b"bob",
        b"eve",
        b"zoe",
    ]
    np.save(tmp_path / "l.npy", np.eye(3))
    refused(edges, "l.npy: rows without ids", labels=str(tmp_path / "l.npy"))
    nodes = str(write(tmp_path / "n.txt", "zoe\nbob\nalice\n"))
    assert open_source(edges, ImportOptions(labels=str(tmp_path / "l.npy"), node_list=nodes)).classes == 3

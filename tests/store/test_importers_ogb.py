"""OGB node-property directories, as CSV files and as archives."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions

from .importing import adjacency, all_features, refused, truncate, write, write_gz

EDGES = np.array([[0, 1], [2, 1], [3, 0], [3, 3]])
X = np.array([[0.5, -1], [2, 3], [0, 0], [1e-3, 4]])
LABELS = [2, 0, 1, 2]


def make(
    root,
    edges=EDGES,
    n=4,
    m=None,
    features=X,
    labels=LABELS,
    split=((0, 1), (2,), (3,)),
    put=write_gz,
    end=".csv.gz",
):
    raw = root / "raw"
    put(raw / f"edge{end}", "".join(f"{a},{b}\n" for a, b in edges))
    put(raw / f"num-node-list{end}", f"{n}\n")
    put(raw / f"num-edge-list{end}", f"{len(edges) if m is None else m}\n")
    if features is not None:
        put(raw / f"node-feat{end}", "".join(",".join(map(str, row)) + "\n" for row in features))
    if labels is not None:
        put(raw / f"node-label{end}", "".join(f"{label}\n" for label in labels))
    for name, ids in zip(("train", "valid", "test"), split, strict=False):
        put(root / "split" / "time" / f"{name}{end}", "".join(f"{k}\n" for k in ids))
    return root


def directed_matrix():
    matrix = np.zeros((4, 4))
    matrix[EDGES[:, 1], EDGES[:, 0]] = 1
    return matrix


def test_csv_layout(tmp_path):
    for put, end in ((write_gz, ".csv.gz"), (write, ".csv")):
        source = open_source(make(tmp_path / end / "arxiv", put=put, end=end))
        assert (source.name, source.n, source.width, source.classes, source.directed) == (
            "arxiv",
            4,
            2,
            3,
            True,
        )
        assert np.array_equal(adjacency(source), directed_matrix())
        assert np.array_equal(all_features(source), X.astype(np.float32))
        assert source.labels.tolist() == LABELS and source.split.tolist() == [1, 1, 2, 3]


def test_of_several_splits_one_is_kept_or_another_given(tmp_path):
    root = make(tmp_path / "arxiv")
    write_gz(root / "split" / "random" / "train.csv.gz", "3\n")
    refused(root, "has 2 splits, random, time; keep one of them or give split=TRAIN/VAL/TEST")
    source = open_source(root, ImportOptions(split="0.5/0.25/0.25"))
    assert np.bincount(source.split, minlength=4).tolist() == [0, 2, 1, 1]


def test_undirected_by_name_and_by_option(tmp_path):
    symmetric = np.maximum(directed_matrix(), directed_matrix().T)
    by_name = open_source(make(tmp_path / "ogbn_products"))
    by_option = open_source(make(tmp_path / "arxiv"), ImportOptions(directed=False))
    for source in (by_name, by_option):
        assert not source.directed and np.array_equal(adjacency(source), symmetric)
    assert open_source(tmp_path / "ogbn_products", ImportOptions(directed=True)).directed


def test_the_name_is_that_of_the_directory_however_it_is_written(tmp_path, monkeypatch):
    for written in (".", "../ogbn_products/", "raw/.."):
        monkeypatch.chdir(make(tmp_path / "ogbn_products"))
        source = open_source(Path(written))
        assert source.name == "ogbn_products" and not source.directed


def test_features_as_npy(tmp_path):
    root = make(tmp_path / "a", features=None)
    np.save(root / "raw" / "node-feat.npy", X.astype(np.float16))
    assert np.array_equal(all_features(open_source(root)), X.astype(np.float16).astype(np.float32))


def test_archived_layout(tmp_path):
    for save in (np.savez, np.savez_compressed):
        root = make(tmp_path / save.__name__ / "papers", labels=None, features=None)
        (root / "raw" / "edge.csv.gz").unlink()
        archive = {"node_feat": X.astype(np.float32), "num_nodes_list": [4], "num_edges_list": [4]}
        for order in ("C", "F"):
            save(root / "raw" / "data.npz", edge_index=np.array(EDGES.T, order=order), **archive)
            assert np.array_equal(
                adjacency(open_source(root, ImportOptions(directed=True))), directed_matrix()
            )
        save(root / "raw" / "node-label.npz", node_label=np.array([[2.0], [np.nan], [0], [1]], np.float32))
        source = open_source(root)
        assert source.n == 4 and source.directed and np.array_equal(adjacency(source), directed_matrix())
        assert np.array_equal(all_features(source), X.astype(np.float32))
        assert source.labels.tolist() == [2, -1, 0, 1] and source.split.tolist() == [1, 1, 2, 3]
        save(root / "raw" / "data.npz", edge_index=EDGES, num_nodes_list=[4])
        refused(root, r"shape \(4, 2\), expected \(2, edges\)")
        save(root / "raw" / "data.npz", edge_index=EDGES.T.copy())
        refused(root, "the number of nodes is unknown")
        save(root / "raw" / "data.npz", edge_index=EDGES.T + 1, num_nodes_list=[4])
        refused(root, "data.npz: node id 4 lies outside")


def test_without_features_labels_and_split(tmp_path):
    source = open_source(make(tmp_path / "a", features=None, labels=None, split=()))
    assert source.width == 0 and source.labels is None and source.split is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"n": 3, "features": None, "labels": None, "split": ()},
            r"edge.csv.gz, line 3, column 0: '3'; expected a node id in 0\.\.2",
        ),
        ({"n": 5}, "features of 4 nodes for a graph of 5"),
        ({"n": "4\n5"}, "num-node-list.csv.gz: expected the size of one graph"),
        ({"n": "many"}, "num-node-list.csv.gz, line 1"),
        ({"m": 5}, "edge.csv.gz: 4 edges, but num-edge-list promises 5"),
        ({"labels": [0, 1, 2]}, r"node-label.csv.gz: labels have shape \(3,\)"),
        ({"labels": ["0,2"] * 4}, "node-label.csv.gz: label 1 of node 0 is 2"),
        ({"labels": [0, 1, 0.5, 1]}, "node-label.csv.gz: node 2 has label .*whole"),
        ({"labels": [0, 1, "inf", 1]}, "node-label.csv.gz, line 3, column 0: 'inf'"),
        ({"split": ((0, 1), (1,), (3,))}, "valid.csv.gz: node 1 is in another part"),
        ({"split": ((0, 1), (2,), (4,))}, "test.csv.gz: node id 4 lies outside"),
        ({"split": ((0, 1), (2,))}, "test.csv.gz: no such file"),
        ({"features": [[1, 2], [3, "nan"], [0, 0], [0, 0]]}, "node-feat.csv.gz, line 2"),
        ({"features": [[1, 2], [3], [0, 0], [0, 0]]}, "node-feat.csv.gz, line 2"),
    ],
)
def test_bad_contents(tmp_path, changes, words):
    refused(make(tmp_path / "a", **changes), words)


def test_missing_and_truncated(tmp_path):
    root = make(tmp_path / "a")
    (root / "raw" / "num-node-list.csv.gz").unlink()
    refused(root, "num-node-list.csv.gz: no such file")
    root = make(tmp_path / "b")
    (root / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"0,1\n2,1\n3,0\n3,3\n")[:-6])
    refused(root, "edge.csv.gz: truncated")
    root = make(tmp_path / "c", features=None)
    np.save(root / "raw" / "node-feat.npy", X)
    truncate(root / "raw" / "node-feat.npy", 0.9)
    refused(root, "node-feat.npy: truncated")
    make(tmp_path / "d")
    write_gz(tmp_path / "d" / "split" / "random" / "train.csv.gz", "0\n")
    refused(tmp_path / "d", "2 splits, random, time")

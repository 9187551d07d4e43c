"""Co-authorship archives, the Reddit pair, generated directories, and the recognition of formats."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import FORMATS, open_source
from distgnn.store.importers.arrays import Npz, open_npy
from distgnn.store.source import ImportOptions

from .importing import adjacency, all_features, refused, truncate, write

N = 5
A = np.array([[0, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0.0]])
X = np.array([[0, 1, 0], [2, 0, 0], [0, 0, 0], [0, 0, 3], [1, 1, 1.0]])
LABELS = np.array([0, 1, 1, 0, 2])


def parts(matrix, prefix):
    matrix = scipy.sparse.csr_matrix(matrix)
    return {
        f"{prefix}data": matrix.data,
        f"{prefix}indices": matrix.indices,
        f"{prefix}indptr": matrix.indptr,
        f"{prefix}shape": matrix.shape,
    }


def coauthors(path, packed=True, adj="adj_", attr="attr_", **changes):
    arrays = {
        **parts(A, adj),
        **parts(X, attr),
        "labels": LABELS,
        "node_names": np.array(["a", {}], dtype=object),
        **changes,
    }
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    return path


def test_coauthor_archive(tmp_path):
    for packed, (adj, attr) in product((True, False), (("adj_", "attr_"), ("adj_matrix.", "attr_matrix."))):
        source = open_source(coauthors(tmp_path / "cs.npz", packed, adj, attr))
        assert (source.name, source.n, source.width, source.classes, source.directed) == (
            "cs",
            N,
            3,
            3,
            False,
        )
        assert np.array_equal(adjacency(source), A) and np.array_equal(all_features(source), X)
        assert source.labels.tolist() == LABELS.tolist() and source.split is None
        assert source.left == ["node_names of cs.npz"]


def test_arrays_of_a_coauthor_archive_that_are_left(tmp_path):
    path = coauthors(tmp_path / "cs.npz", train_mask=np.ones(N, bool))
    np.save(tmp_path / "x.npy", np.ones((N, 2)))
    source = open_source(path, ImportOptions(features=str(tmp_path / "x.npy")))
    attributes = ", ".join(f"attr_{part}" for part in ("data", "indices", "indptr", "shape"))
    assert source.left == [f"{attributes}, node_names, train_mask of cs.npz"]


def test_coauthor_edges_point_along_rows(tmp_path):
    one_way = np.zeros((N, N))
    one_way[0, 3] = 1
    source = open_source(coauthors(tmp_path / "cs.npz", **parts(one_way, "adj_")))
    assert source.directed and np.array_equal(adjacency(source), one_way.T)


def test_coauthor_dense_attributes(tmp_path):
    arrays = {**parts(A, "adj_"), "attr_matrix": np.asfortranarray(X)}
    np.savez_compressed(tmp_path / "cs.npz", **arrays)
    assert np.array_equal(all_features(open_source(tmp_path / "cs.npz")), X)


BAD_COAUTHORS = [
    ({"labels": LABELS[:3]}, r"'labels': labels have shape \(3,\)"),
    ({"labels": LABELS + 0.5}, "expected integers"),
    ({"labels": np.array(["a"] * N)}, "expected numbers"),
    ({"labels": LABELS.astype(object)}, "Python objects"),
    (parts(X[:4], "attr_"), "attributes of 4 nodes for an adjacency matrix of 5"),
    (parts(np.where(X == 2, np.nan, X), "attr_"), "feature 0 of node 1 is nan"),
    ({"attr_indices": np.full(6, 9, np.int32)}, r"feature 9 of node 0 lies outside 0\.\.2"),
    ({"attr_indptr": np.array([0, 1])}, "2 row pointers"),
    ({"attr_data": np.ones(4)}, "6 indices .*for 4 values"),
    ({"adj_shape": [5, 6]}, "5 x 6"),
]


def test_bad_coauthor_archive(tmp_path):
    for changes, words in BAD_COAUTHORS:
        refused(coauthors(tmp_path / "cs.npz", **changes), "cs.npz", words)


IDS = np.array([3, 0, 4, 2, 1])
TYPES = np.array([1, 1, 2, 3, 3])


def reddit(folder, packed=True, matrix=A, name="reddit", **changes):
    folder.mkdir(exist_ok=True)
    scipy.sparse.save_npz(folder / f"{name}_graph.npz", scipy.sparse.coo_matrix(matrix), compressed=packed)
    arrays = {"feature": X[IDS], "label": LABELS[IDS], "node_types": TYPES[IDS], "node_ids": IDS, **changes}
    arrays = {key: value for key, value in arrays.items() if value is not None}
    (np.savez_compressed if packed else np.savez)(folder / f"{name}_data.npz", **arrays)
    return folder


def test_reddit_pair(tmp_path):
    for packed, name in product((True, False), ("reddit", "reddit_self_loop")):
        source = open_source(reddit(tmp_path / f"{name} {packed}", packed, name=name))
        assert (source.name, source.n, source.width, source.classes, source.directed) == (
            name,
            N,
            3,
            3,
            False,
        )
        assert np.array_equal(adjacency(source), A) and np.array_equal(all_features(source), X)
        assert source.labels.tolist() == LABELS.tolist() and source.split.tolist() == TYPES.tolist()


def test_reddit_without_ids_and_types(tmp_path):
    source = open_source(reddit(tmp_path / "r", feature=X, label=LABELS, node_types=None, node_ids=None))
    assert np.array_equal(all_features(source), X) and source.split is None


BAD_REDDIT = [
    ({"feature": X[:4]}, "'feature': 4 rows for 5 nodes"),
    ({"feature": np.where(X == 3, np.inf, X)}, "feature 2 of node .* is inf"),
    ({"feature": X.astype(object)}, "Python objects"),
    ({"label": LABELS[:2]}, "'label': 2 entries for 5 nodes"),
    ({"label": None}, "no array 'label'"),
    ({"node_types": TYPES + 1}, "0, 1, 2, 3"),
    ({"node_ids": np.array([0, 1, 2, 3, 3])}, "every node 0..4 once"),
    ({"node_ids": np.array([1, 2, 3, 4, 5])}, "every node 0..4 once"),
]


def test_bad_reddit_pair(tmp_path):
    for changes, words in BAD_REDDIT:
        refused(reddit(tmp_path / "r", **changes), "reddit_data.npz", words)


def test_truncated_reddit_pair(tmp_path):
    for name in ("reddit_data.npz", "reddit_graph.npz"):
        truncate(reddit(tmp_path / "r") / name, 0.5)
        refused(tmp_path / "r", f"{name}: truncated or damaged")


EDGES = np.array([[0, 1], [1, 2], [4, 4]])


def generated(folder, **changes):
    folder.mkdir(exist_ok=True)
    graph = {
        "format": "distgnn-graph",
        "version": 1,
        "kind": "sbm",
        "n": N,
        "edges": len(EDGES),
        "directed": False,
        "classes": 3,
        "width": 3,
        "seed": 1,
        "parameters": {},
    }
    write(folder / "graph.json", json.dumps({**graph, **changes}))
    np.save(folder / "edges.npy", EDGES)
    np.save(folder / "features.npy", X.astype(np.float32))
    np.save(folder / "labels.npy", LABELS.astype(np.int32))
    np.save(folder / "split.npy", TYPES.astype(np.uint8))
    return folder


def test_generated_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "entries", 2)
    source = open_source(generated(tmp_path / "g"))
    assert (source.name, source.n, source.width, source.classes, source.edge_count) == ("sbm", N, 3, 3, 3)
    matrix = np.zeros((N, N))
    matrix[EDGES[:, 1], EDGES[:, 0]] = 1
    assert np.array_equal(adjacency(source), np.maximum(matrix, matrix.T)) and np.array_equal(
        all_features(source), X
    )
    assert source.labels.tolist() == LABELS.tolist() and source.split.tolist() == TYPES.tolist()
    assert np.array_equal(adjacency(open_source(generated(tmp_path / "d", directed=True))), matrix)
    assert open_source(tmp_path / "g", ImportOptions(split="1/0/0")).split.tolist() == [1] * N


def test_generated_directory_without_features(tmp_path):
    folder = generated(tmp_path / "g", width=0, classes=0)
    for name in ("features.npy", "labels.npy", "split.npy"):
        (folder / name).unlink()
    source = open_source(folder)
    assert source.width == 0 and source.labels is None and source.split is None


BAD_DESCRIPTIONS = [
    ({"version": 2}, "schema version 2"),
    ({"format": "other"}, 'expected "format"'),
    ({"n": 3}, r"features.npy: shape \(5, 3\), expected \(3, 3\)"),
    ({"n": 3, "width": 0, "classes": 0}, "split"),
    ({"n": -1}, '"n" is -1'),
    ({"n": "5"}, "\"n\" is '5'"),
    ({"directed": 1}, '"directed" is 1'),
    ({"edges": 4}, r"edges.npy: int64 of shape \(3, 2\)"),
    ({"width": 2}, "features.npy: shape"),
    ({"classes": 2}, r"labels.npy: label 2 lies outside 0\.\.1"),
]


def test_bad_description(tmp_path):
    for changes, words in BAD_DESCRIPTIONS:
        refused(generated(tmp_path / "g", **changes), words)


def test_bad_generated_arrays(tmp_path):
    folder = generated(tmp_path / "g")
    np.save(folder / "edges.npy", EDGES + 1)
    refused(folder, "edges.npy: node id 5 lies outside")
    np.save(folder / "edges.npy", EDGES - 1)
    refused(folder, "edges.npy: node id -1 lies outside")
    np.save(folder / "edges.npy", EDGES.astype(float))
    refused(folder, "edges.npy: float64")
    for name in ("edges.npy", "features.npy", "labels.npy"):
        truncate(generated(tmp_path / "t") / name, 0.95)
        refused(tmp_path / "t", f"{name}: truncated")
    (generated(tmp_path / "t") / "features.npy").unlink()
    refused(tmp_path / "t", "features.npy: no such file")
    write(generated(tmp_path / "t") / "graph.json", "{")
    refused(tmp_path / "t", "graph.json: not JSON")
    np.save(generated(tmp_path / "t") / "labels.npy", LABELS.astype(float))
    refused(tmp_path / "t", "labels.npy: holds float64")
    folder = generated(tmp_path / "t")
    np.save(folder / "features.npy", np.where(X == 2, np.nan, X).astype(np.float32))
    refused(folder, "features.npy: feature 0 of node 1 is nan")


def test_recognition(tmp_path):
    refused(tmp_path / "nothing", "no such file or directory")
    refused(write(tmp_path / "a.xyz", "0 1\n"), "a.xyz: unknown format; expected .mtx")
    refused(tmp_path, "a directory of unknown format; expected graph.json")
    refused(tmp_path / "a.xyz", "format=tiff", "expected one of edges, generated", format="tiff")
    for name in FORMATS:
        if name != "edges":
            refused(tmp_path / "a.xyz", "a.xyz", format=name)
    assert np.array_equal(
        adjacency(open_source(tmp_path / "a.xyz", ImportOptions(format="edges"))), [[0, 1], [1, 0]]
    )
    refused(tmp_path, "is a directory; the format edges is a file", format="edges")
    refused(reddit(tmp_path / "r"), "ind.NAME", format="planetoid")


def test_companions_in_one_directory(tmp_path):
    write(tmp_path / "club_edges.csv", "id_1,id_2\n0,1\n1,2\n")
    write(tmp_path / "club_target.csv", "id,name,page_type\n0,x,b\n1,y,a\n2,z,b\n")
    write(tmp_path / "club.json", '{"0": [1], "1": [0], "2": [3]}')
    source = open_source(tmp_path, ImportOptions(split="1/0/0"))
    assert (source.name, source.n, source.width, source.class_names) == ("club", 3, 4, ["a", "b"])
    assert open_source(tmp_path, ImportOptions(label_column="name")).class_names == ["x", "y", "z"]
    write(tmp_path / "extra_edges.csv", "0,1\n")
    refused(tmp_path, "directory of unknown format")


def test_arrays_from_an_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "entries", 4)
    data = np.arange(24, dtype=np.int32).reshape(4, 6)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", c=data, f=np.asfortranarray(data), empty=np.zeros((0, 3)), one=np.float32(2))
        archive = Npz(tmp_path / "a.npz")
        for name in ("c", "f"):
            assert np.array_equal(archive.read(name), data)
            assert np.array_equal(archive.stored(name).rows(np.array([3, 0, 1, 2, 2])), data[[3, 0, 1, 2, 2]])
            assert np.array_equal(archive.stored(name).read(), data)
        assert archive.stored("empty").read().shape == archive.read("empty").shape == (0, 3)
        assert archive.read("one") == 2
        streamed = list(archive.stream("c", 5, 11))
        assert [len(piece) for piece in streamed] == [4, 4, 3] and np.array_equal(
            np.concatenate(streamed), np.arange(5, 16)
        )


def test_header_that_promises_more_than_the_file(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((3, 3)))
    path.write_bytes(path.read_bytes().replace(b"(3, 3)", b"(9, 3)"))
    with pytest.raises(UserError, match="truncated"):
        open_npy(path)
    path.write_bytes(path.read_bytes().replace(b"(9, 3)", b"(-9, 3)"[:6]))
    with pytest.raises(UserError):
        open_npy(path)

"""Planetoid directories: order of test nodes, missing ones, the split, and pickles that ask for anything
else.
"""

from __future__ import annotations

import collections
import os
import pickle
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from distgnn.store.importers import open_source
from distgnn.store.importers.pickled.unpickler import ALLOWED
from distgnn.store.source import ImportOptions

from .importing import adjacency, all_features, refused, truncate, write

# Eight nodes: 0..3 in allx (0 and 1 train), 4, 5 and 7 test nodes in another order; 6 is missing from
# test.index.
ALLX = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], np.float32)
TX = np.array([[7, 0, 0], [0, 4, 0], [0, 5, 5]], np.float32)
TEST = [7, 4, 5]
GRAPH = {0: [1, 1], 1: [0, 0, 2], 2: [1], 3: [3], 4: [5], 5: [4], 6: [], 7: [2]}


def one_hot(classes):
    return np.array([[k == c for k in range(3)] for c in classes], np.int32)


def contents():
    graph = collections.defaultdict(list)
    graph.update(GRAPH)
    return {
        "x": scipy.sparse.csr_matrix(ALLX[:2]),
        "tx": scipy.sparse.csr_matrix(TX),
        "allx": scipy.sparse.csr_matrix(ALLX),
        "y": one_hot([0, 2]),
        "ty": one_hot([1, 2, 0]),
        "ally": one_hot([0, 2, 1, -1]),
        "graph": graph,
    }


def make(folder: Path, protocol: int = 2, **changes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, value in {**contents(), **changes}.items():
        with open(folder / f"ind.tiny.{name}", "wb") as file:
            pickle.dump(value, file, protocol)
    write(folder / "ind.tiny.test.index", "".join(f"{k}\n" for k in TEST))
    return folder


def test_a_small_data_set(tmp_path):
    for protocol in (2, 3, 4):
        source = open_source(make(tmp_path / str(protocol), protocol))
        assert (source.name, source.n, source.width, source.classes, source.directed) == (
            "tiny",
            8,
            3,
            3,
            False,
        )
        expected = np.zeros((8, 8))
        for node, ends in GRAPH.items():
            for end in ends:
                expected[node, end] = expected[end, node] = 1
        assert np.array_equal(adjacency(source), expected)
        features = np.zeros((8, 3))
        features[:4], features[7], features[4], features[5] = ALLX, TX[0], TX[1], TX[2]
        assert np.array_equal(all_features(source), features)
        assert source.labels.tolist() == [0, 2, 1, -1, 2, 0, -1, 1]
        assert source.split.tolist() == [1, 1, 2, 2, 3, 3, 0, 3]


def test_a_node_behind_the_last_test_node(tmp_path):
    source = open_source(make(tmp_path / "data", graph={**GRAPH, 9: [0]}))
    assert source.n == 10 and source.labels[8:].tolist() == [-1, -1] and not all_features(source)[8:].any()


def test_dense_features_and_split_on_request(tmp_path):
    source = open_source(
        make(tmp_path / "data", allx=ALLX, tx=TX), ImportOptions(split="0.5/0.25/0.25", seed=3)
    )
    assert all_features(source)[7, 0] == 7
    assert np.bincount(source.split).tolist() == [2, 3, 1, 2]  # six labelled nodes; 3 and 6 have no label


class Payload:
    """Unpickling this runs a program, unless nothing but numbers is admitted."""

    def __init__(self, call, arguments, *state):
        self.reduced = call, arguments, *state

    def __reduce__(self):
        return self.reduced


def test_a_pickle_that_runs_a_program(tmp_path):
    for name, protocol in product(("allx", "tx", "ally", "ty", "y", "graph"), (2, 4)):
        proof = tmp_path / "proof"
        payload = Payload(os.system, (f"touch {proof}",))
        pickle.loads(pickle.dumps(payload, protocol))
        assert proof.exists()  # the payload works
        proof.unlink()
        refused(
            make(tmp_path / f"{name} {protocol}", protocol, **{name: payload}),
            f"ind.tiny.{name}",
            "this pickle asks for (posix|nt).system",
            "only NumPy arrays",
        )
        assert not proof.exists()


@pytest.mark.parametrize(
    "call",
    [
        eval,
        getattr,
        np.load,
        np.save,
        scipy.sparse.load_npz,
        pickle.loads,
        collections.OrderedDict,
        Path,
        bytearray,
    ],
)
def test_nothing_else_is_admitted(tmp_path, call):
    refused(make(tmp_path / "data", graph=Payload(call, ("x",))), "asks for .*" + call.__name__.lstrip("_"))


def test_a_payload_deep_inside_an_array(tmp_path):
    rows = np.empty((4, 3), dtype=object)
    rows[:] = 0
    rows[3, 2] = Payload(os.system, (f"touch {tmp_path / 'proof'}",))
    refused(make(tmp_path / "data", ally=rows), "ind.tiny.ally", "'O8', expected numbers")
    assert not (tmp_path / "proof").exists()


def test_a_state_that_makes_integers_pointers(tmp_path):
    """NumPy's own dtype takes these flags, and would then follow the integers of the array as addresses."""
    kind = Payload(np.dtype, ("i8", False, True), (3, "<", None, None, None, 8, 8, 63))
    state = (1, (4, 3), kind, False, b"\x01" * 96)
    rows = Payload(np.zeros(0).__reduce__()[0], (np.ndarray, (0,), b"b"), state)
    source = open_source(make(tmp_path / "data", ally=rows))
    assert source.labels.tolist()[:4] == [0] * 4 and source.classes == 3


def test_the_list_is_short():
    """Whoever adds to the list must change this test too, and say why."""
    assert {name for _, name in ALLOWED} == {
        "_reconstruct",
        "csr_matrix",
        "defaultdict",
        "dtype",
        "encode",
        "list",
        "ndarray",
        "scalar",
    }


def damaged(indices, indptr):
    matrix = scipy.sparse.csr_matrix(ALLX)
    matrix.indices, matrix.indptr = np.array(indices, np.int32), np.array(indptr, np.int32)
    return matrix


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"graph": [1, 2]}, "ind.tiny.graph: .*expected .node"),
        ({"graph": {0: ["a"]}}, "ind.tiny.graph"),
        ({"graph": {0: 5}}, "ind.tiny.graph"),
        ({"graph": {0: [-1]}}, "ind.tiny.graph: node .-1. is no node id"),
        ({"graph": {0: [1 << 41]}}, "ind.tiny.graph: node .* is no node id"),
        ({"ally": one_hot([0, 1])}, "ind.tiny.ally: has a side of 2"),
        ({"ty": one_hot([0, 1])}, "ind.tiny.ty: has a side of 2"),
        ({"tx": TX[:, :2]}, "ind.tiny.tx: has a side of 2"),
        ({"tx": TX[:2]}, "ind.tiny.test.index: 3 lines or more; expected at most 2"),
        ({"y": one_hot([0] * 5)}, "ind.tiny.y: 5 training nodes"),
        ({"ally": {"a": 1}}, "ind.tiny.ally: expected a matrix of one-hot"),
        ({"allx": {"a": 1}}, "ind.tiny.allx: not a feature matrix"),
        ({"allx": np.array([[None]])}, "ind.tiny.allx: .*'O8', expected numbers"),
        ({"allx": np.ones(4)}, "ind.tiny.allx: expected a feature matrix"),
        ({"allx": damaged([0, 1, 2, 0, 9], [0, 1, 2, 3, 5])}, "ind.tiny.allx: column 9 lies outside"),
        ({"allx": damaged([0, 1, 2, 0, 1], [0, 1, 2, 3, 99])}, "ind.tiny.allx: row pointers"),
        ({"tx": TX * np.float32("nan")}, "feature .* of node 4 is nan"),
    ],
)
def test_bad_contents(tmp_path, changes, words):
    refused(make(tmp_path / "data", **changes), words)


def test_missing_and_truncated_files(tmp_path):
    for name in ("tx", "allx", "y", "ty", "ally", "test.index"):
        folder = make(tmp_path / "data")
        (folder / f"ind.tiny.{name}").unlink()
        refused(folder, f"ind.tiny.{name}: no such file")
    for name in ("tx", "graph"):
        folder = make(tmp_path / "data")
        truncate(folder / f"ind.tiny.{name}", 0.6)
        refused(folder, f"ind.tiny.{name}: not a complete pickle")


def test_bad_test_index(tmp_path):
    folder = make(tmp_path / "data")
    for content, words in (
        ("7\nfour\n5\n", "line 2, column 0: 'four'; expected one node id per line"),
        ("7\n3\n5\n", "line 2, column 0: '3'; expected one node id per line in 4.."),
        ("7\n7\n5\n", "twice"),
        ("7\n4\n", "tx: has a side of 3"),
    ):
        write(folder / "ind.tiny.test.index", content)
        refused(folder, words)


def test_two_data_sets_in_one_folder(tmp_path):
    folder = make(tmp_path / "data")
    (folder / "ind.other.graph").write_bytes((folder / "ind.tiny.graph").read_bytes())
    refused(folder, "other, tiny")

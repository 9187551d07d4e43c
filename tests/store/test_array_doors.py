"""Arrays at the door: zeros and repeats of matrices, ids, labels and splits, or what is wrong."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn.errors import ArgumentError
from distgnn.store.from_arrays import of_arrays
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions
from loops import each

N = 6
EDGES = np.array([[0, 1, 2, 4], [1, 2, 0, 5]])
X = np.arange(2 * N, dtype=np.float64).reshape(N, 2)
Y = np.array([0, 1, 2, -1, 1, 0])
MISSING = float("nan")


def dense(source) -> np.ndarray:
    """Return A of a source, the largest weight of an edge that comes several times."""
    A = np.zeros((source.n, source.n))
    for src, dst, weight in source.edges():
        np.maximum.at(A, (dst, src), np.ones(len(src)) if weight is None else weight)
    return A


def with_diagonal() -> sp.csr_matrix:
    """Return a matrix with a diagonal that was set to zero, and stays stored."""
    A = sp.csr_matrix(np.array([[1, 2, 0], [0, 1, 3], [0, 0, 1.0]]))
    A.setdiag(0)
    return A


def under_a_threshold() -> sp.csr_matrix:
    A = sp.csr_matrix(np.array([[0, 2, 0.1], [0, 0, 3], [0.1, 0, 0]]))
    A.data[A.data < 0.5] = 0
    return A


EQUAL = np.array([[0, 2, 0], [0, 0, 3], [0, 0, 0.0]])


MATRICES = [
    (sp.csr_array(EQUAL), 0), (with_diagonal(), 3), (under_a_threshold(), 2),
    (sp.csr_array(EQUAL).tobsr((3, 3)), 7),
    (sp.coo_array(([2.0, 1, 2, 5, -5], ([0, 1, 1, 2, 2], [1, 2, 2, 0, 0])), shape=(3, 3)), 1),
]  # fmt: skip


@each("matrix, zeros", MATRICES)
def test_equal_matrices_are_equal_graphs(tmp_path, matrix, zeros: int) -> None:
    for weights in (False, True):
        source = of_arrays(matrix, weights=weights, directed=True)
        assert (dense(source) == (EQUAL if weights else EQUAL != 0)).all() and source.edge_count == 2
        assert source.left == ([f"{zeros} zeros that graph stores"] if zeros else [])
    summary = dg.prepare(matrix, out=tmp_path / "a.dg", force=True, normalize="none", self_loops=False)
    assert summary.nnz == 2 and summary.left == source.left


def test_a_line_of_a_list_is_an_edge_whatever_its_weight() -> None:
    source = of_arrays(EDGES, nodes=N, weights=[0.0, 1, 2, 3])
    assert source.edge_count == 4
    assert [weight.tolist() for _, _, weight in source.edges()] == [[0, 1, 2, 3]]


@each("ends, nodes", [
    ([[98101, 2134, 2134], [98102, 98101, 10001]], [2134, 10001, 98101, 98102]),
    ([[10**15, 7], [7, 3]], [3, 7, 10**15]),
    ([[5, 4], [4, 5]], [4, 5]),
    ([[0, 3], [3, 0]], None), ([[0, 1], [4, 0]], None), ([[0, 1], [5, 3]], None), ([[0, 1], [6, 2]], None),
    ([[0, 1], [8, 3]], [0, 1, 3, 8]),
])  # fmt: skip
def test_ids_with_more_gaps_than_nodes_are_names(ends, nodes) -> None:
    ends = np.array(ends)
    source = of_arrays(ends)
    assert source.n == (ends.max() + 1 if nodes is None else len(nodes))
    assert (source.ids is None) if nodes is None else (source.ids.tolist() == nodes)
    assert any("are ids" in note for note in source.notes) == (nodes is not None)
    told = of_arrays(ends, nodes=9) if ends.max() < 9 else None
    assert told is None or (told.n, told.ids, told.notes) == (9, None, [])


@each("given, problem", [
    ({"graph": EDGES + 98_000, "X": X}, r"graph=98000: is no node, X has 6 rows; ids=IDS says which node"),
    ({"graph": EDGES + 1, "y": Y}, r"graph=6: is no node, y has 6 rows; subtract 1 from ids that begin at 1"),
    ({"graph": EDGES, "nodes": 3}, r"graph=4: is no node, nodes is 3"),
    ({"graph": EDGES - 1}, r"graph=-1: is no node; expected numbers from 0"),
    ({"graph": EDGES.astype(np.uint64) + np.uint64(2**63)}, r"graph=.*beyond 2\*\*63"),
    ({"graph": EDGES, "ids": np.array([2**70, *range(5)], object)}, r"ids=.*beyond 2\*\*63"),
    ({"graph": EDGES, "ids": np.array([0, 1, 2, 3, 4, 1.5], object)}, "ids=.*an empty id|ids=.*1.5"),
    ({"graph": sp.csr_array(EQUAL), "weights": [1.0, 2]}, "weights=list: a matrix has .*weights=True"),
    ({"graph": sp.csr_array(EQUAL + 0j)}, "graph=complex128: holds complex values"),
    ({"graph": EQUAL}, r"graph=float64 of shape \(3, 3\): .*scipy.sparse.csr_array\(graph\)"),
    ({"graph": EDGES, "X": X[:, :0]}, r"X=float64 of shape \(6, 0\): has no columns"),
    ({"graph": EDGES, "X": X.astype(str)}, "X=.*expected real numbers"),
])  # fmt: skip
def test_graphs_and_features_are_refused_by_what_is_wrong(given, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem) as error:
        of_arrays(**given)
    assert "\n" not in str(error.value)


WORDS = ["ant", "bee", "", "ant", "cat", "bee"]


@each("y, labels, names", [
    (WORDS, [0, 1, -1, 0, 2, 1], ["ant", "bee", "cat"]),
    (np.array([word or None for word in WORDS], object), [0, 1, -1, 0, 2, 1], ["ant", "bee", "cat"]),
    (np.array([word or MISSING for word in WORDS], object), [0, 1, -1, 0, 2, 1], ["ant", "bee", "cat"]),
    (np.array(WORDS).astype("S3"), [0, 1, -1, 0, 2, 1], ["ant", "bee", "cat"]),
    (np.array([word.encode() for word in WORDS], object), [0, 1, -1, 0, 2, 1], ["ant", "bee", "cat"]),
    (np.array(WORDS)[:, None], [0, 1, -1, 0, 2, 1], ["ant", "bee", "cat"]),
    (np.array([0, 1, 2, None, 1, 0], object), [0, 1, 2, -1, 1, 0], None),
    (np.array([0, 1, 2, -1, 1, 0], object), [0, 1, 2, -1, 1, 0], None),
    (np.array([0.0, 1, 2, MISSING, True, np.int8(0)], object), [0, 1, 2, -1, 1, 0], None),
    (np.array([0, 1, 2, MISSING, 1, 0]), [0, 1, 2, -1, 1, 0], None),
    (np.arange(N) > 2, [0, 0, 0, 1, 1, 1], None),
])  # fmt: skip
def test_labels_of_every_kind_are_classes(y, labels, names) -> None:
    source = of_arrays(EDGES, X, y)
    assert source.labels.tolist() == labels and source.class_names == names
    assert source.classes == 1 + max(labels)


@each("y, problem", [
    (np.full(N, -1), "y=int64 of shape .6,.: every label is below 0, NaN or empty; expected a class"),
    (np.full(N, MISSING), "y=.*every label is below 0, NaN or empty"),
    ([None] * N, "y=.*every label is below 0, NaN or empty"),
    ([""] * N, "y=.*every label is"),
    (np.full((N, 3), -1), "y=int8 of shape .6, 3.: every label is"),
    (["a", "b", 3, "a", "b", 4], "y=3: node 2 has a number, others have text"),
    (np.array(["a", 2.5, "b", "a", "b", "a"], object), "y=2.5: node 1 has a number, others have text"),
    (np.array([0, 1.5, 0, 1, 0, 1], object), "y=numbers with fractions"),
    ([["a"], ["a", "b"], [], ["b"], [], []], "y=list: node 0 has several classes.*rows of 0 and 1.*iz"),
    ([["a", "b"]] * N, "y=.*rows of 0 and 1.*Binarizer"),
    ([{"a"}, {"a", "b"}, set(), {"b"}, set(), set()], "y=set: node 0 has several classes"),
    ([b"\xff", b"a", b"b", b"a", b"b", b"a"], "y=b.*node 0 is no text in UTF-8"),
    ([{"a": 1}] * N, "y=dict: node 0 has no class"),
    (np.arange(N).astype("M8[D]"), "y=datetime64"),
])  # fmt: skip
def test_labels_are_refused_by_what_is_wrong(y, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem) as error:
        of_arrays(EDGES, X, y)
    assert "\n" not in str(error.value)


def test_no_number_to_predict_is_said_too() -> None:
    with pytest.raises(ArgumentError, match="y=float64 .*every label is NaN; expected a number"):
        of_arrays(EDGES, X, np.full(N, MISSING), regression=True)
    objects = of_arrays(EDGES, X, np.array([1.5, None, 2, 3, 4, 5], object), regression=True)
    assert np.isnan(objects.labels[1, 0]) and objects.labels[0, 0] == 1.5


@each("y, said", [
    (np.where(Y > 0, 1, -1), True), (np.where(Y > 0, 0, -1), True), (np.zeros(N, int), False), (Y, False),
])  # fmt: skip
def test_one_class_beside_minus_one_is_noted(tmp_path, y, said: bool) -> None:
    notes = [of_arrays(EDGES, X, y).notes, labels_of_a_file(tmp_path, y).notes]
    assert [sum("nodes below 0 or NaN have none" in note for note in some) for some in notes] == [said] * 2


def labels_of_a_file(folder, y):
    np.savetxt(folder / "e.csv", EDGES.T, "%d", ",")
    np.save(folder / "y.npy", y)
    return open_source(folder / "e.csv", ImportOptions(labels=str(folder / "y.npy")))


def test_a_file_without_a_label_is_refused(tmp_path) -> None:
    for y in (np.full(N, -1), np.full(N, MISSING), np.full((N, 3), -1)):
        with pytest.raises(dg.UserError, match="y.npy: every label is below 0, NaN or empty"):
            labels_of_a_file(tmp_path, y)


PARTS = [1, 2, 3, 0, 1, 0]
CALLED = ["train", "val", "test", "none", "train", ""]


@each("split", [
    np.array(PARTS), np.array([*PARTS[:5], MISSING]), np.array(PARTS, object), CALLED, np.array(CALLED),
    np.array([None if word == "" else word.encode() for word in CALLED], object),
    ["Training", "valid", "TEST", "", "train", "none"], ([0, 4], [1], [2]),
    {"train": [4, 0], "val": np.array([1]), "test": (2,)},
])  # fmt: skip
def test_splits_of_every_kind(split) -> None:
    assert of_arrays(EDGES, X, Y, split).split.tolist() == PARTS


def test_shares_and_empty_parts() -> None:
    drawn = of_arrays(EDGES, X, Y, "0.5/0.25/0.25", seed=3).split
    for shares in ((0.5, 0.25, 0.25), [0.5, 0.25, 0.25], np.array([0.5, 0.25, 0.25])):
        assert (of_arrays(EDGES, X, Y, shares, seed=3).split == drawn).all()
    assert of_arrays(EDGES, X, Y, (1, 0, 0)).split.tolist() == [1, 1, 1, 0, 1, 1]
    for empty in ([], np.array([]), np.zeros(0, int)):
        assert of_arrays(EDGES, X, Y, ([0, 1], empty, empty)).split.tolist() == [1, 1, 0, 0, 0, 0]
        assert of_arrays(EDGES, X, Y, {"train": [0, 1], "test": empty}).split.sum() == 2


def test_numbers_in_lists_are_ids_where_nodes_have_ids() -> None:
    ids = np.array([5, 3, 0, 1, 2, 4])
    parts = {"train": [5, 2], "val": [3], "test": [0]}
    for names in (ids, ids + 100, np.array([f"n{k}" for k in ids])):
        called = dict(zip(ids.tolist(), names.tolist(), strict=True))
        split = {part: [called[k] for k in nodes] for part, nodes in parts.items()}
        source = of_arrays(np.array([names[:3], names[3:]]), X, Y, split, ids=names)
        assert source.split.tolist() == PARTS, names


@each("split, problem", [
    (np.repeat([0, 1, 2], 2), "split=0, 1, 2: .*cannot tell the parts.*0 none, 1 train, 2 val, 3 test"),
    (np.repeat([1, 2], 3), "split=1, 2: .*cannot tell the parts"),
    (np.repeat(["0", "1", "2"], 2), "split=0, 1, 2: .*cannot tell the parts"),
    (np.arange(N) > 2, "split=a mask: a mask is one part; .*train"),
    (np.array([1, 2, 3, 0, 1, 0.5]), "split=0.5: node 5"),
    (np.array([1, 2, 3, 0, 1, 7]), "split=7: node 5"),
    (["train", "trian", "test", "", "", ""], "split=trian: node 1.*expected train, val, test or none"),
    (PARTS[:4], "split=4 parts: .*each of the 6 nodes"),
    ((0.5, 0.4, 0.4), "sum to at most 1"),
    (([0, 1], [2], [9]), "split=9: is no node"),
    (([0, 1], [2], ["a"]), "split=test: .U1 of shape .1,.: expected whole numbers, or a mask of the 6"),
    (0.6, "split=0.6: expected"),
])  # fmt: skip
def test_splits_are_refused_by_what_is_wrong(split, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem) as error:
        of_arrays(EDGES, X, Y, split)
    assert "\n" not in str(error.value)


def test_a_file_of_parts_is_read_like_an_array(tmp_path) -> None:
    np.savetxt(tmp_path / "e.csv", EDGES.T, "%d", ",")
    for split in (np.array(PARTS), np.array(CALLED)):
        np.save(tmp_path / "s.npy", split)
        dg.prepare(tmp_path / "e.csv", split=tmp_path / "s.npy", out=tmp_path / "a.dg", force=True)
        assert dg.Store(tmp_path / "a.dg").split(None, (0, N)).tolist() == PARTS
    np.save(tmp_path / "s.npy", np.repeat([0, 1, 2], 2))
    with pytest.raises(dg.UserError, match="s.npy: cannot tell the parts from 0, 1, 2"):
        dg.prepare(tmp_path / "e.csv", split=tmp_path / "s.npy", out=tmp_path / "b.dg")


def test_numpy_has_other_names_for_types(tmp_path) -> None:
    for dtype in (np.float64, np.dtype("float64"), "float64"):
        dg.prepare(EDGES, out=tmp_path / "a.dg", dtype=dtype, force=True)
        assert dg.Store(tmp_path / "a.dg").manifest["dtype"] == "float64"
    with pytest.raises(ArgumentError, match="dtype=float16: expected one of float32, float64"):
        dg.prepare(EDGES, out=tmp_path / "a.dg", dtype=np.float16, force=True)


def test_a_pair_of_ogb_is_a_graph_and_its_labels() -> None:
    graph = {"edge_index": EDGES, "node_feat": X, "num_nodes": N, "edge_feat": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = of_arrays((graph, np.where(Y < 0, MISSING, Y)[:, None]))
    assert source.labels.tolist() == Y.tolist() and (source.features(np.arange(N)) == X).all()
    assert of_arrays((graph, Y), y=Y[::-1]).labels.tolist() == Y[::-1].tolist()

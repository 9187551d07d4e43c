"""Tables of pandas: columns by name, rows by index, and what cannot be told."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.errors import ArgumentError
from distgnn.store.from_arrays import of_arrays
from loops import each

pd = pytest.importorskip("pandas")
IDS = ["d", "a", "c", "b"]
EDGES = {"source": ["d", "a", "c"], "target": ["a", "c", "d"], "weight": [2.0, 0.5, 3.0]}
NODES = {"age": [40.0, 20, 60, 30], "income": [4, 2, 6, 3], "label": ["y", "x", None, "x"]}
X = np.array([NODES["age"], NODES["income"]]).T
INDEX = pd.Index(IDS, name="person")


def frame(columns=EDGES, index=None, **more):
    return pd.DataFrame(columns | more, index=index)


def entries(source) -> dict:
    names = np.arange(source.n) if source.ids is None else source.ids.astype(str)
    return {
        (str(names[s]), str(names[t])): weight
        for src, dst, weights in source.edges()
        for s, t, weight in zip(src, dst, [1.0] * len(src) if weights is None else weights, strict=True)
    }


WEIGHTED = {("d", "a"): 2.0, ("a", "c"): 0.5, ("c", "d"): 3.0}


@each("table", [
    frame(), frame({}, **{"Unnamed: 0": [0, 1, 2]} | EDGES),
    frame({}, weight=EDGES["weight"], to=EDGES["target"], **{"from": EDGES["source"]}),
    frame({}, A=EDGES["source"], B=EDGES["target"], C=EDGES["weight"]),
    frame(kind=["p", "q", "r"], year=[1, 2, 3]), frame(index=[7, 8, 9]),
])  # fmt: skip
def test_edges_by_the_names_of_columns(table) -> None:
    assert entries(of_arrays(table, weights=True)) == WEIGHTED
    assert entries(of_arrays(table)) == dict.fromkeys(WEIGHTED, 1.0)
    nodes = frame(NODES, INDEX)[["age", "income"]]
    source = of_arrays(table, nodes, weights=True)
    assert source.ids.astype(str).tolist() == IDS and entries(source) == WEIGHTED


@each("nodes, y", [
    (frame(NODES, INDEX), "label"),
    (frame(NODES, INDEX), frame(NODES, INDEX)["label"]),
    (frame(NODES, INDEX), frame(NODES, INDEX)["label"].iloc[::-1]),
    (frame(NODES, INDEX), frame(NODES, INDEX)["label"].dropna()),
    (frame(NODES, INDEX)[["age", "income"]], frame(NODES)["label"]),
    (frame(NODES, INDEX)[["age", "income"]], NODES["label"]),
    (frame(NODES, INDEX)[["age", "income"]], frame(NODES, INDEX)["label"].astype("category")),
    (frame(NODES, INDEX)[["age", "income"]], frame(NODES, INDEX)[["label"]]),
    (frame(NODES, Node=IDS), "label"), (frame({"ID": IDS} | NODES), frame(NODES)["label"]),
    (X, frame(NODES, INDEX)["label"]),
])  # fmt: skip
def test_nodes_by_columns_and_index(nodes, y) -> None:
    split = pd.Series(["test", "train", "val"], index=["b", "d", "a"])
    split = split if getattr(nodes, "index", INDEX).equals(INDEX) else split.reindex(IDS).to_numpy()
    source = of_arrays(frame(), nodes, y, split)
    assert source.ids.astype(str).tolist() == IDS and (source.features(np.arange(4)) == X).all()
    assert source.labels.tolist() == [1, 0, -1, 0] and source.class_names == ["x", "y"]
    assert source.split.tolist() == [1, 2, 0, 3] and entries(source) == dict.fromkeys(WEIGHTED, 1.0)


def test_rows_numbered_from_0_are_positions() -> None:
    edges = frame({"u": [0, 1], "v": [1, 3]})
    source = of_arrays(edges, frame(NODES), "label")
    assert source.ids is None and (source.features(np.arange(4)) == X).all()
    shuffled = frame(NODES).iloc[[2, 0, 3, 1]]
    source = of_arrays(edges, shuffled[["age", "income"]], shuffled["label"])
    assert source.ids.tolist() == [2, 0, 3, 1] and entries(source) == {("0", "1"): 1.0, ("1", "3"): 1.0}
    nullable = frame({"u": [0, 1], "v": [1, 3]}).astype("Int64"), frame(NODES).convert_dtypes()
    assert (of_arrays(nullable[0], nullable[1], "label").features(np.arange(4)) == X).all()
    assert of_arrays(edges, frame(NODES)["age"]).width == 1


@each("given, problem", [
    ({"graph": frame({}, a=IDS, b=IDS, c=IDS)}, r"graph=columns a, b, c: .*pass graph\[\[SOURCE, TARGET\]\]"),
    ({"graph": frame({}, a=[1], b=[2], c=[3], d=[4])}, "graph=columns a, b, c, d: cannot tell"),
    ({"graph": frame({}, src=["a", None], dst=["b", "a"])}, "graph=column src: row 1 is empty"),
    ({"graph": frame({}, src=[1, np.nan], dst=[1, 2])}, "graph=column src: row 1 is empty"),
    ({"graph": frame({}, src=[1], dst=[2]), "weights": True}, "weights=True: no column is called weight"),
    ({"X": frame(NODES, INDEX)}, "X=column label: holds .*no numbers"),
    ({"X": frame(NODES, INDEX), "y": "labl"}, r"y=labl: is no column of X.*did you mean label\?"),
    ({"X": X, "y": frame(NODES, ["d", "a", "c", "z"])["label"]}, "graph=b: is no node|graph=.*is no node"),
    ({"X": frame(NODES, INDEX)[["age"]], "y": pd.Series([1, 2], ["a", "z"])}, "y=row z: is no node of X"),
    ({"X": frame(NODES, ["a", "a", "c", "d"])[["age"]], "y": pd.Series([1], ["a"])}, "y=.*listed twice"),
    ({"X": frame(NODES, ["a", "a", "c", "d"])[["age"]]}, "ids=4 of them: node 'a' is listed twice"),
])  # fmt: skip
def test_tables_are_refused_by_what_is_wrong(given, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem) as error:
        of_arrays(**{"graph": frame({}, u=["d", "b"], v=["b", "a"])} | given)
    assert "\n" not in str(error.value)


def test_features_have_the_names_of_columns() -> None:
    columns = {"age": NODES["age"], "income": NODES["income"]}
    named, edges = frame(columns), np.array([[0, 1, 2], [1, 2, 3]])
    assert of_arrays(edges, named).feature_names == ["age", "income"]
    nodes = frame({"ID": IDS, "label": NODES["label"]} | columns)
    assert of_arrays(frame(EDGES), nodes, "label").feature_names == ["age", "income"]
    for unnamed in (X, pd.DataFrame(X), named.rename(columns={"age": 7})):
        assert of_arrays(edges, unnamed).feature_names is None


def test_tables_of_pyarrow() -> None:
    pa = pytest.importorskip("pyarrow")
    nodes = pa.table({"id": IDS} | NODES).drop_columns("label")
    source = of_arrays(pa.table(EDGES), nodes, pa.array(NODES["label"]), weights=True)
    assert source.ids.astype(str).tolist() == IDS and entries(source) == WEIGHTED
    assert source.feature_names == ["age", "income"] and source.class_names == ["x", "y"]
    assert np.array_equal(source.features(np.arange(4)), X)


@each("nodes, y", [
    (frame({"age": [30.0, 10, 20]}, [2, 0, 1]), pd.Series([1, 0, 2])),
    (frame({}, age=[30.0, 10, 20], id=[2, 0, 1]), pd.Series([1, 0, 2], pd.Index([0, 1, 2], name="id"))),
    (frame({}, age=[30.0, 10, 20], id=[2, 0, 1]), pd.Series([2, 1, 0])),
    (frame({}, age=[5.0, 30, 10, 20], id=[7, 2, 0, 1]).iloc[1:], pd.Series([9, 2, 1, 0]).iloc[1:]),
])  # fmt: skip
def test_labels_find_their_nodes_by_id(nodes, y) -> None:
    """A shuffled index, ids in a column, rows left out: the label of node k is 1, 0, 2."""
    source = of_arrays(np.array([[0, 1], [1, 2]]), nodes, y)
    ids = np.arange(3) if source.ids is None else source.ids.astype(int)
    assert dict(zip(ids.tolist(), source.labels.tolist(), strict=True)) == {0: 1, 1: 0, 2: 2}
    ages = source.features(np.arange(3))[:, 0].tolist()
    assert dict(zip(ids.tolist(), ages, strict=True)) == {0: 10.0, 1: 20.0, 2: 30.0}


def test_a_label_that_may_be_of_two_rows_is_refused() -> None:
    with pytest.raises(ArgumentError, match="y=row 0: is no node of X"):
        of_arrays(np.array([[1], [2]]), frame(NODES).iloc[1:][["age"]], pd.Series([1, 0, 2]))


def test_columns_are_features_whatever_they_are_called() -> None:
    """Labels are called 0 where a file without names had them alone; two columns may have one name."""
    plain = pd.DataFrame(np.arange(9.0).reshape(3, 3))
    source = of_arrays(np.array([[0], [1]]), plain, pd.Series([1, 0, 1], name=0))
    np.testing.assert_array_equal(source.features(np.arange(3)), plain.to_numpy())
    twice = plain.set_axis(["a", "a", "b"], axis=1)
    source = of_arrays(np.array([[0], [1]]), twice, [1, 0, 1])
    np.testing.assert_array_equal(source.features(np.arange(3)), plain.to_numpy())
    source = of_arrays(np.array([[0], [1]]), plain, plain[0])
    np.testing.assert_array_equal(source.features(np.arange(3)), plain.to_numpy()[:, 1:])


@each("table, problem", [
    (frame({"row": [0, 1, 2, 3], "a": [5, 6, 7, 5], "b": [6, 7, 5, 7]}), "column row.* may be an index"),
    (frame({"node": [0, 1], "label": [1, 0]}), "are those of a table of labels"),
    (frame({"a": [1, 2], "b": ["p", "q"]}), "has 1 beside strings"),
    (frame({"a": ["p", "NULL"], "b": ["q", "r"]}), "'NULL'.*stands for nothing"),
    (np.array([["p", "nan"], ["q", "r"]]), "'nan'.*stands for nothing"),
])  # fmt: skip
def test_what_may_be_no_edges_is_refused(table, problem) -> None:
    with pytest.raises(ArgumentError, match=problem):
        of_arrays(table)


def test_what_only_looks_so_is_taken() -> None:
    for last in ([1, 1, 1, 1], [0.5, 1, 2, 3]):
        assert of_arrays(frame({"row": [0, 1, 2, 3], "a": [1, 2, 3, 0], "w": last})).n == 4
    assert of_arrays(np.array([["p", "nan"], ["q", "r"]]), ids=["p", "nan", "q", "r"]).n == 4


def test_a_column_called_label_is_noted() -> None:
    nodes = frame({"age": [1.0, 2, 3, 4], "label": [0, 1, 0, 1]})
    edges = np.array([[0, 1, 2], [1, 2, 3]])
    assert any("column label is taken for a feature" in note for note in of_arrays(edges, nodes).notes)
    assert not of_arrays(edges, nodes, "label").notes

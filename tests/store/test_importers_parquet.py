"""Parquet edges and tables of nodes."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.importers.arrow import converted
from distgnn.store.importers.arrow_tables import ParquetTable
from distgnn.store.importers.table import WantedColumn
from distgnn.store.source import ImportOptions

from .importing import adjacency, all_features, refused

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def saved(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def edges(tmp_path):
    return saved(tmp_path / "e.parquet", source=["b", "a"], target=["a", "c"])


def test_words_and_tables(edges, tmp_path, monkeypatch):
    monkeypatch.setattr(LIMITS, "entries", 4)  # a row at a time
    words = pa.array(["c", "a", "b"]).dictionary_encode()
    table = saved(tmp_path / "t.parquet", node=words, x=[[1.0, 2], [3, 4], [5, 6]], z=[True, False, True],
                  label=["u", None, "v"], split=["test", "train", "val"])  # fmt: skip
    source = open_source(edges, ImportOptions(features=str(table), labels=str(table), split=str(table)))
    assert source.ids.tolist() == [b"a", b"b", b"c"]
    assert all_features(source).tolist() == [[3, 4, 0], [5, 6, 1], [1, 2, 1]]
    assert source.labels.tolist() == [-1, 1, 0] and source.split.tolist() == [1, 2, 3]
    assert np.argwhere(adjacency(source)).tolist() == [[0, 1], [0, 2], [1, 0], [2, 0]]
    source = open_source(edges, ImportOptions(node_list=str(table)))
    assert source.ids.tolist() == [b"c", b"a", b"b"]


def test_rows_with_wide_vectors_come_a_few_at_a_time(tmp_path, monkeypatch):
    """Wide rows come as many numbers at a time as narrow ones: a small file can unpack to very many."""
    monkeypatch.setattr(LIMITS, "entries", 18)
    path = saved(tmp_path / "t.parquet", x=[[0.0] * 8] * 5, y=[1] * 5)
    table = ParquetTable(path, by_node=True)
    found = [[len(some) for (some,) in table.batches([WantedColumn(k, "numbers", "")])] for k in range(2)]
    assert found == [[2, 2, 1], [4, 1]]


def test_numbers_weights_and_chosen_columns(tmp_path):
    path = saved(
        tmp_path / "e.parquet", w=[0.5, 2.0], to=pa.array([1, 2], pa.uint8()), when=["x", "y"], by=[0, 1]
    )
    options = ImportOptions(source_column="by", target_column="to", directed=True)
    assert np.argwhere(adjacency(open_source(path, options))).tolist() == [[1, 0], [2, 1]]
    options.weights = True
    assert adjacency(open_source(path, options))[1, 0] == 0.5
    far = saved(tmp_path / "f.parquet", source=[1 << 60], target=[5])
    assert open_source(far).ids.tolist() == [5, 1 << 60]


BAD_EDGES = [
    ({"source": [0, None], "target": [1, 2]}, "row 2, column source: nothing; expected a node id"),
    ({"source": [0.5, 1], "target": [1, 2]}, "row 1, column source: '0.5'; expected a node id"),
    ({"source": [0, 1], "target": ["1", "2"]}, "column source holds integers; .*strings"),
    (
        {"source": ["a", ""], "target": ["b", "c"]},
        "row 2, column source: nothing; expected a node id, not an empty one",
    ),
    ({"source": [0, -1], "target": [1, 2]}, "row 2, column source: .-1.; expected a node id"),
    ({"source": [0]}, "1 columns"),
    ({"id": [0], "label": [1]}, "are those of a table of labels"),
]


def test_bad_edges(tmp_path):
    for columns, words in BAD_EDGES:
        if columns.get("target") == ["1", "2"]:
            columns["source"] = pa.array([0.5, 1.5])
            words = "column source holds numbers; expected node ids, whole numbers or strings"
        refused(saved(tmp_path / "e.parquet", **columns), f"e.parquet.*{words}")


BAD_FEATURES = [
    ({"node": ["y", "z"], "x": [1, 2]}, "none of its nodes, such as 'y', is in"),
    ({"node": ["a", "b", "a"], "x": [1, 2, 3]}, "row 3: node 'a' is listed twice"),
    (
        {"node": ["a", "b"], "x": [1, None]},
        "row 2, column x: nothing; expected a finite number; missing=mean",
    ),
    ({"node": ["a", "b"], "x": [1, np.nan]}, "row 2, column x: nothing; expected a finite number"),
    ({"node": ["a", "b"], "x": ["p", "q"]}, "column x holds words; expected numbers"),
    ({"node": ["a", "b"], "x": [[1.0], [1.0, 2.0]]}, "row 2, column x: 2 numbers, 1 in row 1"),
    ({"node": ["a"]}, "no columns of features"),
]


def test_bad_features(edges, tmp_path, monkeypatch):
    for columns, words in BAD_FEATURES:
        monkeypatch.setattr(LIMITS, "entries", 4)  # a row at a time
        refused(edges, words, features=str(saved(tmp_path / "x.parquet", **columns)))


def test_damaged_files(edges, tmp_path):
    data = edges.read_bytes()
    for content in (b"", data[:50], data[:-4] + b"XXXX", data[:-8] + b"\xff" * 4 + data[-4:]):
        (tmp_path / "d.parquet").write_bytes(content)
        refused(tmp_path / "d.parquet", "d.parquet: cannot be read as Parquet")


def test_a_damaged_page_names_no_other_word():
    for beyond in (2, -1):
        damaged = pa.DictionaryArray.from_arrays(pa.array([0, beyond]), pa.array(["a", "b"]), safe=False)
        with pytest.raises(pa.ArrowException, match=f"out of bounds: {beyond}"):
            converted(damaged, "words", 1, "words")


def test_few_bytes_that_unpack_to_very_many(tmp_path, monkeypatch):
    """A word, and a vector, that a dictionary or a compressed page repeats for as long as somebody likes."""
    long = pa.array(["w" * 100_000] * 5000 + ["v"]).dictionary_encode()
    words = saved(tmp_path / "words.parquet", source=long, target=long)
    assert words.stat().st_size < 300_000
    refused(words, "a word of 100000 characters; expected at most 4096")
    edges = saved(tmp_path / "e.parquet", source=["b", "a"], target=["a", "c"])
    table = saved(tmp_path / "labels.parquet", node=["a", "b", "c"], label=["x", "y", "w" * 5000])
    refused(edges, "a word of 5000 characters; expected at most 4096", labels=str(table))
    monkeypatch.setattr(LIMITS, "unpacked_bytes", 1 << 20)
    wide = saved(tmp_path / "wide.parquet", x=[[0.0] * 500_000] * 2)
    assert wide.stat().st_size < 10_000
    refused(edges, "unpack to 8000000 or more", features=str(wide))

"""Kinds of files from public reports: each is the graph that its author meant, or an error of one line."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions

from .importing import adjacency, refused, write


def packed() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("edges.csv", "0,1\n1,2\n")
    return file.getvalue()


#: What a file holds, its name, options, and what the error says.
REFUSED = {
    "Zip": (packed(), "e.csv", {}, "is a Zip archive"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n", "e.csv", {}, "LFS"),
    "GraphML": (b'<?xml version="1.0"?>\n<graphml>\n</graphml>\n', "e.txt", {}, "is XML or HTML"),
    "HTML": (b"<!DOCTYPE html>\n<html>404</html>\n", "e.csv", {}, "is XML or HTML"),
    "Pajek": (b'*Vertices 2\n1 "a"\n2 "b"\n*Edges\n1 2\n', "e.txt", {}, "Pajek"),
    "JSON": (b'[{"source": 0, "target": 1}]\n', "e.csv", {}, "is JSON; name it .jsonl"),
    "Matrix Market": (b"%%MatrixMarket matrix coordinate real general\n3 3 1\n2 1 1\n", "e.edges", {}, "mtx"),
    "UTF-16": ("source,target\na,b\n".encode("utf-16-le"), "e.csv", {}, "zero bytes, as UTF-16"),
    "Windows-1252": ("source,target\nRené,Bob\n".encode("cp1252"), "e.csv", {}, "line 2.*save it as UTF-8"),
    "Markdown": (b"| source | target |\n|---|---|\n| a | b |\n", "e.txt", {}, "line 2.*'---'"),
    "hex": (b"1,2\n0x2,3\n", "e.csv", {"ids": "integers"}, "line 2.*'0x2'.*digits"),
    "hex first": (b"0x1,0x2\n0x2,0x3\n", "e.csv", {"ids": "integers"}, "line 1.*'0x1'"),
    "one name twice": (b"source,target,target\n0,1,2\n", "e.csv", {}, "several columns are called target"),
    "decimal comma": (b"source;target;weight\n0;1;0,5\n", "e.csv", {"weights": True}, "line 2.*'0,5'"),
    "matrix with names": (b";A;B;C\nA;1.1;4.3;0\nB;1.4;2;1.1\nC;1;0;3.1\n", "e.csv", {}, "those of a matrix"),
    "matrix of pandas": (b",a,b\na,0,1\nb,1,0\n", "e.csv", {}, "those of a matrix"),
    "n/a": (b"source,target\na,n/a\n", "e.csv", {}, "line 2, column target: 'n/a'"),
    "NaT": (b"source,target\nNaT,b\n", "e.csv", {}, "line 2, column source: 'NaT'"),
    "N-Triples": (b"<a> <p> <b> .\n<b> <p> <c> .\n", "e.tsv", {}, "cannot tell source and target among 4"),
    "a comma without quotes": (b"a,b\nb,c\nd,0.1.1,0.1.2\n", "e.csv", {}, "line 3: bad line .* has 3 fields"),
    "edge ids": (b"id,source,target\n7,1,2\n8,2,0\n", "e.csv", {"weights": True}, "no column of weights"),
    "fractions": (b"1.5 2.0\n2.0 3.0\n", "e.txt", {}, "line 1.*'1.5'.*whole number"),
    "floats beyond 2**53": (b"1e300 2.0\n2.0 3.0\n", "e.txt", {}, "line 1.*'1e.?300'"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_list_of_edges_is_refused(tmp_path, kind) -> None:
    data, name, options, message = REFUSED[kind]
    (tmp_path / name).write_bytes(data)
    refused(tmp_path / name, message, **options)


@pytest.mark.parametrize(
    "text",
    [
        "   4.3381000e+04   2.8300000e+02\n   2.8300000e+02   7.7000000e+01\n",
        "43381.0,283.0\n283.0,77.0\n",
        "source,target\n43381,283.0\n283,77\n",
        "43381 2.83e+02\n2.83E2 7.7e1\n",
    ],
)
def test_whole_numbers_are_ids_in_any_spelling(tmp_path, text) -> None:
    """Ids as MATLAB's save -ascii, pandas after a join, and awk write them."""
    source = open_source(write(tmp_path / "e.txt", text), ImportOptions())
    assert source.ids.tolist() == [77, 283, 43381]
    assert adjacency(source).tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    weighted = "\n".join(line + ("," if "," in line else " ") + "0.5" for line in text.splitlines()[-2:])
    source = open_source(write(tmp_path / "w.txt", weighted), ImportOptions(weights=True))
    assert source.ids.tolist() == [77, 283, 43381] and adjacency(source).max() == 0.5


@pytest.mark.parametrize(
    ("lists", "labels"),
    [
        ([[0, 1, 1], [1, 0, 0], [0, 0, 1]], [[1, 0, 0], [0, 0, 1], [0, 1, 1]]),
        ([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0, 1], [1, 1], [1, 0]]),
        ([[0], [1, 2], [2]], [[0, 1, 1], [0, 0, 1], [1, 0, 0]]),
        ([[0, 1], [1, 2], [2, 0]], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]),
    ],
)
def test_lists_of_numbers_are_labels(tmp_path, lists, labels) -> None:
    """Lists of 0 and 1 have one for each class, others hold the classes of a node."""
    pq.write_table(pa.table({"id": [2, 0, 1], "label": lists}), tmp_path / "labels.parquet")
    options = ImportOptions(labels=str(tmp_path / "labels.parquet"))
    source = open_source(write(tmp_path / "e.csv", "0,1\n1,2\n"), options)
    assert np.asarray(source.labels).tolist() == labels


ENDS = ["Source,Destination", ":START_ID,:END_ID", "src_id,dst_id", "sender,receiver"]


@pytest.mark.parametrize("ends", ENDS)
def test_names_of_ends_in_other_programs(tmp_path, ends) -> None:
    """Gephi's users, Neo4j and DGL name the ends so, beside columns of words."""
    text = f"id,{ends},kind\n7,1,2,p\n8,2,0,q\n9,0,1,p\n"
    source = open_source(write(tmp_path / "e.csv", text), ImportOptions())
    assert source.ids is None and adjacency(source).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert "id, kind of e.csv" in source.left


@pytest.mark.parametrize("below", ["-1", "-2", "-2.0"])
def test_numbers_below_0_are_no_label(tmp_path, below) -> None:
    edges, point = write(tmp_path / "e.csv", "0,1\n1,2\n"), ".0" * below.endswith(".0")
    for classes, labels in (((0, 1), [0, -1, 1]), ((1, 1), [0, -1, 0])):
        lines = f"0,{classes[0]}{point}\n1,{below}\n2,{classes[1]}{point}\n"
        table = write(tmp_path / "y.csv", f"id,label\n{lines}")
        source = open_source(edges, ImportOptions(labels=str(table)))
        assert source.labels.tolist() == labels and "-" not in "".join(source.class_names)
        said = [note for note in source.notes if "every label is 1, and nodes below 0" in note]
        assert bool(said) == (classes[0] == 1)


def test_the_list_of_edges_has_no_other_role(tmp_path) -> None:
    edges, link = write(tmp_path / "e.csv", "source,target\n0,1\n1,2\n"), tmp_path / "link.csv"
    link.symlink_to(edges)
    for role in ("features", "labels", "split", "node_list"):
        refused(edges, f"{role}=.*link.csv: is the list of edges", **{role: str(link)})


def test_categories_have_names(tmp_path) -> None:
    """A store with other towns has other features, though it has as many."""
    edges = write(tmp_path / "e.csv", "0,1\n1,2\n")
    table = str(write(tmp_path / "x.csv", "id,age,town\n0,1,X\n1,2,Y\n2,3,X\n"))
    source = open_source(edges, ImportOptions(features=table, categorical="town"))
    assert source.feature_names == ["age", "town=X", "town=Y"] and source.width == 3


def test_text_labels_in_json(tmp_path) -> None:
    edges, table = write(tmp_path / "e.csv", "0,1\n1,2\n2,3\n"), tmp_path / "y.json"
    for text, names, labels in (
        ('{"0": "red", "2": "blue", "1": null}', ["blue", "red"], [1, -1, 0, -1]),
        ('{"0": 1, "2": 0, "1": null}', None, [1, -1, 0, -1]),
    ):
        source = open_source(edges, ImportOptions(labels=str(write(table, text))))
        assert source.class_names == names and source.labels.tolist() == labels
    write(table, '{"0": "red", "1": 2}')
    refused(edges, "y.json: holds text beside numbers or lists", labels=str(table))


@pytest.mark.parametrize("named, features", [("label", "label"), ("Split", "age,Split"), ("age", "age")])
def test_a_column_called_as_labels_are_is_noted(tmp_path, named, features) -> None:
    edges = write(tmp_path / "e.csv", "0,1\n1,2\n")
    text = f"id,{'z' if named == 'age' else 'age'},{named}\n0,1,1\n1,2,0\n2,3,1\n"
    table = write(tmp_path / "x.csv", text)
    notes = open_source(edges, ImportOptions(features=str(table))).notes
    assert any(f"column {named} is taken for a feature" in note for note in notes) == (named != "age")
    asked = open_source(edges, ImportOptions(features=str(table), feature_columns=features)).notes
    assert not any("is taken for a feature" in note for note in asked)

"""Whole numbers that a program wrote as others, 4.0 or 4e+05: ids, labels and parts in every table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distgnn.errors import ArgumentError
from distgnn.store.from_arrays import of_arrays
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions

from .importing import adjacency, all_features, refused, write

pd = pytest.importorskip("pandas")
FORMS = ("csv", "tsv", "parquet", "jsonl")
NAN = float("nan")
ENDS = {"source": [0.0, 1, 2], "target": [1, 2, 3]}


def table(path: Path, **columns: list[Any]) -> str:
    """Write columns as pandas does, by the ending of the name."""
    frame = pd.DataFrame(columns)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)
    return str(path)


@pytest.mark.parametrize("form", FORMS)
def test_floats_are_ids(tmp_path, form) -> None:
    edges = Path(table(tmp_path / f"e.{form}", **ENDS))
    ids = [0.0, 3, 1, 2]
    given = {"features": {"id": ids, "a": [5, 8, 6, 7]}, "split": {"id": ids[:3], "part": [1.0, 3, 2]}}
    given["labels"] = {"id": ids, "label": [2.0, 0, NAN, 10]}
    names = {name: table(tmp_path / f"{name}.{form}", **columns) for name, columns in given.items()}
    source = open_source(edges, ImportOptions(**names))
    plain = open_source(write(tmp_path / "p.csv", "0,1\n1,2\n2,3\n"), ImportOptions())
    assert source.ids is None and np.array_equal(adjacency(source), adjacency(plain))
    assert all_features(source)[:, 0].tolist() == [5, 6, 7, 8] and source.split.tolist() == [1, 2, 0, 3]
    assert source.class_names == ["0", "2", "10"] and source.labels.tolist() == [1, -1, 2, 0]
    far = Path(table(tmp_path / f"far.{form}", source=[7.0, 100000.0], target=[2.0**40, 7]))
    listed = table(tmp_path / f"nodes.{form}", id=[100000.0, 2.0**40, 7])
    for options, order in (({}, [7, 100000, 1 << 40]), ({"node_list": listed}, [100000, 1 << 40, 7])):
        assert open_source(far, ImportOptions(**options)).ids.tolist() == order


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("ids", "fault"), [([0, NAN, 2], "nothing"), ([0, 1.5, 2], "'1.5'"), ([0, 2.0**60, 2], r"'1\.15\S+18'")]
)
def test_other_floats_are_no_ids(tmp_path, form, ids, fault) -> None:
    place = "line 3" if form[1:] == "sv" else "line 2" if form == "jsonl" else "row 2"
    fault += "(, which may be a rounded number)?"
    message = f"{place}, column source: {fault}; expected a node id"
    refused(Path(table(tmp_path / f"e.{form}", source=ids, target=[1, 2, 3])), message)
    edges = write(tmp_path / "p.csv", "0,1\n1,2\n2,3\n")
    for role in ("features", "labels", "split"):
        values = ["train", "val", "test"] if role == "split" else [1, 2, 3]
        nodes = table(tmp_path / f"{role}.{form}", id=ids, value=values)
        refused(edges, f"{place}, column id: {fault}; expected a node id", **{role: nodes})


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_truth_values_are_no_ids(tmp_path, form) -> None:
    edges = table(tmp_path / f"e.{form}", source=[True, False], target=[1, 2])
    refused(Path(edges), "1, column source: True; expected a node id")


def test_ids_in_single_precision(tmp_path) -> None:
    edges = {"source": np.array([1, 1 << 24], np.float32), "target": np.array([2, 3], np.float32)}
    pd.DataFrame(edges).to_parquet(tmp_path / "e.parquet")
    assert open_source(tmp_path / "e.parquet", ImportOptions()).ids.tolist() == [1, 2, 3, 1 << 24]
    edges["source"] *= 4
    pd.DataFrame(edges).to_parquet(tmp_path / "e.parquet")
    refused(tmp_path / "e.parquet", "row 2, column source: '6.7108864e")


@pytest.mark.parametrize("late", ["1e+05", "100000.0"])
def test_one_float_far_down_the_file(tmp_path, late) -> None:
    """R writes 100000 alone as 1e+05."""
    lines = [f"{k % 700},{k % 300}" for k in range(50_000)]
    path = write(tmp_path / "e.csv", "\n".join([*lines, f"{late},5", "6,7"]) + "\n")
    expected = open_source(write(tmp_path / "p.csv", path.read_text().replace(late, "100000")))
    source = open_source(path, ImportOptions())
    assert source.ids.tolist() == expected.ids.tolist()
    assert np.array_equal(adjacency(source), adjacency(expected))
    refused(write(tmp_path / "f.csv", "\n".join([*lines, "1.5,5"])), "line 50001, column 0: '1.5'")


ROUNDED = ["1.002e+09", "1e+06", "1.23457e+06", "1.2345679e+08", "1E7"]


@pytest.mark.parametrize("text", [*ROUNDED, "1.234567e+06", "1.2345678e+07", "1.5000000e+01", "1e+05"])
def test_numbers_that_were_rounded_are_no_ids(tmp_path, text) -> None:
    """C++ writes six digits, R's write seven, MATLAB's save eight: others may have been another node."""
    early, late = f"{text},5\n7,8\n", "".join(f"{k % 70},{k % 30}\n" for k in range(20_000)) + f"{text},5\n"
    for name, lines, line in ("early", early, 1), ("late", late, 20_001):
        path = write(tmp_path / f"{name}.csv", lines)
        if text in ROUNDED:
            message = f"'{re.escape(text)}', which may be a rounded number; expected a node id"
            refused(path, f"line {line}, column 0: {message}")
        else:
            source = open_source(path, ImportOptions(ids="integers"))
            assert int(float(text)) in (range(source.n) if source.ids is None else source.ids)


def test_ids_in_tables_of_pandas() -> None:
    edges, nodes = pd.DataFrame(ENDS), pd.DataFrame({"id": [0.0, 3, 1, 2], "a": [5.0, 8, 6, 7]})
    source = of_arrays(edges.loc[[0, 1, 2]], nodes, [0, 1, 0, 1])
    assert source.ids.tolist() == [0, 3, 1, 2] and adjacency(source)[[2, 3, 1], [0, 2, 3]].all()
    for wrong, shown in ((1.5, "1.5"), (2.0**60, "1.15")):
        with pytest.raises(ArgumentError, match=f"column source: row 1 is {shown}.*; expected a node"):
            of_arrays(edges.replace({"source": {1.0: wrong}}))
        with pytest.raises(ArgumentError, match=f"column id: row 2 is {shown}.*; expected a node"):
            of_arrays(edges, nodes.replace({"id": {1.0: wrong}}))

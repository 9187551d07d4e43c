"""Dialects are told from the beginning of a text: what comes later is read alike, or refused by its line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from distgnn.store.importers import open_source
from distgnn.store.importers.dialect import SAMPLE
from distgnn.store.source import ImportOptions

from .importing import refused, write

LINES = 10_000  # of words, more than SAMPLE bytes
KINDS = {"blank": " ", "comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}


def long(path: Path, mark: str, last: str) -> Path:
    """Write many edges between x0, ... and y0, ..., and then another line."""
    text = "".join(f"x{k % 50}{mark}y{k % 30}\n" for k in range(LINES))
    assert len(text) > SAMPLE
    return write(path, f"{text}{last}\n")


def ids(path: Path) -> list[str]:
    """Return the ids of the nodes that `long` does not write."""
    source = open_source(path, ImportOptions())
    assert sum(len(src) for src, *_ in source.edges()) == LINES + 1
    names = [one.decode() for one in source.ids.tolist()]
    return [name for name in names if name[0] not in "xy"]


@pytest.mark.parametrize("mark", KINDS.values(), ids=KINDS)
def test_names_with_other_marks_come_after_the_sample(tmp_path, mark) -> None:
    quoted, other = f'"b{mark}2"', "c,3" if mark != "," else "c;3"
    assert ids(long(tmp_path / "e.txt", mark, f"{quoted}{mark}{other}")) == [f"b{mark}2".strip(), other]


@pytest.mark.parametrize("mark", KINDS.values(), ids=KINDS)
def test_another_number_of_columns_after_the_sample_is_refused(tmp_path, mark) -> None:
    path = long(tmp_path / "e.txt", mark, f"b{mark}c{mark}d")
    refused(path, f"line {LINES + 1}: bad line .* 3 fields; expected 2; separator=MARK names another")
    other = "," if mark != "," else ";"
    refused(long(tmp_path / "f.txt", mark, f"b{other}c"), f"line {LINES + 1}: bad line .* 1 fields")


@pytest.mark.parametrize("mark", KINDS.values(), ids=KINDS)
def test_quotes_behind_backslashes(tmp_path, mark) -> None:
    """R's write.table puts a backslash before a quote, unless it is told otherwise."""
    last = f'"b\\"2"{mark}"\\"c{mark} d\\""'
    assert ids(long(tmp_path / "e.txt", mark, last)) == [f'"c{mark} d"', 'b"2']
    path = write(tmp_path / "short.txt", f'"{mark}a\\"1"{mark}"b"\n"b"{mark}"{mark}a\\"1"\n')
    assert {*open_source(path, ImportOptions()).ids.tolist()} == {f'{mark}a"1'.strip().encode(), b"b"}
    path = write(tmp_path / "end.txt", f'"C:\\"{mark}"b"\n"b"{mark}"d"\n')
    assert open_source(path, ImportOptions()).ids.tolist() == [b"C:\\", b"b", b"d"]


@pytest.mark.parametrize("comments", [None, "#"])
@pytest.mark.parametrize("lines", [100, 3 * SAMPLE // 4])
def test_more_comments_than_the_sample(tmp_path, lines, comments) -> None:
    path = write(tmp_path / "e.csv", "# c\n" * lines + "source;target\n0;1\n1;2\n")
    source = open_source(path, ImportOptions(comments=comments))
    assert source.n == 3 and sum(len(src) for src, *_ in source.edges()) == 2
    assert f"{lines} lines before the rows left out" in source.readings[0]


@pytest.mark.parametrize("mark", KINDS.values(), ids=KINDS)
def test_the_sample_ends_in_a_quoted_field(tmp_path, mark) -> None:
    for width in range(1, 13, 4):
        rows = "".join(f'"x{k % 50}\n{mark}z"{mark}y{k % 30}\n' for k in range(LINES))
        path = write(tmp_path / "e.txt", f"{'a' * width}{mark}{'b' * width}\n{rows}")
        assert open_source(path, ImportOptions()).n in (80, 82)


def test_marks_are_names_where_nothing_is_a_comment(tmp_path) -> None:
    table = {"source": ["#", "%", "->"], "target": ["--", "#", "b"]}
    parquet.write_table(pa.table(table), tmp_path / "e.parquet")
    assert open_source(tmp_path / "e.parquet", ImportOptions()).n == 5
    refused(write(tmp_path / "e.csv", "source,target\na,#\n"), "line 2.*comments=# would skip")

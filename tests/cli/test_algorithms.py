"""The table of algorithms: three forms of the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distgnn import cli
from distgnn.operators import TABLE

ROOT = Path(__file__).resolve().parents[2]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["algorithms", *words]) == 0
    return capsys.readouterr().out


def test_every_row_is_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    plain, markdown, rows = (
        printed(capsys),
        printed(capsys, "--markdown"),
        json.loads(printed(capsys, "--json")),
    )
    assert [row["name"] for row in rows] == [row.name for row in TABLE]
    assert [line.split()[0] for line in plain.splitlines()] == [
        "name",
        *(row.name.split()[0] for row in TABLE),
    ]
    assert len(markdown.splitlines()) == len(TABLE) + 2
    for row in TABLE:
        assert f"| `{row.name}` |" in markdown


def test_files_of_the_table_exist() -> None:
    for row in TABLE:
        assert (ROOT / row.file).is_file(), row.file


@pytest.mark.parametrize("page", ["README.md", "docs/operators.md"])
def test_pages_have_the_table(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / page).read_text()
    table = text.split("<!-- distgnn algorithms --markdown -->\n")[1].split("<!-- end of table -->")[0]
    assert table == printed(capsys, "--markdown"), "put the output of `distgnn algorithms --markdown` there"

"""Tables as CSV: what a program reads back, and what no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import re

import pytest

from distgnn.files.sheet import Sheet, cell


def test_cells_come_back_and_none_is_a_formula() -> None:
    texts = [
        "a",
        "=A1",
        "+x",
        "-x",
        "@x",
        "\t=x",
        "\r=x",
        "'=x",
        "''=x",
        "'x",
        "a\rb",
        "a\nb",
        'a"b',
        "a,b",
        "",
    ]
    file = io.StringIO(newline="")
    Sheet(file).writerow(texts)
    assert file.getvalue().endswith("\n") and not file.getvalue().endswith("\r\n")
    (row,) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert not any(text[:1] in "=+-@\t\r" for text in row if text)
    assert len(set(row)) == len(texts)
    assert [re.sub(r"^'(?='*[=+\-@\t\r])", "", text) for text in row] == texts
    assert '"a\rb"' in file.getvalue()


@pytest.mark.parametrize("number", ["-1", "+2.5e-3", "-.5", "-inf", "3", -4, 0.5])
def test_numbers_stay(number: object) -> None:
    assert cell(number) == number

"""Tables as CSV for spreadsheets too: line ends within cells are quoted, and no cell is a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import IO, Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def cell(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would run, such as ``=A1``; numbers stay.

    A text that begins with apostrophes and then so gets one more, so that texts stay distinct: a reader takes
    one apostrophe off cells that begin with some and then ``=``, ``+``, ``-``, ``@``, tab or carriage return.
    """
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if formula else value


class Sheet:
    """A writer of rows to a text file, with a line feed at the end of each."""

    def __init__(self, file: IO[str]) -> None:
        self.file, self.row = file, io.StringIO()
        self.lines = csv.writer(self.row, lineterminator="\r\n")  # both of which are quoted within cells

    def writerow(self, cells: Iterable[Any]) -> None:
        """Write a row; texts as :func:`cell` gives them."""
        self.row.seek(0)
        self.row.truncate()
        self.lines.writerow(map(cell, cells))
        self.file.write(self.row.getvalue()[:-2] + "\n")

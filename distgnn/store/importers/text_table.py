"""Tables in text, whose dialect their beginning tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.errors import UserError
from distgnn.store.importers.arrow import TYPES, whole_numbers
from distgnn.store.importers.dialect import Dialect
from distgnn.store.importers.names import integer, is_number
from distgnn.store.importers.table import MISSING, Table, WantedColumn, WrongValue, numbers_of
from distgnn.store.importers.text import Text

_SCIENTIFIC = re.compile(r"[+-]?[0-9](?:[.](?P<digits>[0-9]*))?[eE][+]?(?P<power>[0-9]{1,3})")
_decimal = lambda text: is_number(text) and text.isascii() and "_" not in text  # noqa: E731
_READS = {
    "floats": lambda text: (
        _decimal(text) and abs(float(text)) < 1 << 53 and float(text).is_integer() and not rounded(text)
    ),
    "integers": lambda text: integer(text) is not None and text[:1] != "+",
    "numbers": lambda text: text in MISSING or _decimal(text),
    "words": lambda text: True,
}


class TextTable(Table):
    """The columns of a text table. A first row without numbers is a header."""

    known = False  # True if the format says the dialect

    def __init__(self, path: Path, options: Any, whole_lines: bool = False) -> None:
        self.path, self.text = path, Text(path, options, whole_lines)
        self._look()

    @classmethod
    def plain(cls, path: Path, kinds: Sequence[str], **facts: Any) -> TextTable:
        """Open a table whose columns have these kinds, by a `Dialect` of these facts."""
        table = cls.__new__(cls)
        rows = [["0"] * len(kinds)]
        table.path, table.text, table.known = path, Text(path, given=Dialect(rows=rows, **facts)), True
        table._look()
        return table

    def _look(self) -> None:
        dialect = self.text.dialect
        self.named, self.comments = bool(dialect.names), dialect.left_out
        self.names = dialect.names or [f"column {k}" for k in range(dialect.width)]
        columns = [[row[k] for row in dialect.rows if k < len(row)] for k in range(len(self.names))]
        self.kinds = [_looks_like(column) for column in columns]

    def take_header(self) -> None:
        """Take the header for a row."""
        self.text.take_header()
        self._look()

    @property
    def leading_zeros(self) -> bool:
        """True if a number with a leading zero may have been read."""
        return self.text.leading_zeros

    def batches(self, wanted: Sequence[WantedColumn]) -> Iterator[list[pa.Array]]:
        done = 0
        while done >= 0:
            types = {k.column: TYPES["words" if self._floats(k) else k.kind] for k in wanted}
            try:
                for batch in self.text.batches(types, MISSING, done):
                    columns = [batch.column(str(item.column)) for item in wanted]
                    for k, item in enumerate(wanted):
                        if self._floats(item):
                            columns[k] = whole_texts(columns[k])
                        if item.kind == "integers" and columns[k].null_count:
                            self._refuse(wanted, done)
                    yield columns
                    done += batch.num_rows
                return
            except (pa.ArrowException, ValueError) as error:
                if not self._takes_floats(wanted, problem := str(error).splitlines()[0]):
                    self._refuse(wanted, done, problem)

    def _floats(self, item: WantedColumn) -> bool:
        """Return True for whole numbers that are written as others are, such as 4.0 or 4e+05."""
        return item.kind == "integers" and self.kinds[item.column] == "numbers"

    def _takes_floats(self, wanted: Sequence[WantedColumn], problem: str) -> bool:
        """Take a column for whole numbers in any spelling after one such as 1e+05, which R writes."""
        match = re.search(r"column #(\d+):.* CSV conversion error to int64: invalid value '(.+)'", problem)
        if not match or self.kinds[int(match[1])] != "integers" or not _READS["floats"](match[2]):
            return False
        self.kinds[int(match[1])] = "numbers"
        return True

    def _refuse(self, wanted: Sequence[WantedColumn], done: int, problem: str = "") -> NoReturn:
        """Raise the error for the first row, after those done, that is not as wanted."""
        width = len(self.names)
        for line, fields in self.text.rows(done):
            where = f"{self.path}, line {line}"
            if any("\udc80" <= c <= "\udcff" for field in fields for c in field):
                raise UserError(f"{where}: is not UTF-8 text")
            if len(fields) != width:
                shown = self.text.dialect.separator.join(fields)[:80]
                advice = self._advice(fields)
                raise UserError(
                    f"{where}: bad line {shown!r}, which has {len(fields)} fields; expected {width}{advice}"
                )
            for item in wanted:
                if not _READS["floats" if self._floats(item) else item.kind](fields[item.column]):
                    text = fields[item.column]
                    field = repr(text[:60]) if text else "nothing"
                    if item.kind == "integers" and rounded(text):
                        field += ", which may be a rounded number"
                    message = f"{where}, {self.spot(item.column)}: {field}; expected {item.expected}"
                    raise WrongValue(message, text, item.column)
        raise UserError(f"{self.path}: cannot be read as a table ({problem})")

    def _advice(self, fields: list[str]) -> str:
        if self.known:
            return ""
        if fields[0][:1] in ("#", "%"):
            return f"; comments={fields[0][:1]} would skip such lines"
        if any(field.startswith("#") for field in fields[1:]):
            return "; comments=# would skip what is behind #"
        return "" if any('"' in field for field in fields) else "; separator=MARK names another separator"

    def bad(self, row: int, column: int, text: object, expected: str) -> WrongValue:
        _, fields = next(self.text.rows(row))
        return super().bad(row, column, fields[column], expected)

    def place(self, row: int) -> str:
        line = next((line for line, _ in self.text.rows(row)), "?")
        return f"{self.path}, line {line}"


def rounded(text: str) -> bool:
    """Return True for 1.002e+09 and the like: C++ writes six digits of a number, R's write seven."""
    match = _SCIENTIFIC.fullmatch(text)
    return match is not None and int(match["power"]) >= 6 and int(match["power"]) > len(match["digits"] or "")


def whole_texts(texts: pa.Array) -> pa.Array:
    """Convert texts such as 4.0 and 4e+05 to int64; ValueError or ArrowException for any other."""
    texts = pc.utf8_trim_whitespace(texts)
    parts = pc.extract_regex(texts, _SCIENTIFIC.pattern.join("^$"))
    powers = pc.struct_field(parts, "power").cast(pa.int64())
    digits = pc.utf8_length(pc.struct_field(parts, "digits"))
    if pc.any(pc.and_(pc.greater_equal(powers, 6), pc.greater(powers, digits))).as_py():
        raise ValueError("a number that may be rounded")
    return whole_numbers(texts.cast(pa.float64()))


def _looks_like(texts: list[str]) -> str:
    """Return the kind of a column by some of its fields."""
    given = [text for text in texts if text not in MISSING]
    if not given:
        return "words" if any(texts) else "empty"
    if all(integer(text) is not None for text in given):
        return "integers"
    return "numbers" if all(map(is_number, given)) else "words"


def column(path: Path, expected: str, most: int, low: int = 0, high: int = (1 << 63) - 1) -> np.ndarray:
    """Read a text with one whole number per line, of which there may be `most`."""
    parts, count = [np.zeros(0, np.int64)], 0
    for (some,) in numbers_of(
        TextTable.plain(path, ["integers"], separator=","), [WantedColumn(0, "integers", expected)], low, high
    ):
        parts.append(some)
        count += len(some)
        if count > most:
            raise UserError(f"{path}: {count} lines or more; expected at most {most}")
    return np.concatenate(parts)

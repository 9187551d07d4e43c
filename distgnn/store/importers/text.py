"""Text tables, with columns between commas, tabs, semicolons or blanks; errors name the bad line.

Numbers are read by `numpy.loadtxt`, in blocks of whole lines, as it checks every field. `numpy.fromstring` is
about twice as fast but only counts numbers, so that `1,2,3` followed by `4` would pass as two edges.
"""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.stages import stage
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.columns import BadValue, Check, Columns, Field, first_bad, structured
from distgnn.store.importers.files import BYTE_ORDER_MARK, AnyPath, check_line, lines, open_binary, reading
from distgnn.store.importers.names import Names, encoded, is_number, looks_like
from distgnn.store.importers.plain_text import plain_rows

TYPES: dict[str, Any] = {"integers": np.int64, "words": object, "numbers": np.float64, "features": np.float64}


def blocks(path: AnyPath, skip: int = 0, size: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the first line counted from 1, bytes of whole lines) after the first `skip` lines.

    About `size` bytes are read at a time.
    """
    with reading(path), open_binary(path) as file, stage(f"read {path}", os.path.getsize(path), "B") as read:
        for _ in range(skip):
            file.readline()
        number, tail = skip + 1, b""
        packed = getattr(file, "fileobj", file)  # whose size is known
        if not skip and (start := file.read(len(BYTE_ORDER_MARK))) != BYTE_ORDER_MARK:
            tail = start
        while data := file.read(size or LIMITS.text_bytes):
            read.to(packed.tell())
            cut = data.rfind(b"\n") + 1
            if not cut:
                tail += data
                check_line(len(tail), number, path)
                continue
            block, tail = tail + data[:cut], data[cut:]
            yield number, block
            number += block.count(b"\n")
        if tail:
            yield number, tail


def first_line(path: AnyPath) -> tuple[int, str]:
    """Return number and text of the first line that is neither blank nor a comment; (0, "") without one.

    Before it, and only there, lines that begin with % and a blank are comments, too, as KONECT has them.
    """
    for number, line in lines(path):
        start = line.lstrip()
        if start and not start.startswith("#") and not (start[0] == "%" and not start[1:2].strip()):
            return number, line.rstrip("\r\n")
    return 0, ""


@dataclass
class Table:
    """A text table whose structured dtype has a field for each column or for some of them.

    `check(rows)` returns the fault of wrong values, or None; `expected` describes a line.

    Fields of dtype object are words, which come as UTF-8 in a dtype S; a `#` in them is part of a word, so
    comments are only lines that begin with it.
    """

    path: Path
    dtype: np.dtype
    expected: str
    delimiter: str | None = None
    columns: tuple[int, ...] | None = None
    comments: str = "#"
    skip: int = 0
    check: Check | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the rows of each block."""
        size = LIMITS.text_bytes >> 3 if self.dtype.hasobject else None  # words take more room
        for number, block in blocks(self.path, self.skip, size):
            try:
                rows = self._parse(block)
            except ValueError:
                raise self._bad_line(number, block) from None
            if len(rows):
                yield rows

    def _parse(self, block: bytes) -> np.ndarray:
        """Parse a block; ValueError is caused by one line alone."""
        words = self.dtype.hasobject
        if words and (rows := self._plain(block)) is not None:
            return self._checked(rows)
        text = io.StringIO(_uncommented(block, self.comments)) if words else io.BytesIO(block)
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # older NumPy reads 1.5 as an integer
            warnings.simplefilter("ignore", UserWarning)  # a block without data
            try:
                rows = np.loadtxt(
                    text, self.dtype, comments=None if words else self.comments, delimiter=self.delimiter,
                    usecols=self.columns, quotechar='"', ndmin=1,
                )  # fmt: skip
            except DeprecationWarning as warning:
                raise ValueError(str(warning)) from None
        return self._checked(_in_utf8(rows) if words else rows)

    def _plain(self, block: bytes) -> np.ndarray | None:
        """Parse a block as plain text; None where it is none."""
        if any(self.dtype[name].shape for name in self.dtype.names or ()):
            return None
        return plain_rows(block, self.dtype, self.columns, self.delimiter or " ")

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        if self.check and len(rows) and (wrong := self.check(rows)):
            raise BadValue(wrong)
        return rows

    def _bad_line(self, number: int, block: bytes) -> UserError:
        """Make the error for the first line of a bad block that cannot be read."""
        lines = [line + b"\n" for line in block.split(b"\n")]
        row, error = first_bad(lambda lo, hi: self._parse(b"".join(lines[lo:hi])), len(lines))
        text = lines[row].decode("utf-8", "replace").rstrip("\r\n")
        text = text if len(text) <= 80 else text[:77] + "..."
        bad = f"bad line {text!r}" + (f" ({error})" if isinstance(error, BadValue) else "")
        return UserError(f"{self.path}, line {number + row}: {bad}; expected {self.expected}")


def _uncommented(block: bytes, comments: str) -> str:
    """Decode a block without the lines that are comments."""
    text = block.decode("utf-8")
    if comments not in text:
        return text
    return "".join(line for line in text.splitlines(True) if not line.lstrip().startswith(comments))


def _in_utf8(rows: np.ndarray) -> np.ndarray:
    """Encode words, but in fields that are only skipped; BadValue for words that are no ids."""
    fields = {name: rows[name] for name in rows.dtype.names or () if name[0] != "_"}
    for name, values in fields.items():
        if values.dtype == object:
            try:
                fields[name] = encoded(values.tolist())
            except ValueError as error:
                raise BadValue(str(error)) from None
    return structured(fields)


def column(
    path: Path, expected: str, most: int, dtype: Any = np.int64, *, delimiter: str | None = None,
    check: Check | None = None,
) -> np.ndarray:  # fmt: skip
    """Read a table with one number per line, of which there may be `most`."""
    table = Table(path, np.dtype([("value", dtype)]), expected, delimiter, check=check)
    parts, count = [np.zeros(0, dtype)], 0
    for rows in table:
        parts.append(rows["value"])
        count += len(rows)
        if count > most:
            raise UserError(f"{path}: {count} lines or more; expected at most {most}")
    return np.concatenate(parts)


def within(low: int, high: int) -> Check:
    """Make a check of edges: the ends, the first two fields, lie in low..high, and a third is finite."""

    def check(rows: np.ndarray) -> str | None:
        names = rows.dtype.names or ()
        for end in names[:2]:
            if rows[end].min() < low or rows[end].max() > high:
                return f"{end} outside {low}..{high}"
        wrong = (f"{name} is not finite" for name in names[2:] if not np.isfinite(rows[name]).all())
        return next(wrong, None)

    return check


class TextColumns(Columns):
    """The columns of a text table. The first line is a header if none of its fields is a number."""

    def __init__(self, path: Path) -> None:
        number, text = first_line(path)
        self.path = path
        self.delimiter = next((mark for mark in (",", "\t", ";") if mark in text), None)
        try:
            self.names = self._fields(text)
        except csv.Error as error:
            expected = f"a row of fields separated by {self.delimiter!r}"
            raise UserError(f"{path}, line {number}: {error}; expected {expected}") from None
        self.named = number > 0 and not any(map(is_number, self.names))
        self.skip = number if self.named else max(number - 1, 0)

    def _fields(self, line: str) -> list[str]:
        mark = self.delimiter
        fields = next(csv.reader([line], delimiter=mark)) if mark else line.split()
        return [field.strip() for field in fields]

    def take_whole_lines(self) -> None:
        """Read one field from each line, with the blanks in it."""
        self.delimiter, self.names = ",", [first_line(self.path)[1].strip().strip('"')]

    def settle_header(self, ids: Names | None, *columns: int) -> bool:
        if not self.named or ids is None or not ids.has(*(self.names[k] for k in columns)):
            return False
        self.named, self.skip = False, self.skip - 1
        return True

    def ids_like(self, columns: Sequence[int]) -> str | None:
        """Judge by the first line of data."""
        data = (self._data(line) for _, line in lines(self.path, self.skip))
        example = next(filter(None, data), [])
        return looks_like([example[k] for k in columns]) if len(example) > max(columns) else None

    def _data(self, line: str) -> list[str]:
        """Return the fields of a line; none of a blank line, a comment or no row."""
        with suppress(csv.Error):
            if line.strip() and not line.lstrip().startswith("#"):
                return self._fields(line)
        return []

    def blocks(
        self, fields: Sequence[Field], expected: str, check: Check | None = None, ragged: bool = False
    ) -> Iterator[np.ndarray]:
        used = tuple(column for _, column, _ in fields) if ragged else None
        dtype = np.dtype([(name, TYPES[kind]) for name, _, kind in fields] if ragged else self._dtype(fields))
        return iter(Table(self.path, dtype, expected, self.delimiter, used, skip=self.skip, check=check))

    def _dtype(self, fields: Sequence[Field]) -> list[tuple[Any, ...]]:
        """List fields for all columns, in their order. Adjacent features are one field."""
        given, dtype = {column: (name, kind) for name, column, kind in fields}, list[tuple[Any, ...]]()
        features = {column for _, column, kind in fields if kind == "features"}
        columns = range(max([len(self.names), *(column + 1 for column in given)]))
        for _, adjacent in groupby(columns, lambda column: -1 if column in features else column):
            first, *more = adjacent
            name, kind = given.get(first, (f"_{first}", "words"))
            dtype.append((name, TYPES[kind], (1 + len(more),) if kind == "features" else ()))
        return dtype

    def records(self, columns: Sequence[int]) -> Iterator[list[str]]:
        most = max(columns)
        for _, row in self._rows():
            yield [row[k].strip() for k in columns] if len(row) > most else []

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number, fields) of the lines that are neither blank nor comments."""
        mark, number = self.delimiter, self.skip
        texts = (text for _, text in lines(self.path, self.skip))
        rows: Any = csv.reader(texts, delimiter=mark) if mark else map(str.split, texts)
        try:
            for k, row in enumerate(rows, 1):
                number = self.skip + (rows.line_num if mark else k)
                if row and not row[0].lstrip().startswith("#") and any(field.strip() for field in row):
                    yield number, row
        except csv.Error as error:
            raise UserError(f"{self.path}, line {number + 1}: {error}; expected a row of CSV") from None

    def _row(self, row: int) -> tuple[int, list[str]]:
        return next(islice(self._rows(), row, None))

    def place(self, row: int) -> str:
        return f"{self.path}, line {self._row(row)[0]}"

    def bad(self, row: int, expected: str) -> UserError:
        number, fields = self._row(row)
        shown = (self.delimiter or " ").join(fields)[:80]
        return UserError(f"{self.path}, line {number}: bad line {shown!r}; expected {expected}")

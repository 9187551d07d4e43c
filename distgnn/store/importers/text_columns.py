"""Text tables with columns between commas, tabs, semicolons or blanks, perhaps under a header."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.columns import Columns, Field
from distgnn.store.importers.files import lines
from distgnn.store.importers.names import Names, is_number, looks_like
from distgnn.store.importers.text import Check, Table, first_line

TYPES: dict[str, Any] = {"integers": np.int64, "words": object, "numbers": np.float64, "features": np.float64}


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
        columns = range(max(len(self.names), *(column + 1 for column in given)))
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

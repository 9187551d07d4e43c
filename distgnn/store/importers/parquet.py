"""Parquet tables, read some columns and rows at a time with pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.columns import Columns, Field, Records
from distgnn.store.importers.files import check_declared, open_plain, reading
from distgnn.store.importers.names import encoded
from distgnn.store.importers.text import Check, structured

SUFFIXES = (".parquet", ".pq")


class ParquetColumns(Columns):
    """The columns of a Parquet file, whose schema names them and says what they hold."""

    named = True

    def __init__(self, path: Path) -> None:
        self.path = path
        with opened(path) as file:
            self.kinds = {field.name: kind_of(field.type) for field in file.schema_arrow}
        self.names = list(self.kinds)

    def kind(self, column: int) -> str:
        """Return integers, words, numbers, vectors, or other for what is neither ids nor numbers."""
        return self.kinds[self.names[column]]

    def require(self, column: int, kinds: Sequence[str], expected: str) -> None:
        if self.kind(column) not in kinds:
            found = f"column {self.names[column]} holds {self.kind(column)}"
            raise UserError(f"{self.path}: {found}; expected {expected}")

    def width(self, column: int) -> int:
        return vector_width(self.path, self.names[column]) if self.kind(column) == "vectors" else 1

    def blocks(
        self, fields: Sequence[Field], expected: str = "", check: Check | None = None, ragged: bool = False
    ) -> ParquetTable:
        columns = []
        for field, column, kind in fields:
            form = "vectors" if self.kind(column) == "vectors" else "numbers"
            columns.append((field, self.names[column], form if kind == "features" else kind))
        return ParquetTable(self.path, columns, check)

    def records(self, columns: Sequence[int]) -> Records:
        fields = [(f"{k}", self.names[column], "any") for k, column in enumerate(columns)]
        texts = (zip(*(rows[name].tolist() for name, _, _ in fields), strict=True)
                 for rows in ParquetTable(self.path, fields))  # fmt: skip
        yield from enumerate(map(list, chain.from_iterable(texts)), 1)

    def place(self, number: int) -> str:
        return f"{self.path}, row {number}"

    def bad(self, number: int, expected: str) -> UserError:
        return UserError(f"{self.place(number)}: expected {expected}")


class ParquetTable:
    """A stream of structured rows, as a text `Table`, from `columns`: (field, name, kind) each.

    Kinds are integers (int64), words (dtype S), numbers (float64), vectors (float64, of one length) and any
    (strings as objects, empty where there is no value). `check(rows)` may return what is wrong with values.
    """

    def __init__(self, path: Path, columns: Sequence[tuple[str, str, str]], check: Check | None = None) -> None:
        self.path, self.columns, self.check = path, columns, check

    def place(self, row: int) -> str:
        """Name row `row`, counted from 0, in errors."""
        return f"{self.path}, row {row + 1}"

    def __iter__(self) -> Iterator[np.ndarray]:
        widths = (vector_width(self.path, name) for _, name, kind in self.columns if kind == "vectors")
        first, size = 0, max(1, LIMITS.entries // max(4, sum(widths, len(self.columns))))
        with opened(self.path) as file:
            for batch in file.iter_batches(size, columns=[name for _, name, _ in self.columns]):
                yield self._rows(batch, first)
                first += batch.num_rows

    def _rows(self, batch: Any, first: int) -> np.ndarray:
        fields = {
            field: self._values(batch.column(name), name, kind, first) for field, name, kind in self.columns
        }
        rows = structured(fields)
        if self.check and len(rows) and self.check(rows):
            row = next(k for k in range(len(rows)) if self.check(rows[k : k + 1]))
            raise UserError(f"{self.place(first + row)}: {self.check(rows[row : row + 1])}")
        return rows

    def _values(self, column: Any, name: str, kind: str, first: int) -> np.ndarray:
        """Convert a column of a batch to an array of this kind."""
        if kind == "any":
            return np.array([*map(_text, column.to_pylist()), None], object)[:-1]
        if column.null_count and kind != "words":
            row = next(k for k, value in enumerate(column) if not value.is_valid)
            raise UserError(f"{self.place(first + row)}: column {name} has no value")
        if kind == "words":
            return self._words(column.to_pylist(), name, first)
        if kind == "vectors":
            return self._vectors(column, name, first)
        values = column.to_numpy(zero_copy_only=False)
        if kind == "integers" and values.dtype.kind == "u" and len(values) and values.max() >> 63:
            raise UserError(f"{self.path}: column {name} has {values.max()}, which is too large")
        return values.astype(np.int64 if kind == "integers" else np.float64)

    def _words(self, words: list[Any], name: str, first: int) -> np.ndarray:
        words = [word if word is None or isinstance(word, str) else str(word) for word in words]
        try:
            return encoded(words)
        except ValueError:
            for row, word in enumerate(words):
                try:
                    encoded([word])
                except ValueError as error:
                    raise UserError(f"{self.place(first + row)}: column {name} has {error}") from None
            raise

    def _vectors(self, column: Any, name: str, first: int) -> np.ndarray:
        lengths = np.array([len(value) for value in column], np.int64)
        width = vector_width(self.path, name)
        if len(lengths) and (lengths != width).any():
            row = int(np.flatnonzero(lengths != width)[0])
            found = f"column {name} has {lengths[row]} numbers, {width} in row 1"
            raise UserError(f"{self.place(first + row)}: {found}; expected as many in every row")
        values = column.flatten()
        if values.null_count:
            raise UserError(f"{self.path}: column {name} has vectors with missing numbers")
        return values.to_numpy(zero_copy_only=False).astype(np.float64).reshape(len(column), width)


def vector_width(path: Path, name: str) -> int:
    """Count the numbers in the vectors of a column, by the first of them."""
    with opened(path) as file:
        for batch in file.iter_batches(1, columns=[name]):
            return len(batch.column(name)[0]) if batch.column(name)[0].is_valid else 0
    return 0


def _text(value: Any) -> str:
    """Write a label as a word: 3.0 as 3, no value as nothing."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open the file as a `pyarrow.parquet.ParquetFile`; raise UserError for whatever is wrong with it."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(f"{path}: Parquet files need pyarrow; pip install 'distgnn[parquet]'") from None
    with reading(path), open_plain(path) as plain:
        try:
            with pq.ParquetFile(plain, page_checksum_verification=True) as file:
                if file.metadata.num_rows:
                    check_declared(file.metadata.num_rows, path, "rows")
                yield file
        except (pa.ArrowException, OSError, MemoryError, KeyError) as error:
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{path}: cannot be read as Parquet ({what})") from None


def kind_of(type: Any) -> str:
    """Return the kind of the columns of an Arrow type."""
    import pyarrow.types as t

    if t.is_dictionary(type):
        type = type.value_type
    if t.is_integer(type):
        return "integers"
    if t.is_string(type) or t.is_large_string(type):
        return "words"
    if t.is_floating(type) or t.is_boolean(type):
        return "numbers"
    lists = t.is_list(type) or t.is_large_list(type) or t.is_fixed_size_list(type)
    if lists and (t.is_floating(type.value_type) or t.is_integer(type.value_type)):
        return "vectors"
    return "other"


def is_parquet(path: Path) -> bool:
    """Return whether the name is that of a Parquet file."""
    return path.name.lower().endswith(SUFFIXES)

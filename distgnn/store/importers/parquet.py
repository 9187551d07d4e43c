"""Parquet tables, read some columns and rows at a time with pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.columns import ID_NAMES, BadValue, Check, Columns, Field, first_bad, structured
from distgnn.store.importers.files import check_declared, check_unpacked, open_plain, reading, size_of
from distgnn.store.importers.names import encoded

SUFFIXES = (".parquet", ".pq")
INDEX = "__index_level_"  # how pandas begins the name of an index without one


class ParquetColumns(Columns):
    """The columns of a Parquet file, with the names and types of its schema.

    The index of a pandas table has the ids of a table `by_node` without a column of such a name. Any other
    index without a name is left out.
    """

    named = True

    def __init__(self, path: Path, by_node: bool = False) -> None:
        self.path, self.index = path, None
        with opened(path) as file:
            self.kinds = {field.name: kind_of(field.type) for field in file.schema_arrow}
            indices = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
        self.names = list(self.kinds)
        indices = [name for name in self.names if name in indices or name.startswith(INDEX)]
        if by_node and len(indices) == 1 and super().position(*ID_NAMES) is None:
            self.index = indices[0]
        self.left_out = [name for name in indices if name.startswith(INDEX) and name != self.index]
        self.names = [name for name in self.names if name not in self.left_out]

    def position(self, *names: str) -> int | None:
        position = super().position(*names)
        if position is None and self.index is not None and names == ID_NAMES:
            return self.names.index(self.index)
        return position

    def kind(self, column: int) -> str:
        """Return integers, words, numbers, vectors, or other for a type of neither ids nor numbers."""
        return self.kinds[self.names[column]]

    def ids_like(self, columns: Sequence[int]) -> str:
        return "text" if "words" in map(self.kind, columns) else "integers"

    def require(self, column: int, kinds: Sequence[str], expected: str) -> None:
        if self.kind(column) not in kinds:
            kind = f"column {self.names[column]} holds {self.kind(column)}"
            raise UserError(f"{self.path}: {kind}; expected {expected}")

    def width(self, column: int) -> int:
        if self.kind(column) == "vectors":
            with opened(self.path) as file:
                for batch in file.iter_batches(1, columns=[self.names[column]]):
                    first = batch.column(self.names[column])[0]
                    return len(first) if first.is_valid else 0
        return int(self.kind(column) != "vectors")

    def blocks(
        self, fields: Sequence[Field], expected: str = "", check: Check | None = None, ragged: bool = False
    ) -> Iterator[np.ndarray]:
        first, widths = 0, {column: self.width(column) for _, column, _ in fields}
        for batch in self._batches(list(widths)):

            def parse(lo: int, hi: int, batch: Any = batch) -> np.ndarray:
                return self._parse(batch.slice(lo, hi - lo), fields, widths, check)

            try:
                rows = parse(0, batch.num_rows)
            except BadValue:
                row, wrong = first_bad(parse, batch.num_rows)
                raise UserError(f"{self.place(first + row)}: {wrong}") from None
            first += batch.num_rows
            yield rows

    def records(self, columns: Sequence[int]) -> Iterator[list[str]]:
        for batch in self._batches(columns):
            texts = [self._texts(batch.column(self.names[k])) for k in columns]
            yield from map(list, zip(*texts, strict=True))

    def _texts(self, column: Any) -> list[str]:
        try:
            values = _words(column) if hasattr(column, "dictionary") else column.to_pylist()
        except ValueError as error:
            raise UserError(f"{self.path}: {error}") from None
        return [_text(value) for value in values]

    def _batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """Yield some rows of these columns at a time; the fewer, the wider they are."""
        size = max(1, LIMITS.entries // max(4, sum(map(self.width, columns))))
        words = [self.names[k] for k in columns if self.kind(k) == "words"]
        with opened(self.path, words) as file:
            yield from file.iter_batches(size, columns=[self.names[k] for k in columns])

    def _parse(
        self, batch: Any, fields: Sequence[Field], widths: dict[int, int], check: Check | None
    ) -> np.ndarray:
        """Convert a batch to rows; BadValue for wrong or missing values."""
        values = {}
        for name, column, kind in fields:
            try:
                values[name] = _values(batch.column(self.names[column]), kind, widths[column])
            except BadValue as error:
                raise BadValue(f"column {self.names[column]} has {error}") from None
        rows = structured(values)
        if check and len(rows) and (wrong := check(rows)):
            raise BadValue(wrong)
        return rows

    def place(self, row: int) -> str:
        return f"{self.path}, row {row + 1}"

    def bad(self, row: int, expected: str) -> UserError:
        return UserError(f"{self.place(row)}: expected {expected}")


def _values(column: Any, kind: str, width: int) -> np.ndarray:
    """Convert a column of a batch to an array of this kind."""
    if kind == "words":
        try:
            return encoded(_words(column))
        except ValueError as error:
            raise BadValue(str(error)) from None
    if column.null_count:
        raise BadValue("no value")
    if hasattr(column, "flatten"):
        return _vectors(column, width)
    values = column.to_numpy(zero_copy_only=False)
    if kind == "integers" and values.dtype.kind == "u" and len(values) and values.max() >> 63:
        raise BadValue(f"{values.max()}, which is too large")
    return values.astype(np.int64 if kind == "integers" else np.float64)


def _words(column: Any) -> list[str | None]:
    """Return a column as texts; ValueError for one that is too long to be an id or a label, or for damage."""
    if not hasattr(column, "dictionary"):
        return [word if word is None or isinstance(word, str) else str(word) for word in column.to_pylist()]
    different = column.dictionary.to_pylist()  # once each, though a page of few bytes may repeat it for ever
    if (longest := max((len(str(word)) for word in different), default=0)) > LIMITS.word_length:
        raise ValueError(f"a word of {longest} characters; expected at most {LIMITS.word_length}")
    column.validate(full=True)  # its indices; a negative one would be another word
    return [None if k is None else str(different[k]) for k in column.indices.to_pylist()]


def _vectors(column: Any, width: int) -> np.ndarray:
    """Convert vectors, all of this width, to float64 (rows, width)."""
    lengths = np.array([len(value) for value in column], np.int64)
    if (lengths != width).any():
        wrong = lengths[lengths != width][0]
        raise BadValue(f"{wrong} numbers, {width} in row 1; expected as many in every row")
    values = column.flatten()
    if values.null_count:
        raise BadValue("vectors with missing numbers")
    return values.to_numpy(zero_copy_only=False).astype(np.float64).reshape(len(column), width)


def _text(value: Any) -> str:
    """Write a label as a word: 3.0 as 3, no value as nothing."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


@contextmanager
def opened(path: Path, words: Sequence[str] = ()) -> Iterator[Any]:
    """Open the file as a `pyarrow.parquet.ParquetFile`; turn all its errors into UserError.

    `words`: columns of words, which are read as a dictionary and a number in every row.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(f"{path}: Parquet files need pyarrow; pip install 'distgnn[parquet]'") from None
    with reading(path), open_plain(path) as plain:
        try:
            with pq.ParquetFile(plain, page_checksum_verification=True, read_dictionary=list(words)) as file:
                _check_sizes(file.metadata, path)
                yield file
        except (pa.ArrowException, OSError, MemoryError, KeyError) as error:
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{path}: cannot be read as Parquet ({what})") from None


def _check_sizes(metadata: Any, path: Path) -> None:
    """Raise UserError for more rows, bytes or numbers than an honest file of this size has."""
    if metadata.num_rows:
        check_declared(metadata.num_rows, path, "rows")
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    chunks = [group.column(k) for group in groups for k in range(group.num_columns)]
    held = size_of(path)
    check_unpacked(sum(chunk.total_uncompressed_size for chunk in chunks), held, path)
    check_unpacked(max((8 * chunk.num_values for chunk in chunks), default=0), held, path)


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
    """Return True for the name of a Parquet file."""
    return path.name.lower().endswith(SUFFIXES)

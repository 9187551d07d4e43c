"""Tables in Parquet and JSON lines, which give the names and types of their columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrow import converted, kind_of, places
from distgnn.store.importers.files import (
    check_declared,
    check_unpacked,
    open_plain,
    reading,
    size_of,
    unpacked,
)
from distgnn.store.importers.table import ID_NAMES, Table, WantedColumn


class ArrowTable(Table):
    """A table whose file gives names and types of its columns."""

    schema: pa.Schema
    row = "row"

    def _look(self, schema: pa.Schema) -> None:
        self.schema, self.names = schema, list(schema.names)
        self.kinds = [kind_of(field.type) for field in schema]

    def require(self, column: int, kinds: Sequence[str], expected: str) -> None:
        if self.kinds[column] not in (*kinds, "empty"):
            kind = f"column {self.names[column]} holds {self.kinds[column]}"
            raise UserError(f"{self.path}: {kind}; expected {expected}")

    @abstractmethod
    def records(self, columns: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield some rows of these columns at a time."""

    def width(self, column: int) -> int:
        if self.kinds[column] != "vectors":
            return 1
        lengths = (
            len(value) for batch in self.records([column]) for value in batch.column(0) if value.is_valid
        )
        return next(lengths, 0)

    def batches(self, wanted: Sequence[WantedColumn]) -> Iterator[list[pa.Array]]:
        widths, done = [self.width(item.column) for item in wanted], 0
        for batch in self.records([item.column for item in wanted]):
            columns = []
            for item, width in zip(wanted, widths, strict=True):
                given = batch.column(self.names[item.column])
                try:
                    made = converted(given, item.kind, width, self.kinds[item.column])
                except (pa.ArrowException, ValueError) as error:
                    raise self._at(error, given, item, width, done) from None
                if item.kind == "integers" and made.null_count:
                    row = int(places(made.is_null())[0])
                    raise self.bad(done + row, item.column, "", item.expected)
                columns.append(made)
            yield columns
            done += batch.num_rows

    def _at(self, error: Exception, given: pa.Array, item: WantedColumn, width: int, done: int) -> UserError:
        """Make the error for the first value that cannot be converted."""
        for row in range(len(given)):
            try:
                converted(given.slice(row, 1), item.kind, width, self.kinds[item.column])
            except (pa.ArrowException, ValueError) as wrong:
                where = f"{self.place(done + row)}, {self.spot(item.column)}"
                return UserError(f"{where}: {str(wrong).splitlines()[0]}; expected {item.expected}")
        return UserError(f"{self.path}: {str(error).splitlines()[0]}")

    def place(self, row: int) -> str:
        return f"{self.path}, {self.row} {row + 1}"


class ParquetTable(ArrowTable):
    """The columns of a Parquet file. The index of a pandas table has the ids of a table `by_node`."""

    def __init__(self, path: Path, by_node: bool) -> None:
        self.path = path
        with _parquet(path) as file:
            schema = file.schema_arrow
            about = schema.pandas_metadata or {}
        indices = [
            name for name in about.get("index_columns", []) if isinstance(name, str) and name in schema.names
        ]
        alone = by_node and len(indices) == 1 and not {*map(str.lower, schema.names)} & {*ID_NAMES}
        ids = indices[0] if alone else None
        self.left_out = [name for name in schema.names if name.startswith("__index_level_") and name != ids]
        self._look(pa.schema([field for field in schema if field.name not in self.left_out]))
        self.ids = None if ids is None else self.names.index(ids)

    def records(self, columns: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield some rows of these columns at a time; the fewer, the wider they are."""
        size = max(1, LIMITS.entries // max(4, sum(map(self.width, columns))))
        words = [self.names[k] for k in columns if self.kinds[k] == "words"]
        with _parquet(self.path, words) as file:
            yield from file.iter_batches(size, columns=[self.names[k] for k in columns])

    def width(self, column: int) -> int:
        if self.kinds[column] == "vectors":
            with _parquet(self.path) as file:
                for batch in file.iter_batches(1, columns=[self.names[column]]):
                    return len(batch.column(0)[0]) if batch.column(0)[0].is_valid else 0
        return 1


@contextmanager
def _parquet(path: Path, words: Sequence[str] = ()) -> Iterator[pa.parquet.ParquetFile]:
    """Open a Parquet file; turn all its errors into UserError. `words` are read as dictionaries."""
    with reading(path), open_plain(path) as plain:
        try:
            with pa.parquet.ParquetFile(
                plain, page_checksum_verification=True, read_dictionary=list(words)
            ) as file:
                _check_sizes(file.metadata, path)
                yield file
        except (pa.ArrowException, OSError, MemoryError, KeyError) as error:
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{path}: cannot be read as Parquet ({what})") from None


def _check_sizes(metadata: Any, path: Path) -> None:
    """Raise UserError for more rows, bytes or numbers than an honest file of this size has."""
    held = size_of(path)
    check_declared(metadata.num_rows, path, "rows")
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        check_unpacked(group.total_byte_size, held, path)
        for column in map(group.column, range(group.num_columns)):
            check_unpacked(8 * column.num_values, held, path)


class JsonLines(ArrowTable):
    """The columns of a file with a JSON object in each line, and types as in its first lines."""

    row = "line"

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            self._look(file.schema)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with reading(self.path):
            stream = unpacked(self.path)  # Arrow, which reads on in a thread, closes it
            try:
                yield pa.json.open_json(
                    stream, pa.json.ReadOptions(block_size=LIMITS.text_bytes, use_threads=False)
                )
            except pa.ArrowException as error:
                problem = str(error).splitlines()[0]
                raise UserError(f"{self.path}: {problem}; expected an object of JSON in each line") from None

    def records(self, columns: Sequence[int]) -> Iterator[pa.RecordBatch]:
        with self._opened() as file:
            for batch in file:
                yield batch.select([self.names[k] for k in columns])

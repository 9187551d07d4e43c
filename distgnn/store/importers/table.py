"""Tables in text, Parquet and JSON lines, read by pyarrow: some columns, some rows at a time.

A column is wanted as one of these kinds; what a file has is converted, or refused by its place.

    integers   int64, no missing values
    numbers    float64, null where a value is missing; of vectors a fixed-size list
    words      a dictionary of strings, "" where a value is missing
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from distgnn.errors import ArgumentError, UserError, did_you_mean
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrow import arrow_of, numpy_of, places
from distgnn.store.importers.dialect import Dialect
from distgnn.store.importers.files import (
    check_declared,
    check_unpacked,
    open_plain,
    reading,
    size_of,
    unpacked,
)
from distgnn.store.importers.names import fractions, integer, is_number, whole
from distgnn.store.importers.text import Text

MISSING = ("", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NAN", "NULL", "null", "None", "\\N")
PARQUET, JSON_LINES = (".parquet", ".pq"), (".jsonl", ".ndjson")
ID_NAMES = ("new_id", "id", "node", "node_id", "nodeid")  # of node ids; the first is SNAP's
INDEX_NAMES = ("", "index", "unnamed: 0", "rownames", "row.names", "__index_level_0__")


@dataclass
class Wanted:
    """A column, the kind in which it is wanted, and what is expected in it, for errors."""

    column: int
    kind: str
    expected: str


class WrongValue(UserError):
    """An error about one value of a table: its text, its column, and the message."""

    def __init__(self, message: str, text: str = "", column: int = 0) -> None:
        super().__init__(message)
        self.text, self.column = text, column


class Table(ABC):
    """The columns of the table in `path`: their `names`, which are made up unless the table is `named`.

    Attributes:
        kinds: integers, numbers, words, vectors, lists (of words), empty or other, of each column; in text
            those of a sample.
        ids: the index of a pandas table, if it has one, and no other column is called as ids are.
        left_out: columns of the file that are none of these.
        comments: lines that were left out as comments.
    """

    path: Path
    names: list[str]
    named = True
    kinds: list[str]
    ids: int | None = None
    left_out: Sequence[str] = ()
    comments: Sequence[str] = ()

    @property
    def konect(self) -> str:
        """The kind of a list of KONECT, sym, asym or bip, which its first line names; else nothing."""
        match = re.match(r"%\s*(sym|asym|bip)\b", self.comments[0]) if self.comments else None
        return match[1] if match else ""

    def position(self, *names: str) -> int | None:
        """Find the first of these names, in lower case, that a column has; None without one."""
        columns = [column.lower() for column in self.names] if self.named else []
        return next((columns.index(name) for name in names if name in columns), None)

    def find(self, argument: str, column: str) -> int:
        """Find the column with this name or number from 0; ArgumentError without one."""
        if self.named and column in self.names:
            return self.names.index(column)
        if (number := whole(column)) is not None and number < len(self.names):
            return number
        near = did_you_mean(column, self.names if self.named else ())
        problem = f"no such column in {self.path}, which has {self.described()}{near}"
        raise ArgumentError(argument, column, problem)

    def described(self) -> str:
        """List the names of the columns, for errors."""
        return (
            ", ".join(name or "''" for name in self.names)
            if self.named
            else f"no header and {len(self.names)} columns"
        )

    def called(self, column: int) -> str:
        """Return the name of a column, or its number from 0 if it has none."""
        return self.names[column] if self.named and self.names[column] else f"column {column}"

    def spot(self, column: int) -> str:
        """Return `called` for errors, which begins with the word column."""
        return f"column {self.called(column)}" if self.named and self.names[column] else self.called(column)

    @property
    def index(self) -> int | None:
        """The first column if its name is that of an index."""
        return 0 if self.named and self.names and self.names[0].lower() in INDEX_NAMES else None

    def width(self, column: int) -> int:
        """Count the numbers in a field."""
        return 1

    def require(self, column: int, kinds: Sequence[str], expected: str) -> None:
        """Raise UserError for a column of none of these kinds, if the file gives the kinds."""
        return

    @abstractmethod
    def batches(self, wanted: Sequence[Wanted]) -> Iterator[list[pa.Array]]:
        """Yield these columns, some rows at a time; WrongValue names the place of the first wrong value."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Return the place of row `row`, counted from 0, for errors."""

    def bad(self, row: int, column: int, text: object, expected: str) -> WrongValue:
        """Make the error for a value."""
        field = f"{str(text)[:60]!r}" if text not in ("", None) else "nothing"
        message = f"{self.place(row)}, {self.spot(column)}: {field}; expected {expected}"
        return WrongValue(message, str(text or ""), column)


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

    def batches(self, wanted: Sequence[Wanted]) -> Iterator[list[pa.Array]]:
        done = 0
        while done >= 0:
            types = {k.column: TYPES["numbers" if self._floats(k) else k.kind] for k in wanted}
            try:
                for batch in self.text.batches(types, MISSING, done):
                    columns = [batch.column(str(item.column)) for item in wanted]
                    for k, item in enumerate(wanted):
                        if self._floats(item):
                            columns[k] = whole_numbers(columns[k])
                        if item.kind == "integers" and columns[k].null_count:
                            self._refuse(wanted, done)
                    yield columns
                    done += batch.num_rows
                return
            except (pa.ArrowException, ValueError) as error:
                if not self._takes_floats(wanted, problem := str(error).splitlines()[0]):
                    self._refuse(wanted, done, problem)

    def _floats(self, item: Wanted) -> bool:
        """Return True for whole numbers that are written as others are, such as 4.0 or 4e+05."""
        return item.kind == "integers" and self.kinds[item.column] == "numbers"

    def _takes_floats(self, wanted: Sequence[Wanted], problem: str) -> bool:
        """Take a column for whole numbers in any spelling after one such as 1e+05, which R writes."""
        match = re.search(r"column #(\d+):.* CSV conversion error to int64: invalid value '(.+)'", problem)
        if not match or self.kinds[int(match[1])] != "integers" or not _READS["floats"](match[2]):
            return False
        self.kinds[int(match[1])] = "numbers"
        return True

    def _refuse(self, wanted: Sequence[Wanted], done: int, problem: str = "") -> NoReturn:
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


TYPES = {"integers": pa.int64(), "numbers": pa.float64(), "words": pa.string()}
_READS = {
    "floats": lambda text: is_number(text) and abs(float(text)) <= 1 << 53 and float(text).is_integer(),
    "integers": lambda text: integer(text) is not None and text[:1] != "+",
    "numbers": lambda text: text in MISSING or (is_number(text) and text.isascii() and "_" not in text),
    "words": lambda text: True,
}


def _looks_like(texts: list[str]) -> str:
    """Return the kind of a column by some of its fields."""
    given = [text for text in texts if text not in MISSING]
    if not given:
        return "words" if any(texts) else "empty"
    if all(integer(text) is not None for text in given):
        return "integers"
    return "numbers" if all(map(is_number, given)) else "words"


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

    def batches(self, wanted: Sequence[Wanted]) -> Iterator[list[pa.Array]]:
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

    def _at(self, error: Exception, given: pa.Array, item: Wanted, width: int, done: int) -> UserError:
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


def kind_of(type: pa.DataType) -> str:
    """Return the kind of the columns of an Arrow type."""
    t = pa.types
    type = type.value_type if t.is_dictionary(type) else type
    if t.is_null(type):
        return "empty"
    if t.is_integer(type):
        return "integers"
    if t.is_string(type) or t.is_large_string(type) or t.is_string_view(type):
        return "words"
    if t.is_floating(type) or t.is_boolean(type) or t.is_decimal(type):
        return "numbers"
    if t.is_list(type) or t.is_large_list(type) or t.is_fixed_size_list(type):
        return {"integers": "vectors", "numbers": "vectors", "words": "lists"}.get(
            kind_of(type.value_type), "other"
        )
    return "other"


def converted(column: pa.Array, kind: str, width: int, given: str) -> pa.Array:
    """Convert a column of a batch to a kind; ValueError or ArrowException for a value that has none."""
    if kind == "words":
        return _as_words(column, given)
    if given == "vectors":
        return _as_vectors(column, width)
    if pa.types.is_dictionary(column.type):
        column.validate(full=True)
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        if kind == "integers":
            raise ValueError(str(column[0]))
        column = column.cast(pa.int8())
    if kind == "integers" and pa.types.is_floating(column.type):
        return whole_numbers(column)
    return column.cast(TYPES[kind])


def whole_numbers(column: pa.Array) -> pa.Array:
    """Convert whole numbers in floating point to int64; ValueError for others, or what may be rounded."""
    values = column.to_numpy(zero_copy_only=False)
    if (wrong := fractions(values)).any():
        value = values[np.argmax(wrong)]
        raise ValueError("nothing" if np.isnan(value) else f"{str(value)!r}")
    return arrow_of(values.astype(np.int64))


def _as_words(column: pa.Array, given: str) -> pa.DictionaryArray:
    """Convert to words: 3.0 becomes 3, several words are put between semicolons."""
    if not pa.types.is_dictionary(column.type):
        if given == "vectors":
            column = column.cast(pa.list_(pa.int64()))
        if given in ("lists", "vectors"):
            column = pc.binary_join(column.cast(pa.list_(pa.string())), ";")
        elif pa.types.is_boolean(column.type):
            column = pc.utf8_capitalize(column.cast(pa.string()))
        elif pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
            try:
                column = column.cast(pa.int64())
            except pa.ArrowInvalid:  # fractions
                pass
        column = column.cast(pa.string()).dictionary_encode()
    column.validate(full=True)  # its indices; a negative one would be another word
    words = column.dictionary.cast(pa.string())
    if (longest := pc.max(pc.binary_length(words)).as_py() or 0) > LIMITS.word_length:
        raise ValueError(f"a word of {longest} characters; expected at most {LIMITS.word_length}")
    if column.null_count:
        indices = pc.fill_null(column.indices.cast(pa.int32()), len(words))
        return pa.DictionaryArray.from_arrays(indices, pa.concat_arrays([words, pa.array([""])]))
    return pa.DictionaryArray.from_arrays(column.indices.cast(pa.int32()), words)


def _as_vectors(column: pa.Array, width: int) -> pa.FixedSizeListArray:
    lengths = numpy_of(pc.list_value_length(column).fill_null(0))
    if (lengths != width).any():
        raise ValueError(f"{lengths[lengths != width][0]} numbers, {width} in row 1")
    return pa.FixedSizeListArray.from_arrays(column.flatten().cast(pa.float64()), max(width, 1))


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
        with reading(self.path), unpacked(self.path) as stream:
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


def open_table(path: Path, options: Any, by_node: bool = True, whole_lines: bool = False) -> Table:
    """Open a Parquet file, which may be a table `by_node`, JSON lines, or any other file as text."""
    name = path.name.lower()
    if name.endswith(PARQUET):
        return ParquetTable(path, by_node)
    if name.removesuffix(".gz").endswith(JSON_LINES):
        return JsonLines(path)
    return TextTable(path, options, whole_lines)


def numbers_of(
    table: Table,
    wanted: Sequence[Wanted],
    low: int = 0,
    high: int = (1 << 63) - 1,
    promised: tuple[int, str] | None = None,
) -> Iterator[list[np.ndarray]]:
    """Yield columns of numbers as arrays; whole numbers lie in low..high, others are finite.

    Raises UserError unless the number of rows is the `promised` one (a number, and its place in the file).
    """
    done = 0
    for columns in table.batches(wanted):
        arrays = [numpy_of(column) for column in columns]
        for item, values in zip(wanted, arrays, strict=True):
            wrong = (values < low) | (values > high) if item.kind == "integers" else ~np.isfinite(values)
            if wrong.any():
                row = int(np.argmax(wrong))
                bounds = f" in {low}..{high}" if item.kind == "integers" else ""
                text = "" if values[row] != values[row] else values[row]
                raise table.bad(done + row, item.column, text, item.expected + bounds)
        done += len(arrays[0])
        if promised and done > promised[0]:
            break
        yield arrays
    if promised and done != promised[0]:
        more = " or more" if done > promised[0] else ""
        says = f"{promised[1]} promises {promised[0]}"
        raise UserError(f"{table.path}: {done} edges{more}, but {says}; is the file truncated?")


def column(path: Path, expected: str, most: int, low: int = 0, high: int = (1 << 63) - 1) -> np.ndarray:
    """Read a text with one whole number per line, of which there may be `most`."""
    parts, count = [np.zeros(0, np.int64)], 0
    for (some,) in numbers_of(
        TextTable.plain(path, ["integers"], separator=","), [Wanted(0, "integers", expected)], low, high
    ):
        parts.append(some)
        count += len(some)
        if count > most:
            raise UserError(f"{path}: {count} lines or more; expected at most {most}")
    return np.concatenate(parts)

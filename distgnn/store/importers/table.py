"""Tables by columns, some of which are read, some rows at a time.

A column is wanted as one of these kinds; what a file has is converted, or refused by its place.

    integers   int64, no missing values
    numbers    float64, null where a value is missing; of vectors a fixed-size list
    words      a dictionary of strings, "" where a value is missing
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from distgnn.errors import ArgumentError, UserError, did_you_mean
from distgnn.store.importers.arrow import numpy_of
from distgnn.store.importers.names import whole

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "NAN", "-NaN", "-nan", "NaT", "NULL",
           "Null", "null", "None", "none", "NONE", "\\N")  # fmt: skip
ID_NAMES = ("new_id", "id", "node", "node_id", "nodeid")  # of node ids; the first is SNAP's
INDEX_NAMES = ("", "index", "unnamed: 0", "rownames", "row.names", "__index_level_0__")


@dataclass
class WantedColumn:
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
    def batches(self, wanted: Sequence[WantedColumn]) -> Iterator[list[pa.Array]]:
        """Yield these columns, some rows at a time; WrongValue names the place of the first wrong value."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Return the place of row `row`, counted from 0, for errors."""

    def bad(self, row: int, column: int, text: object, expected: str) -> WrongValue:
        """Make the error for a value."""
        field = f"{str(text)[:60]!r}" if text not in ("", None) else "nothing"
        message = f"{self.place(row)}, {self.spot(column)}: {field}; expected {expected}"
        return WrongValue(message, str(text or ""), column)


def numbers_of(
    table: Table,
    wanted: Sequence[WantedColumn],
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

"""Columns of a text or Parquet table, found by name or position, and read in either of two ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError, UserError, did_you_mean
from distgnn.store.importers.names import Names, whole

ID_NAMES = ("new_id", "id", "node", "node_id", "nodeid")  # of node ids; the first is SNAP's

Check = Callable[[np.ndarray], "str | None"]
Field = tuple[str, int, str]


class Columns(ABC):
    """The columns of the table in `path`: their `names`, which are made up unless the table is `named`.

    A field is (name, column, kind). Kinds are integers (int64), words (UTF-8, dtype S), numbers (float64) and
    features, one number or a vector of them (float64).
    """

    path: Path
    names: list[str]
    named: bool
    skip = 0  # lines before the first row
    left_out: list[str] = []  # columns of the file that are none of these

    def position(self, *names: str) -> int | None:
        """Find the first of these names, in lower case, that a column has; None without one."""
        columns = [column.lower() for column in self.names] if self.named else []
        return next((columns.index(name) for name in names if name in columns), None)

    def all_ids(self) -> list[int]:
        """List the columns that are called as ids are."""
        return [k for k, name in enumerate(self.names) if self.named and name.lower() in ID_NAMES]

    def find(self, argument: str, column: str | None, default: int, usual: Sequence[str] = ()) -> int:
        """Find the column with this name or number from 0; for None one with a `usual` name, or `default`."""
        if column is None:
            position = self.position(*usual)
            return default if position is None else position
        if self.named and column in self.names:
            return self.names.index(column)
        if (number := whole(column)) is not None and number < len(self.names):
            return number
        near = did_you_mean(column, self.names if self.named else ())
        problem = f"no such column in {self.path}, which has {self.described()}{near}"
        raise ArgumentError(argument, column, problem)

    def described(self) -> str:
        """List the names of the columns, for errors."""
        return ", ".join(self.names) if self.named else f"no header and {len(self.names)} columns"

    def called(self, column: int) -> str:
        """Return the name of a column, or its number from 0 if it has none."""
        return self.names[column] if self.named else f"column {column}"

    def settle_header(self, ids: Names | None, *columns: int) -> bool:
        """Take the header as a row if one of these columns has an id in it; return True if it was one."""
        return False

    def require(self, column: int, kinds: Sequence[str], expected: str) -> None:
        """Raise UserError for a column of none of these kinds, if the file gives the kinds."""
        return

    def width(self, column: int) -> int:
        """Count the numbers in a field of kind features."""
        return 1

    @abstractmethod
    def ids_like(self, columns: Sequence[int]) -> str | None:
        """Return integers or text, the kind of the ids in these columns; None if they look like neither."""

    @abstractmethod
    def blocks(
        self, fields: Sequence[Field], expected: str, check: Check | None = None, ragged: bool = False
    ) -> Iterator[np.ndarray]:
        """Yield structured rows of these fields, some at a time.

        `expected` describes a row for errors; `check(rows)` returns the fault of wrong values, or None. All
        lines of a text have the same number of fields, read or not, unless they may be `ragged`.
        """

    @abstractmethod
    def records(self, columns: Sequence[int]) -> Iterator[list[str]]:
        """Yield the texts of these columns row by row; none where a row is too short."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Return the place of row `row`, counted from 0, for errors."""

    @abstractmethod
    def bad(self, row: int, expected: str) -> UserError:
        """Make the error for a row whose fields are not the expected ones."""


class BadValue(ValueError):
    """An error about the values of a line."""


def first_bad(parse: Callable[[int, int], Any], count: int) -> tuple[int, ValueError | None]:
    """Find the first of `count` rows for which `parse(first, last)` raises ValueError, by bisection."""
    lo, hi = 0, count
    while hi - lo > 1:
        middle = (lo + hi) // 2
        lo, hi = (lo, middle) if _error_of(parse, lo, middle) else (middle, hi)
    return lo, _error_of(parse, lo, hi)


def _error_of(parse: Callable[[int, int], Any], first: int, last: int) -> ValueError | None:
    try:
        parse(first, last)
    except ValueError as error:
        return error
    return None


def structured(fields: dict[str, np.ndarray]) -> np.ndarray:
    """Join arrays of equal length into one whose fields have these names."""
    dtype = [(name, values.dtype, values.shape[1:]) for name, values in fields.items()]
    rows = np.empty(len(next(iter(fields.values()))), dtype)
    for name, values in fields.items():
        rows[name] = values
    return rows

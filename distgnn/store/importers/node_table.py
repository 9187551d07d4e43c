"""Tables by node in text, Parquet, JSON, .npy and .npz files, and the nodes that their rows belong to.

columns   text, Parquet, JSON lines: columns by name or position, rows with ids or in the order of the nodes
JSON      {node: value}
arrays    .npy and .npz: row i is node i's
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import Npz, open_npy
from distgnn.store.importers.arrow import as_bytes, numpy_of
from distgnn.store.importers.coded import Coder
from distgnn.store.importers.files import read_json
from distgnn.store.importers.imported import HIGHEST_ID, Imported, check_dense
from distgnn.store.importers.names import (
    LONGEST,
    Names,
    NumberIds,
    Place,
    check_once,
    encoded,
    integer,
    places_of,
    whole,
)
from distgnn.store.importers.roles import Roles
from distgnn.store.importers.table import Table, WantedColumn
from distgnn.store.importers.tables import StoredMatrix


def most_bytes(path: Path) -> int:
    """Return the bytes that the ids of a file may take."""
    return max(LIMITS.unpacked_bytes, LIMITS.unpacked_ratio * os.path.getsize(path))


def open_array(path: Path, what: str, scratch: str | None = None, kinds: str = "biuf") -> Any:
    """Open the array of a .npy, the only array of a .npz, or the matrix that SciPy saved there.

    Returns a StoredArray, or a StoredMatrix for SciPy's. `what` describes the expected values in errors.
    """
    if path.name.lower().endswith(".npy"):
        return open_npy(path, kinds)
    archive = Npz(path, scratch)
    if "format" in archive:
        return StoredMatrix(archive, archive.text("format"))
    if len(archive.names) != 1:
        expected = f"one array of {what}, or a matrix saved by SciPy"
        raise UserError(f"{path}: holds {archive.described()}; expected {expected}")
    return archive.stored(archive.names[0])


@dataclass
class RowIds:
    """The ids that the rows of a table name; `counted`: none, as row i is node i's."""

    path: Path
    ids: np.ndarray
    place: Place
    counted: bool = False

    def nodes(self, source: Imported) -> np.ndarray:
        """Look up the numbers of the nodes; UserError for an unknown or repeated id."""
        if self.counted:
            source.check_rows(self.path)
        known = NumberIds(source.n) if self.counted or source.names is None else source.names
        return places_of(known, self.ids, self.place, source.described())

    def any_nodes(self, source: Imported) -> np.ndarray:
        """Look up the numbers of the nodes as `nodes` does; if ids are numbers, nodes may be new."""
        if source.names is not None:
            return self.nodes(source)
        check_dense(int(self.ids.max(initial=-1)), len(self.ids), self.path)
        check_once(self.ids, self.ids, self.place)
        return self.ids


def id_wanted(column: int, names: Names | None) -> WantedColumn:
    """Describe a column of ids of the kind of `names`."""
    words = names is not None and names.words
    least = " of at least 0" if names is None else ""
    return WantedColumn(
        column,
        "words" if words else "integers",
        "a node id" if words else f"a node id{least}, a whole number",
    )


def read_ids(table: Table, column: int, names: Names | None) -> np.ndarray:
    """Read a column of ids, of the kind of `names`: int64 (rows), or UTF-8 of a dtype S (rows)."""
    wanted = id_wanted(column, names)
    settle_header(table, column, names)
    numbers = ("integers", "numbers")
    table.require(column, (*numbers, "words") if wanted.kind == "words" else numbers, "node ids")
    if wanted.kind == "words":
        return ids_of(table, column, *code(table, [wanted]))
    ids = np.concatenate([np.zeros(0, np.int64), *(numpy_of(rows[0]) for rows in table.batches([wanted]))])
    if names is None:
        check_numbers(table, column, ids, wanted.expected)
    return ids


def settle_header(table: Table, column: int, names: Names | None) -> None:
    """Take the header for a row if it has an id."""
    if table.named and names is not None and hasattr(table, "take_header") and names.has(table.names[column]):
        table.take_header()


def check_numbers(table: Table, column: int, ids: np.ndarray, expected: str) -> None:
    """Raise UserError for the first id that is the number of no node."""
    if len(ids) and (ids.min() < 0 or ids.max() > HIGHEST_ID):
        row = int(np.argmax((ids < 0) | (ids > HIGHEST_ID)))
        raise table.bad(row, column, ids[row], expected)


def code(table: Table, wanted: list[WantedColumn]) -> tuple[pa.Array, np.ndarray]:
    """Read columns of words: the different words, and their numbers in int32 (rows, columns)."""
    parts = [np.zeros((0, len(wanted)), np.int32)]
    coder = Coder(table.path, most_bytes(table.path), lambda codes, _: parts.append(codes))
    for columns in table.batches(wanted):
        coder.add(columns)
    coder.flush()
    return coder.words, np.concatenate(parts)


def ids_of(table: Table, column: int, words: pa.Array, codes: np.ndarray) -> np.ndarray:
    """Return the words as ids; UserError for one that is empty or too long."""
    for number, word in enumerate(words.to_pylist() if faulty(words) else []):
        if wrong := no_id(word):
            row = int(np.argmax(codes[:, 0] == number))
            raise table.bad(row, column, word, f"a node id{wrong}")
    return as_bytes(words)[codes[:, 0]]


def faulty(words: pa.Array) -> bool:
    """Return True if one of the words may be no id."""
    lengths = pa.compute.binary_length(words)
    bounds = pa.compute.min_max(lengths).as_py()
    zeros = pa.compute.any(pa.compute.match_substring(words, "\0")).as_py()
    return bool(len(words)) and (not bounds["min"] or bounds["max"] > LONGEST or bool(zeros))


def no_id(word: str) -> str | None:
    """Return the fault of a word that is no id, or None."""
    if not word:
        return ", not an empty one"
    if len(word.encode()) > LONGEST:
        return f" of at most {LONGEST} bytes, not {len(word.encode())}"
    return " without zero bytes" if "\0" in word else None


@dataclass
class WordColumns:
    """The words in some columns of a table, as indices into `words`: int32 (rows, columns)."""

    rows: RowIds
    codes: np.ndarray
    words: list[str]


def read_words(
    table: Table, roles: Roles, names: Names | None, what: str,
    check: Callable[[str], str | None] = lambda word: None,
) -> WordColumns:  # fmt: skip
    """Read the ids, of the kind of `names`, and the words in the columns of the values.

    Raises UserError for a row without them; `check(word)` returns the fault of a wrong word, or None.
    """
    for column in roles.values:
        table.require(column, ("words", "integers", "numbers", "lists", "vectors"), f"a {what}")
    counted, ids = roles.ids is None, np.zeros(0, np.int64)
    if roles.ids is not None:
        ids = read_ids(table, roles.ids, names)
    words, codes = pa.nulls(0, pa.large_string()), np.zeros((len(ids), 0), np.int32)
    if roles.values:
        words, codes = code(table, [WantedColumn(k, "words", f"a {what}") for k in roles.values])
    if counted:
        ids = np.arange(len(codes))
    listed = words.to_pylist() if roles.values else []
    for number, word in enumerate(listed):
        if wrong := check(word):
            row, column = np.argwhere(codes == number)[0]
            raise UserError(f"{table.place(int(row))}, column {table.called(roles.values[column])}: {wrong}")
    return WordColumns(RowIds(table.path, ids, table.place, counted), codes, listed)


def id_reader(names: Names | None) -> Callable[[str], Any]:
    """Return a function that reads an id of the kind of `names`, or returns None for a text that is no id."""
    if names is None:
        return lambda text: node if (node := whole(text)) is not None and node <= HIGHEST_ID else None
    if names.words:
        return lambda text: text if no_id(text) is None else None
    return integer


def read_json_table(path: Path, names: Names | None, expected: str) -> tuple[RowIds, list[Any]]:
    """Read `{node: value}`: the ids, of the kind of `names`, and the values."""
    table, expected = read_json(path), expected + ("" if names else " with ids from 0")
    if not isinstance(table, dict):
        raise UserError(f"{path}: holds a {type(table).__name__}; {expected}")
    read, listed = id_reader(names), [*table]
    ids = [read(node.strip() if names else node) for node in listed]
    if None in ids:
        raise UserError(f"{path}: node {listed[ids.index(None)][:40]!r} is no node id; {expected}")
    words = names is not None and names.words
    packed = encoded(ids) if words else np.array(ids, np.int64)
    return RowIds(path, packed, lambda row: str(path)), list(table.values())

"""Tables by node in text, Parquet, JSON, .npy and .npz files, and the nodes that their rows belong to.

columns   text and Parquet: columns by name or position, rows with ids or in the order of the nodes
JSON      {node: value}
arrays    .npy and .npz: row i is node i's
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Npz, open_npy
from distgnn.store.importers.columns import Columns
from distgnn.store.importers.files import read_json
from distgnn.store.importers.imported import HIGHEST_ID, Imported, check_dense
from distgnn.store.importers.names import (
    LONGEST,
    Names,
    Numbers,
    Place,
    check_once,
    encoded,
    integer,
    places_of,
    whole,
)
from distgnn.store.importers.parquet import ParquetColumns, is_parquet
from distgnn.store.importers.roles import Roles
from distgnn.store.importers.tables import StoredMatrix
from distgnn.store.importers.text import TextColumns

ROWS = 1 << 16  # rows of a table that are read at a time


def is_array(path: Path) -> bool:
    """Return True for the name of a file of arrays."""
    return path.name.lower().endswith((".npy", ".npz"))


def is_json(path: Path) -> bool:
    """Return True for the name of a JSON file."""
    return path.name.lower().removesuffix(".gz").endswith(".json")


def open_columns(path: Path, by_node: bool = True) -> Columns:
    """Open a Parquet file, which may be a table `by_node`, or any other file as text."""
    return ParquetColumns(path, by_node) if is_parquet(path) else TextColumns(path)


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
class Rows:
    """The ids that the rows of a table name; `counted`: none, as row i is node i's."""

    path: Path
    ids: np.ndarray
    place: Place
    counted: bool = False

    def nodes(self, source: Imported, grow: bool) -> np.ndarray:
        """Look up the numbers of the nodes; UserError for an unknown or repeated id.

        With `grow` a table that lists 0..k-1 once each may add isolated nodes.
        """
        if self.counted:
            source.check_rows(self.path)
        if grow and int(self.ids.max(initial=-1)) == len(self.ids) - 1:
            check_once(self.ids, self.ids, self.place)
            source.n = max(source.n, len(self.ids))
        known = Numbers(source.n) if self.counted or source.names is None else source.names
        return places_of(known, self.ids, self.place, source.described())

    def any_nodes(self, source: Imported) -> np.ndarray:
        """Look up the numbers of the nodes as `nodes` does; if ids are numbers, nodes may be new."""
        if source.names is not None:
            return self.nodes(source, grow=False)
        check_dense(int(self.ids.max(initial=-1)), len(self.ids), self.path)
        check_once(self.ids, self.ids, self.place)
        return self.ids


@dataclass
class Words:
    """The words in some columns of a table, as indices into `words`: int32 (rows, columns)."""

    rows: Rows
    codes: np.ndarray
    words: list[str]


def read_words(
    table: Columns, roles: Roles, names: Names | None, what: str,
    check: Callable[[str], str | None] = lambda word: None,
) -> Words:  # fmt: skip
    """Read the ids, of the kind of `names`, and the words in the columns of the values.

    Raises UserError for a row without them; `check(word)` returns the fault of a wrong word, or None.
    """
    counted, columns = roles.ids is None, roles.values
    if roles.ids is None:
        names = None
    else:
        columns = [roles.ids, *roles.values]
        require_ids(table, roles.ids, names)
        table.settle_header(names, roles.ids)
    read, numbers, chunks, some = id_reader(names), dict[str, int](), [], list[Any]()
    codes = array("i")
    for row, texts in enumerate(table.records(columns)):
        node = row if counted else read(texts.pop(0)) if texts else None
        if node is None or len(texts) < len(roles.values):
            raise table.bad(row, roles.expected(what, names is None))
        for text in texts:
            if text not in numbers and (wrong := check(text)):
                raise UserError(f"{table.place(row)}: {wrong}")
            codes.append(numbers.setdefault(text, len(numbers)))
        some.append(node)
        if len(some) == ROWS:
            chunks.append(_packed(some, names))
            some.clear()
    ids = np.concatenate([*chunks, _packed(some, names)])
    rows = Rows(table.path, ids, table.place, counted)
    return Words(rows, np.array(codes, np.int32).reshape(len(ids), len(roles.values)), list(numbers))


def require_ids(table: Columns, column: int, names: Names | None) -> None:
    """Raise UserError for a column that can't have ids of the kind of `names`."""
    words = names is not None and names.words
    table.require(column, ("integers", "words") if words else ("integers",), "node ids")


def id_reader(names: Names | None) -> Callable[[str], Any]:
    """Return a function that reads an id of the kind of `names`, or returns None for a text that is no id."""
    if names is None:
        return lambda text: node if (node := whole(text)) is not None and node <= HIGHEST_ID else None
    if names.words:
        return lambda text: text if text and len(text.encode()) <= LONGEST and "\0" not in text else None
    return integer


def _packed(some: list[Any], names: Names | None) -> np.ndarray:
    return encoded(some) if names is not None and names.words else np.array(some, np.int64)


def read_json_table(path: Path, names: Names | None, expected: str) -> tuple[Rows, list[Any]]:
    """Read `{node: value}`: the ids, of the kind of `names`, and the values."""
    table, expected = read_json(path), expected + ("" if names else " with ids from 0")
    if not isinstance(table, dict):
        raise UserError(f"{path}: holds a {type(table).__name__}; {expected}")
    read, listed = id_reader(names), [*table]
    ids = [read(node.strip() if names else node) for node in listed]
    if None in ids:
        raise UserError(f"{path}: node {listed[ids.index(None)][:40]!r} is no node id; {expected}")
    return Rows(path, _packed(ids, names), lambda row: str(path)), list(table.values())

"""Features of nodes: arrays, tables, or JSON with `{node: [active feature ids]}`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers import node_table
from distgnn.store.importers.arrays import Header, StoredArray, scratch_file
from distgnn.store.importers.arrow import numpy_of
from distgnn.store.importers.files import check_declared
from distgnn.store.importers.imported import HIGHEST_WIDTH, Imported
from distgnn.store.importers.made import FEATURES, made_features
from distgnn.store.importers.names import Names, shown
from distgnn.store.importers.roles import Roles, feature_roles
from distgnn.store.importers.table import MISSING, Table, WantedColumn
from distgnn.store.importers.table_files import is_array, is_json, is_table, open_table
from distgnn.store.importers.tables import DenseRows, FeatureRows, SparseRows, StoredMatrix
from distgnn.store.source import ImportOptions

JSON = "expected {node: [active feature ids]}"


def attach_features(source: Imported, options: ImportOptions, grow: bool, hint: str = "") -> None:
    """Give the source the features that the options name, if any; with `grow` they may add nodes.

    `hint` ends the error for another number of nodes.
    """
    if options.missing not in ("refuse", "zero", "mean"):
        raise ArgumentError("missing", options.missing, "expected mean, zero or refuse")
    if not options.features or made_features(source, options.features):
        return
    table = read_features(Path(options.features), options, source)
    if grow:
        source.n = max(source.n, table.nodes)
    if table.listed is None:
        source.check_rows(options.features)
        check_declared(table.nodes, options.features)
        if table.nodes != source.n:
            rows = f"{table.nodes} rows of features for a graph of {source.n} nodes ({source.path})"
            raise UserError(f"{options.features}: {rows}; expected as many rows as nodes{hint}")
    elif table.nodes > source.n:
        there = f"the graph in {source.path} has nodes 0..{source.n - 1}"
        raise UserError(f"{options.features}: has node {table.nodes - 1}; {there}")
    else:
        note_missing(source, table.listed, options.features)
    source.set_features(table)


def feature_ids(options: ImportOptions, names: Names | None) -> np.ndarray:
    """Read the ids, of the kind of `names`, in a table of features; none of an array, or of made features."""
    path = Path(options.features or "")
    if is_json(path):
        return node_table.read_json_table(path, names, JSON)[0].ids
    if is_table(path):
        table = open_table(path, options)
        column = feature_roles(table, options, names).ids
        if column is not None:
            return node_table.read_ids(table, column, names)
    return np.zeros(0, np.int64 if names is None else names.names.dtype)


def note_missing(source: Imported, listed: np.ndarray, path: str) -> None:
    """Note the nodes that a table does not list."""
    count = source.n - len(listed)
    if count:
        first = int(np.setdiff1d(np.arange(len(listed) + 1), listed)[0])
        node = shown(source.names.names[first]) if source.names else first
        what = f"{count} of {source.n} nodes have no row, such as {node}"
        source.notes.append(f"{path}: {what}; their features are zeros")


def read_features(path: Path, options: ImportOptions, source: Imported) -> FeatureRows:
    """Read features in the format that the file's name implies."""
    if is_array(path) or is_json(path):
        source.readings.append(f"{path.name} (features)")
    if is_array(path):
        stored = node_table.open_array(path, "features", options.scratch)
        return stored.rows() if isinstance(stored, StoredMatrix) else DenseRows(stored, path)
    if is_json(path):
        return json_features(path, source)
    if not is_table(path):
        expected = f".npy, .npz, .csv, .tsv, .json, .jsonl or .parquet, or {FEATURES}"
        raise UserError(f"{path}: features in an unknown format; expected {expected}")
    return column_features(path, options, source)


def json_features(path: Path, source: Imported) -> SparseRows:
    """Read `{"node": [ids of the features it has]}`: ones at these ids, kept as sparse rows in memory."""
    rows, listed = node_table.read_json_table(path, source.names, JSON)
    for active in listed:
        if not isinstance(active, list) or not all(type(k) is int and 0 <= k < 1 << 31 for k in active):
            raise UserError(f"{path}: a node has features {str(active)[:60]}; {JSON}, with ids from 0")
    counts = np.fromiter(map(len, listed), np.int64, len(listed))
    columns = np.fromiter((k for active in listed for k in active), np.int32, int(counts.sum()))
    nodes = rows.any_nodes(source)
    shape = (int(nodes.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
    table = SparseRows.of_entries(np.repeat(nodes, counts), columns, None, shape, path)
    table.listed = nodes
    return table


def column_features(path: Path, options: ImportOptions, source: Imported) -> DenseRows:
    """Read the numbers in the columns of a table, and words that are asked for as zeros and ones."""
    table = open_table(path, options)
    roles = feature_roles(table, options, source.names)
    ids = None
    if roles.ids is not None:
        ids = node_table.read_ids(table, roles.ids, source.names)
    source.note_table(roles.described(table, "features"), table, [roles.ids, *roles.values])
    nodes = node_table.RowIds(path, ids, table.place).any_nodes(source) if ids is not None else None
    return copied(table, roles, options, nodes)


def text_numbers(path: Path, options: ImportOptions, missing: str) -> DenseRows:
    """Read a text table of numbers only, whose line i is node i's, as OGB writes it."""
    table = open_table(path, ImportOptions(separator=",", comments="none"))
    roles = Roles(None, [*range(len(table.names))])
    return copied(table, roles, ImportOptions(missing=missing, scratch=options.scratch), None)


@dataclass
class Filled:
    """Features on their way into a file: what stands for missing numbers, and their sums by column."""

    table: Table
    wanted: list[WantedColumn]
    missing: str
    categories: dict[int, list[str]]

    def blocks(self, width: int) -> Iterator[np.ndarray]:
        """Yield float64 (rows, width), NaN for a missing number if these are allowed."""
        done = 0
        for columns in self.table.batches(self.wanted):
            parts = [self._part(column, item) for column, item in zip(columns, self.wanted, strict=True)]
            rows = np.concatenate(parts, axis=1)
            self._check(rows, columns, done)
            done += len(rows)
            yield rows

    def _part(self, column: pa.Array, item: WantedColumn) -> np.ndarray:
        if item.kind == "words":
            words = pc.utf8_trim_whitespace(column.cast(pa.string()))
            numbers = numpy_of(pc.index_in(words, pa.array(self.categories[item.column])))
            return numbers[:, None] == np.arange(len(self.categories[item.column]))
        if pa.types.is_fixed_size_list(column.type):
            values = numpy_of(column.flatten())
            return values.reshape(len(column), -1)
        return numpy_of(column)[:, None]

    def _check(self, rows: np.ndarray, columns: list[pa.Array], done: int) -> None:
        """Raise UserError for a number that is missing, unless it may be, or that float32 cannot hold."""
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(rows.astype(np.float32))
        if not wrong.any():
            return
        if self.missing != "refuse":
            wrong &= ~np.isnan(rows)
            if not wrong.any():
                return
        row, place = np.argwhere(wrong)[0]
        widths = [len(self.categories.get(item.column, [0])) if item.kind == "words" else
                  column.type.list_size if pa.types.is_fixed_size_list(column.type) else 1
                  for column, item in zip(columns, self.wanted, strict=True)]  # fmt: skip
        item = self.wanted[int(np.searchsorted(np.cumsum(widths), place, side="right"))]
        text = "" if np.isnan(rows[row, place]) else rows[row, place]
        raise self.table.bad(done + int(row), item.column, text, item.expected)


def copied(table: Table, roles: Roles, options: ImportOptions, nodes: np.ndarray | None) -> DenseRows:
    """Copy features to a temporary float32 array; `nodes` have its rows, without them row i is node i's."""
    expected = "a finite number; missing=mean or missing=zero fills gaps, categorical=NAME takes words"
    expected = "a number" if options.missing == "nothing" else expected
    wanted = [WantedColumn(k, "words" if k in roles.asked else "numbers", expected) for k in roles.values]
    categories = {}
    for item in wanted:
        if item.kind == "words":
            words = node_table.code(table, [item])[0].to_pylist()
            categories[item.column] = sorted({*words} - {*MISSING})
        else:
            table.require(item.column, ("integers", "numbers", "vectors"), "numbers, or categorical=NAME")
    widths = [len(categories[k]) if k in categories else table.width(k) for k in roles.values]
    if not (width := sum(widths)):
        raise UserError(f"{table.path}: has no columns of features")
    if width > HIGHEST_WIDTH:
        raise UserError(f"{table.path}: {width} features of a node; at most {HIGHEST_WIDTH} are possible")
    filled = Filled(table, wanted, options.missing, categories)
    count, sums, known = 0, np.zeros(width), np.zeros(width, np.int64)
    with scratch_file(options.scratch) as copy:
        for rows in filled.blocks(width):
            count += len(rows)
            if options.missing == "mean":
                sums += np.nansum(rows, axis=0)
                known += np.count_nonzero(~np.isnan(rows), axis=0)
            copy.write(np.ascontiguousarray(rows, np.float32).data)
        copy.flush()
        array = StoredArray(table.path, Header((count, width), np.dtype(np.float32), False, 0), file=copy)
    fill = (
        None if options.missing in ("refuse", "nothing") else (sums / np.maximum(known, 1)).astype(np.float32)
    )
    places = None
    if nodes is not None:
        places = np.full(int(nodes.max(initial=-1)) + 1, -1, np.int64)
        places[nodes] = np.arange(len(nodes))
    made = DenseRows(array, table.path, places, fill)
    names = [f"{table.called(k)}={word}" if word else table.called(k)
             for k in roles.values for word in categories.get(k, [""])]  # fmt: skip
    made.names = names if table.named and len(names) == width else None
    return made

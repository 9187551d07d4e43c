"""Features of nodes: arrays, tables, or JSON with `{node: [active feature ids]}`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers import node_table
from distgnn.store.importers.arrays import Header, StoredArray, scratch_file
from distgnn.store.importers.columns import Check, Columns
from distgnn.store.importers.files import check_declared
from distgnn.store.importers.imported import HIGHEST_ID, HIGHEST_WIDTH, Imported
from distgnn.store.importers.made import FEATURES, made_features
from distgnn.store.importers.names import Names, shown
from distgnn.store.importers.parquet import is_parquet
from distgnn.store.importers.roles import feature_roles
from distgnn.store.importers.tables import DenseRows, Features, SparseRows, StoredMatrix
from distgnn.store.importers.text import TextColumns
from distgnn.store.source import ImportOptions

JSON = "expected {node: [active feature ids]}"


def attach_features(source: Imported, options: ImportOptions, grow: bool, hint: str = "") -> None:
    """Give the source the features that the options name, if any; with `grow` they may add nodes.

    `hint` ends the error for another number of nodes.
    """
    if not options.features or made_features(source, options.features):
        return
    table = read_features(Path(options.features), options, source)
    if grow:
        if table.listed is not None:
            note_isolated(source, options, table.listed[table.listed >= source.n])
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


def note_isolated(source: Imported, options: ImportOptions, nodes: np.ndarray) -> None:
    """Note the nodes that a table of features has and edges have not."""
    if len(nodes):
        what = f"{len(nodes)} of its nodes have no edges, such as {shown(nodes[0])}"
        source.notes.append(f"{options.features}: {what}; node_list=FILE would say which nodes there are")


def feature_ids(options: ImportOptions, names: Names) -> np.ndarray:
    """Read the ids, of the kind of `names`, in a table of features; none of an array, or of made features."""
    path, ids = Path(options.features or ""), [np.zeros(0, names.names.dtype)]
    if node_table.is_json(path):
        return node_table.read_json_table(path, names, JSON)[0].ids
    if is_table(path):
        table = node_table.open_columns(path)
        column = feature_roles(table, options, names).ids
        if column is not None:
            table.settle_header(names, column)
            node_table.require_ids(table, column, names)
            field = ("node", column, "words" if names.words else "integers")
            ids += [rows["node"] for rows in table.blocks([field], "a node id", ragged=True)]
    return np.concatenate(ids)


def is_table(path: Path) -> bool:
    """Return whether the name is that of a text or Parquet table."""
    return is_parquet(path) or path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


def note_missing(source: Imported, listed: np.ndarray, path: str) -> None:
    """Note the nodes that a table does not list."""
    count = source.n - len(listed)
    if count:
        first = int(np.setdiff1d(np.arange(len(listed) + 1), listed)[0])
        node = shown(source.names.names[first]) if source.names else first
        what = f"{count} of {source.n} nodes have no row, such as {node}"
        source.notes.append(f"{path}: {what}; their features are zeros")


def read_features(path: Path, options: ImportOptions, source: Imported) -> Features:
    """Read features in the format that the file's name implies."""
    if node_table.is_array(path) or node_table.is_json(path):
        source.readings.append(f"{path.name} (features)")
    if node_table.is_array(path):
        stored = node_table.open_array(path, "features", options.scratch)
        return stored.rows() if isinstance(stored, StoredMatrix) else DenseRows(stored, path)
    if node_table.is_json(path):
        return json_features(path, source)
    if not is_table(path):
        expected = f".npy, .npz, .csv, .tsv, .json or .parquet, or {FEATURES}"
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
    """Read the numbers in the columns of a text or Parquet table."""
    table = node_table.open_columns(path)
    roles = feature_roles(table, options, source.names)
    for column in roles.values:
        table.require(column, ("integers", "numbers", "vectors"), "numbers")
    width = sum(map(table.width, roles.values))
    if width > HIGHEST_WIDTH:
        raise UserError(f"{path}: {width} features of a node; at most {HIGHEST_WIDTH} are possible")
    source.note_table(roles.described(table, "features"), table, [roles.ids, *roles.values])
    fields = [(f"x{k}", k, "features") for k in roles.values]
    expected = f"{width} finite numbers"
    if roles.ids is not None:
        table.settle_header(source.names, roles.ids)
        node_table.require_ids(table, roles.ids, source.names)
        fields.append(("node", roles.ids, "words" if source.names and source.names.words else "integers"))
        expected += " and a node id"
    check = bad_values if source.names is None else not_finite
    blocks = table.blocks(fields, expected, check)
    rows = copied(table, blocks, width, "features", options.scratch, None if roles.ids is None else source)
    if table.named and width == len(roles.values):
        rows.names = [table.names[k] for k in roles.values]
    return rows


def text_numbers(path: Path, scratch: str | None, what: str, check: Check | None) -> DenseRows:
    """Read a text table of numbers only, whose line i is node i's."""
    table = TextColumns(path)
    fields = [(f"x{k}", k, "features") for k in range(len(table.names))]
    blocks = table.blocks(fields, f"{len(fields)} {what}", check)
    return copied(table, blocks, len(fields), what, scratch)


def copied(
    table: Columns, blocks: Iterable[np.ndarray], width: int, what: str, scratch: str | None,
    source: Imported | None = None,
) -> DenseRows:  # fmt: skip
    """Copy features of this width to a temporary float32 array.

    The field `node` is the node of each row in the graph of the source; without a source row i is node i's.
    """
    if not width:
        raise UserError(f"{table.path}: has no columns of {what}")
    path, count, ids = table.path, 0, list[np.ndarray]()
    with scratch_file(scratch) as copy:
        for rows in blocks:
            count += len(rows)
            if source is not None:
                ids.append(rows["node"].copy())
            with np.errstate(over="ignore"):
                copy.write(np.ascontiguousarray(_values(rows), np.float32).data)
        copy.flush()
        array = StoredArray(path, Header((count, width), np.dtype(np.float32), False, 0), file=copy)
    if source is None:
        return DenseRows(array, path)
    listed = np.concatenate(ids) if ids else np.zeros(0, np.int64)
    nodes = node_table.Rows(path, listed, table.place).any_nodes(source)
    places = np.full(int(nodes.max(initial=-1)) + 1, -1, np.int64)
    places[nodes] = np.arange(len(nodes))
    return DenseRows(array, path, places)


def _values(rows: np.ndarray) -> np.ndarray:
    """Join the fields of features."""
    fields = [rows[name] for name in rows.dtype.names or () if name[0] == "x"]
    return np.hstack([values.reshape(len(rows), -1) for values in fields])


def not_finite(rows: np.ndarray) -> str | None:
    """Return the fault of features that float32 can't hold, or None."""
    with np.errstate(over="ignore"):
        good = np.isfinite(_values(rows).astype(np.float32)).all()
    return None if good else "NaN, infinite or too large"


def bad_values(rows: np.ndarray) -> str | None:
    """Return the fault of features, or of ids that are to be numbers of nodes, or None."""
    if "node" in (rows.dtype.names or ()) and ((rows["node"] < 0) | (rows["node"] > HIGHEST_ID)).any():
        return "no node id"
    return not_finite(rows)

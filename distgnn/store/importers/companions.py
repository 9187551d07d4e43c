"""Features in .npy, .npz, tables or JSON `{node: [active feature ids]}`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers import parquet
from distgnn.store.importers.arrays import Header, Npz, StoredArray, open_npy, scratch_file
from distgnn.store.importers.files import check_declared, read_json
from distgnn.store.importers.imported import HIGHEST_ID, HIGHEST_WIDTH, Imported, check_dense
from distgnn.store.importers.made import FEATURES, made_features
from distgnn.store.importers.names import check_once, parsed, places_of, shown
from distgnn.store.importers.node_words import LABEL_NAMES, SPLIT_NAMES, columns_of, split_file
from distgnn.store.importers.parquet import ParquetTable
from distgnn.store.importers.tables import DenseRows, Features, SparseRows, StoredMatrix
from distgnn.store.importers.text import ID_NAMES, Heading, Table, whole
from distgnn.store.source import ImportOptions

AnyTable = Table | ParquetTable


def attach_features(source: Imported, options: ImportOptions, grow: bool, hint: str = "") -> None:
    """Give the source the features that the options name, if any; with `grow` they may add nodes. `hint` ends
    the error for another number of nodes."""
    if not options.features or made_features(source, options.features):
        return
    table = read_features(Path(options.features), options, source)
    if table.complete:
        source.check_rows(options.features)
        check_declared(table.nodes, options.features)
    if grow:
        source.n = max(source.n, table.nodes)
    if table.complete and table.nodes != source.n:
        found = f"{table.nodes} rows of features for a graph of {source.n} nodes ({source.path})"
        raise UserError(f"{options.features}: {found}; expected as many rows as nodes{hint}")
    if table.nodes > source.n:
        there = f"the graph in {source.path} has nodes 0..{source.n - 1}"
        raise UserError(f"{options.features}: has node {table.nodes - 1}; {there}")
    source.set_features(table)
    note_missing(source, table, options.features)


def note_missing(source: Imported, table: Features, path: str) -> None:
    """Note nodes that the table does not name."""
    absent = table.missing()
    count = source.n - len(absent) + int(np.count_nonzero(absent))
    if count:
        first = int(absent.argmax()) if absent.any() else len(absent)
        node = shown(source.names.names[first]) if source.names else first
        what = f"{count} of {source.n} nodes have no row, such as {node}"
        source.notes.append(f"{path}: {what}; their features are zeros")


def read_features(path: Path, options: ImportOptions, source: Imported) -> Features:
    """Features in the format that the file's name says."""
    name = path.name.lower()
    if name.endswith(".npy"):
        return DenseRows(open_npy(path), path)
    if name.endswith(".npz"):
        return archived_features(path, options.scratch)
    name = name.removesuffix(".gz")
    if name.endswith(".json"):
        return json_features(path, source)
    if name.endswith((".csv", ".tsv", ".txt")):
        return csv_features(path, options, source)
    if parquet.is_parquet(path):
        return parquet_features(path, options, source)
    expected = f".npy, .npz, .csv, .tsv, .json or .parquet, or {FEATURES}"
    raise UserError(f"{path}: features in an unknown format; expected {expected}")


def archived_features(path: Path, scratch: str | None) -> Features:
    """The only array of a .npz, or the sparse matrix that SciPy saved there."""
    archive = Npz(path, scratch)
    if "format" in archive:
        return StoredMatrix(archive, archive.text("format")).rows()
    if len(archive.names) != 1:
        expected = "one array of features, or a matrix saved by SciPy"
        raise UserError(f"{path}: holds {archive.described()}; expected {expected}")
    return DenseRows(archive.stored(archive.names[0]), path)


def json_features(path: Path, source: Imported) -> SparseRows:
    """`{"node": [ids of the features it has]}`: ones at these ids, kept as sparse rows in memory."""
    table = read_json(path)
    _check_json(table, path, source.names is None)
    nodes = _json_nodes(list(table), path, source)
    counts = np.fromiter(map(len, table.values()), np.int64, len(table))
    columns = np.fromiter((k for active in table.values() for k in active), np.int32, int(counts.sum()))
    n, width = int(nodes.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1
    check_dense(n - 1, len(nodes), path)
    rows = SparseRows.of_entries(np.repeat(nodes, counts), columns, None, (n, width), path)
    rows.complete, rows.listed = False, nodes
    return rows


def _json_nodes(listed: list[str], path: Path, source: Imported) -> np.ndarray:
    """The numbers of these nodes."""
    if source.names is None:
        nodes = np.fromiter(map(int, listed), np.int64, len(listed))
        if len(np.unique(nodes)) != len(nodes):
            raise UserError(f"{path}: a node is listed twice, once with leading zeros")
        return nodes
    try:
        names = parsed(listed, source.names)
    except ValueError as error:
        raise UserError(f"{path}: no node ids ({error})") from None
    return places_of(source.names, names, lambda row: str(path), source.described())


def _check_json(table: Any, path: Path, numbers: bool) -> None:
    expected = "expected {node: [active feature ids]} with ids from 0"
    if not isinstance(table, dict):
        raise UserError(f"{path}: holds a {type(table).__name__}; {expected}")
    for node, active in table.items():
        if numbers and ((number := whole(node)) is None or number > HIGHEST_ID):
            raise UserError(f"{path}: node {node[:40]!r} is no node id; {expected}")
        if not isinstance(active, list) or not all(type(k) is int and 0 <= k < 1 << 31 for k in active):
            raise UserError(f"{path}: node {node} has features {str(active)[:60]}; {expected}")


def csv_features(path: Path, options: ImportOptions, source: Imported) -> DenseRows:
    """A CSV of numbers: line i is node i, unless the header or `id_column` names an id column, or nodes have
    ids of their own, which are then in the first column."""
    heading = Heading.of(path)
    ids = id_column(heading, path, options, source)
    others = taken(heading, path, options)
    if ids is not None and heading.named and source.names and source.names.has(heading.columns[ids]):
        heading = replace(heading, skip=heading.skip - 1)
    return dense_csv(path, options.scratch, heading, ids, source, others)


def id_column(heading: Heading, path: Path, options: ImportOptions, source: Imported) -> int | None:
    """Where a table of features has the node; None where line i is node i."""
    if options.id_column in heading.columns and heading.named:
        return heading.columns.index(options.id_column or "")
    default = 0 if source.names is not None and heading.columns else None
    if source.names is not None and options.id_column is not None:
        return heading.find("id_column", options.id_column, path, 0)
    found = heading.position(*ID_NAMES)
    return default if found is None else found


def taken(heading: Heading, path: Path, options: ImportOptions) -> set[int]:
    """Columns of labels and of the split, where they are in the same file as the features."""
    columns: set[int] = set()
    if options.labels is not None and Path(options.labels) == path:
        columns.add(columns_of(heading, path, options, LABEL_NAMES, "label")[1])
    if options.split is not None and split_file(options.split) == path:
        columns.add(columns_of(heading, path, options, SPLIT_NAMES, "split")[1])
    return columns


def dense_csv(
    path: Path, scratch: str | None, heading: Heading | None = None, ids: int | None = None,
    source: Imported | None = None, others: Collection[int] = (),
) -> DenseRows:  # fmt: skip
    """Copy a text table of numbers into a temporary float32 array, block by block; `others`: its columns
    that are no features."""
    heading = heading or Heading.of(path)
    own = source.names if source is not None else None
    node = object if own is not None and own.words else np.int64
    fields: list[tuple[str, Any, tuple[int, ...]]] = []
    for column in range(len(heading.columns)):
        if column == ids:
            fields.append(("node", node, ()))
        elif column in others:
            fields.append((f"_{column}", object, ()))
        elif fields and fields[-1][0][0] == "x":
            fields[-1] = (*fields[-1][:2], (fields[-1][2][0] + 1,))
        else:
            fields.append((f"x{column}", np.float64, (1,)))
    width = sum(field[2][0] for field in fields if field[2])
    expected = f"{width} finite numbers" + (" and a node id" if ids is not None else "")
    check = _bad_values if own is None else _finite_values
    table = Table(path, np.dtype(fields), expected, heading.delimiter, skip=heading.skip, check=check)
    return copied(table, path, scratch, width, ids is not None, source)


def copied(
    table: AnyTable, path: Path, scratch: str | None, width: int, ids: bool, source: Imported | None
) -> DenseRows:  # fmt: skip
    """The rows of a table in a temporary float32 array, and where the row of each node is."""
    if not width:
        raise UserError(f"{path}: has no columns of features")
    nodes, count = [], 0
    with scratch_file(scratch) as copy:
        for rows in table:
            count += len(rows)
            if ids:
                nodes.append(rows["node"].copy())
            copy.write(np.ascontiguousarray(_values(rows), np.float32).data)
        copy.flush()
        array = StoredArray(path, Header((count, width), np.dtype(np.float32), False, 0), file=copy)
    if not ids:
        return DenseRows(array, path)
    listed = np.concatenate(nodes) if nodes else np.zeros(0, np.int64)
    return DenseRows(array, path, _invert(listed, table, path, source))


def parquet_features(path: Path, options: ImportOptions, source: Imported) -> DenseRows:
    """The numbers and vectors of a Parquet file, but for its column of ids."""
    heading, form = parquet.heading(path), parquet.kinds(path)
    ids = id_column(heading, path, options, source)
    skipped = {ids} | taken(heading, path, options)
    kept = [name for k, name in enumerate(heading.columns) if k not in skipped]
    if wrong := [name for name in kept if form[name] not in ("integers", "numbers", "vectors")]:
        raise UserError(f"{path}: column {wrong[0]} holds {form[wrong[0]]}; expected numbers")
    columns = [
        (f"x{k}", name, "vectors" if form[name] == "vectors" else "numbers") for k, name in enumerate(kept)
    ]
    named = source.names is not None and source.names.words
    if ids is not None:
        name = heading.columns[ids]
        if form[name] not in ("integers", "words") or (form[name] == "words" and not named):
            raise UserError(f"{path}: column {name} holds {form[name]}; expected node ids")
        columns.append(("node", name, "words" if named else "integers"))
    table = ParquetTable(path, columns, _finite_values if source.names is not None else _bad_values)
    width = sum(
        table.width(name) if kind == "vectors" else 1 for field, name, kind in columns if field != "node"
    )
    if width > HIGHEST_WIDTH:
        raise UserError(f"{path}: {width} features of a node; at most {HIGHEST_WIDTH} are possible")
    return copied(table, path, options.scratch, width, ids is not None, source)


def _values(rows: np.ndarray) -> np.ndarray:
    """What of the rows is features."""
    found = [rows[name] for name in rows.dtype.names or () if name[0] == "x"]
    return np.hstack([values.reshape(len(rows), -1) for values in found])


def _finite_values(rows: np.ndarray) -> str | None:
    with np.errstate(over="ignore"):
        if not np.isfinite(_values(rows).astype(np.float32)).all():
            return "NaN, infinite or too large"
    return None


def _bad_values(rows: np.ndarray) -> str | None:
    if "node" in (rows.dtype.names or ()) and ((rows["node"] < 0) | (rows["node"] > HIGHEST_ID)).any():
        return "no node id"
    return _finite_values(rows)


def _invert(
    listed: np.ndarray, table: Table | ParquetTable, path: object, source: Imported | None
) -> np.ndarray:
    """places[node] = row, -1 for nodes without one."""
    numbers = listed
    if source is not None and source.names is not None:
        numbers = places_of(source.names, listed, table.place, source.described())
    else:
        check_dense(int(listed.max(initial=-1)), len(listed), path)
        check_once(listed, listed, table.place)
    places = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)
    places[numbers] = np.arange(len(numbers))
    return places

"""Features in .npy, .npz, tables or JSON `{node: [active feature ids]}`; labels in tables with ids."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers.arrays import Header, Npz, StoredArray, open_npy, scratch_file
from distgnn.store.importers.files import check_declared, lines, read_json
from distgnn.store.importers.imported import HIGHEST_ID, Imported, check_dense
from distgnn.store.importers.tables import DenseRows, Features, SparseRows, StoredMatrix
from distgnn.store.importers.text import ID_NAMES, Heading, Table, whole
from distgnn.store.source import ImportOptions


def attach_features(source: Imported, options: ImportOptions, grow: bool, hint: str = "") -> None:
    """Give the source the features that the options name, if any; with `grow` they may add nodes. `hint` ends
    the error for another number of nodes."""
    if not options.features:
        return
    table = read_features(Path(options.features), options)
    if table.complete:
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


def read_features(path: Path, options: ImportOptions) -> Features:
    """Features in the format that the file's name says."""
    name = path.name.lower()
    if name.endswith(".npy"):
        return DenseRows(open_npy(path), path)
    if name.endswith(".npz"):
        return archived_features(path, options.scratch)
    name = name.removesuffix(".gz")
    if name.endswith(".json"):
        return json_features(path)
    if name.endswith((".csv", ".tsv", ".txt")):
        return csv_features(path, options)
    raise UserError(f"{path}: features in an unknown format; expected .npy, .npz, .csv, .tsv or .json")


def archived_features(path: Path, scratch: str | None) -> Features:
    """The only array of a .npz, or the sparse matrix that SciPy saved there."""
    archive = Npz(path, scratch)
    if "format" in archive:
        return StoredMatrix(archive, archive.text("format")).rows()
    if len(archive.names) != 1:
        expected = "one array of features, or a matrix saved by SciPy"
        raise UserError(f"{path}: holds {archive.described()}; expected {expected}")
    return DenseRows(archive.stored(archive.names[0]), path)


def json_features(path: Path) -> SparseRows:
    """`{"node": [ids of the features it has]}`: ones at these ids, kept as sparse rows in memory."""
    table = read_json(path)
    _check_json(table, path)
    nodes = np.fromiter(map(int, table), np.int64, len(table))
    if len(np.unique(nodes)) != len(nodes):
        raise UserError(f"{path}: a node is listed twice, once with leading zeros")
    counts = np.fromiter(map(len, table.values()), np.int64, len(table))
    columns = np.fromiter((k for active in table.values() for k in active), np.int32, int(counts.sum()))
    n, width = int(nodes.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1
    check_dense(n - 1, len(nodes), path)
    rows = SparseRows.of_entries(np.repeat(nodes, counts), columns, None, (n, width), path)
    rows.complete = False
    return rows


def _check_json(table: Any, path: Path) -> None:
    expected = "expected {node: [active feature ids]} with ids from 0"
    if not isinstance(table, dict):
        raise UserError(f"{path}: holds a {type(table).__name__}; {expected}")
    for node, active in table.items():
        if (number := whole(node)) is None or number > HIGHEST_ID:
            raise UserError(f"{path}: node {node[:40]!r} is no node id; {expected}")
        if not isinstance(active, list) or not all(type(k) is int and 0 <= k < 1 << 31 for k in active):
            raise UserError(f"{path}: node {node} has features {str(active)[:60]}; {expected}")


def csv_features(path: Path, options: ImportOptions) -> DenseRows:
    """A CSV of numbers: line i is node i, unless the header or `id_column` names an id column."""
    heading = Heading.of(path)
    names = heading.columns if heading.named else []
    if options.id_column in names:
        return dense_csv(path, options.scratch, heading, names.index(options.id_column))
    return dense_csv(path, options.scratch, heading, heading.position(*ID_NAMES))


def dense_csv(
    path: Path, scratch: str | None, heading: Heading | None = None, ids: int | None = None
) -> DenseRows:
    """Copy a text table of numbers into a temporary float32 array, block by block."""
    heading = heading or Heading.of(path)
    columns = len(heading.columns)
    before, values = columns if ids is None else ids, columns - (ids is not None)
    if not values:
        raise UserError(f"{path}: has no columns of features")
    counts = [("before", np.float64, before), ("node", np.int64, columns - values)]
    fields = [
        (*field[:2], (field[2],)) for field in [*counts, ("behind", np.float64, values - before)] if field[2]
    ]
    expected = f"{values} finite numbers" + (" and a node id" if ids is not None else "")
    table = Table(path, np.dtype(fields), expected, heading.delimiter, skip=heading.skip, check=_bad_values)
    nodes, count = [np.zeros(0, np.int64)], 0
    with scratch_file(scratch) as copy:
        for rows in table:
            count += len(rows)
            if ids is not None:
                nodes.append(rows["node"].ravel())
            copy.write(np.ascontiguousarray(_values(rows), np.float32).data)
        copy.flush()
        array = StoredArray(path, Header((count, values), np.dtype(np.float32), False, 0), file=copy)
    return DenseRows(array, path, None if ids is None else _invert(np.concatenate(nodes), path))


def _values(rows: np.ndarray) -> np.ndarray:
    """What of the rows is features."""
    return np.hstack([rows[name] for name in rows.dtype.names or () if name != "node"])


def _bad_values(rows: np.ndarray) -> str | None:
    with np.errstate(over="ignore"):
        if not np.isfinite(_values(rows).astype(np.float32)).all():
            return "NaN, infinite or too large"
    if "node" in (rows.dtype.names or ()) and ((rows["node"] < 0) | (rows["node"] > HIGHEST_ID)).any():
        return "no node id"
    return None


def _invert(ids: np.ndarray, path: object) -> np.ndarray:
    """places[id] = row, -1 for ids without one."""
    highest = int(ids.max(initial=-1))
    check_dense(highest, len(ids), path)
    places = np.full(highest + 1, -1, np.int64)
    places[ids] = np.arange(len(ids))
    if np.count_nonzero(places >= 0) != len(ids):
        raise UserError(f"{path}: a node has two rows; expected one row for each")
    return places


LABEL_NAMES = ("label", "class", "target", "y", "labels")
UNLABELLED = ("", "-1", "nan", "NaN", "null", "None")
Labels = dict[int, tuple[int, str]]  # node -> (line, label)


def attach_labels(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the labels that the options name, if any; UserError for a node that it has not. With
    `grow` a table that lists 0..k-1 once each may add isolated nodes.

    Classes are numbered in sorted order, by value if all are integers.
    """
    if not options.labels:
        return
    path = Path(options.labels)
    labels = read_labels(path, options)
    if grow and max(labels, default=-1) == len(labels) - 1:
        source.n = max(source.n, len(labels))
    unknown = next((node for node in labels if node >= source.n), None)
    if unknown is not None:
        found = f"a label for node {unknown}, which is not in the graph"
        where = f"{path}, line {labels[unknown][0]}"
        raise UserError(f"{where}: {found}; {source.path} has nodes 0..{source.n - 1}")
    named = {label for _, label in labels.values()} - set(UNLABELLED)
    integers = all(str(whole(name)) == name for name in named)
    names = sorted(named, key=int if integers else str)
    if not names:
        raise UserError(f"{path}: every label is empty; expected a class for some node")
    number = {name: k for k, name in enumerate(names)} | dict.fromkeys(UNLABELLED, -1)
    numbers = np.full(source.n, -1, np.int64)
    numbers[list(labels)] = [number[label] for _, label in labels.values()]
    source.set_labels(numbers, path, len(names))
    source.class_names = names


def read_labels(path: Path, options: ImportOptions) -> Labels:
    """A table of node ids (default: column `id` or the first) and labels (`label` or the last)."""
    heading = Heading.of(path)
    ids, label = label_columns(heading, path, options)
    labels: Labels = {}
    for line, row in table_rows(path, heading):
        node = whole(row[ids].strip()) if len(row) > max(ids, label) else None
        if node is None or node > HIGHEST_ID:
            shown = (heading.delimiter or " ").join(row)[:80]
            expected = f"a node id of at least 0 in column {ids} and a label in column {label}"
            raise UserError(f"{path}, line {line}: bad line {shown!r}; expected {expected}")
        if node in labels:
            found = f"node {node} has a second label"
            raise UserError(f"{path}, line {line}: {found}; expected one for each node")
        labels[node] = line, (text := row[label].strip())
        if text not in UNLABELLED and not _is_class(text):
            raise UserError(f"{path}, line {line}: label {text[:40]!r} is not whole; expected a class")
    return labels


def _is_class(text: str) -> bool:
    """Whether this is a name or a whole number: classes have no fractions."""
    try:
        return float(text).is_integer()
    except ValueError:
        return True


def label_columns(heading: Heading, path: Path, options: ImportOptions) -> tuple[int, int]:
    """Where the node and the label stand; ArgumentError where that would be the same column."""
    last = len(heading.columns) - 1
    if last < 1:
        raise UserError(f"{path}: {last + 1} column; expected node ids and labels")
    ids = heading.find("id_column", options.id_column, path, 0, ID_NAMES)
    label = heading.find("label_column", options.label_column, path, last, LABEL_NAMES)
    if ids != label:
        return ids, label
    given, other = ("id_column", "label_column") if options.id_column else ("label_column", "id_column")
    if last == 1 and getattr(options, other) is None:  # only the other column is left
        return (ids, 1 - ids) if given == "id_column" else (1 - label, label)
    problem = f"would be node ids and labels at once in {path}; give {other}=NAME, another of its columns"
    raise ArgumentError(
        given, getattr(options, given) or heading.columns[ids], f"{problem}: {heading.described()}"
    )


def table_rows(path: Path, heading: Heading) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of the lines behind the header that are neither blank nor comments."""
    mark, number = heading.delimiter, heading.skip
    texts = (text for _, text in lines(path, heading.skip))
    rows: Any = csv.reader(texts, delimiter=mark) if mark else map(str.split, texts)
    try:
        for k, row in enumerate(rows, 1):
            number = heading.skip + (rows.line_num if mark else k)
            if row and not row[0].lstrip().startswith("#") and any(field.strip() for field in row):
                yield number, row
    except csv.Error as error:
        raise UserError(f"{path}, line {number + 1}: {error}; expected a row of CSV") from None

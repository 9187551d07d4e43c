"""Features in .npy, .npz, tables or JSON `{node: [active feature ids]}`; labels in tables with ids."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Header, Npz, StoredArray, open_npy, scratch_file
from distgnn.store.importers.imported import HIGHEST_ID, Imported, check_dense
from distgnn.store.importers.tables import DenseRows, Features, SparseRows, StoredMatrix
from distgnn.store.importers.text import ID_NAMES, Heading, Table, open_binary, read_json, reading
from distgnn.store.source import ImportOptions


def attach_features(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the features that the options name, if any; with `grow` they may add nodes."""
    if not options.features:
        return
    table = read_features(Path(options.features), options)
    if grow:
        source.n = max(source.n, table.nodes)
    if table.complete and table.nodes != source.n:
        found = f"{table.nodes} rows of features for a graph of {source.n} nodes ({source.path})"
        raise UserError(f"{options.features}: {found}; expected as many rows as nodes")
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
        kind = archive.text("format")
        if kind == "csr":
            return StoredMatrix(archive, kind).rows()
        with reading(path):
            try:
                matrix = scipy.sparse.load_npz(path).tocsr()
            except (ValueError, KeyError, NotImplementedError, TypeError) as error:
                raise UserError(f"{path}: not a sparse matrix that can be read ({error})") from None
        return SparseRows(matrix.indptr, matrix.indices, matrix.data, matrix.shape[1], path)
    if len(archive.names) != 1:
        expected = "one array of features, or a matrix saved by SciPy"
        raise UserError(f"{path}: holds {', '.join(archive.names) or 'nothing'}; expected {expected}")
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
    order = np.argsort(np.repeat(nodes, counts), kind="stable")
    indptr = np.zeros(n + 1, np.int64)
    indptr[nodes + 1] = counts
    rows = SparseRows(np.cumsum(indptr), columns[order], None, width, path)
    rows.complete = False
    return rows


def _check_json(table: Any, path: Path) -> None:
    expected = "expected {node: [active feature ids]} with ids from 0"
    if not isinstance(table, dict):
        raise UserError(f"{path}: holds a {type(table).__name__}; {expected}")
    for node, active in table.items():
        if not node.isdecimal() or int(node) > HIGHEST_ID:
            raise UserError(f"{path}: node {node!r} is no node id; {expected}")
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
    values = columns - (ids is not None)
    expected = f"{values} finite numbers" + (" and a node id" if ids is not None else "")
    table = Table(
        path, np.dtype(np.float64), expected, heading.delimiter, skip=heading.skip, width=columns,
        check=lambda rows: _bad_values(rows, ids),
    )  # fmt: skip
    nodes, count = [np.zeros(0, np.int64)], 0
    with scratch_file(scratch) as copy:
        with open(copy, "wb") as out:
            for rows in table:
                count += len(rows)
                if ids is not None:
                    nodes.append(rows[:, ids].astype(np.int64))
                    rows = np.delete(rows, ids, axis=1)
                np.ascontiguousarray(rows, np.float32).tofile(out)
        array = StoredArray(copy, Header((count, values), np.dtype(np.float32), False, 0))
    return DenseRows(array, path, None if ids is None else _invert(np.concatenate(nodes), path))


def _bad_values(rows: np.ndarray, ids: int | None) -> str | None:
    with np.errstate(over="ignore"):
        if not np.isfinite(rows.astype(np.float32)).all():
            return "NaN, infinite or too large"
    if ids is not None and ((rows[:, ids] < 0) | (rows[:, ids] > HIGHEST_ID) | (rows[:, ids] % 1 != 0)).any():
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


@dataclass
class Labels:
    """Which node has which label, as `path` lists it."""

    path: Path
    ids: np.ndarray
    values: list[str]
    lines: list[int]

    def attach(self, source: Imported) -> None:
        """Number the classes in sorted order (by value if all are integers) and label the source's nodes."""
        unknown = np.flatnonzero(self.ids >= source.n)
        if len(unknown):
            line, node = self.lines[unknown[0]], self.ids[unknown[0]]
            found = f"a label for node {node}, which is not in the graph"
            raise UserError(f"{self.path}, line {line}: {found}; {source.path} has nodes 0..{source.n - 1}")
        named = set(self.values) - set(UNLABELLED)
        integers = all(name.isdecimal() and name == str(int(name)) for name in named)
        names = sorted(named, key=int if integers else str)
        if not names:
            raise UserError(f"{self.path}: every label is empty; expected a class for some node")
        number = {name: k for k, name in enumerate(names)} | dict.fromkeys(UNLABELLED, -1)
        labels = np.full(source.n, -1, np.int64)
        labels[self.ids] = [number[value] for value in self.values]
        source.set_labels(labels, self.path, len(names))
        source.class_names = names


def attach_labels(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the labels that the options name, if any; UserError for a node that it has not. With
    `grow` a table that lists 0..k-1 once each may add isolated nodes."""
    if not options.labels:
        return
    labels = read_labels(Path(options.labels), options)
    if grow and np.array_equal(np.sort(labels.ids), np.arange(len(labels.ids))):
        source.n = max(source.n, len(labels.ids))
    labels.attach(source)


def read_labels(path: Path, options: ImportOptions) -> Labels:
    """A table of node ids (default: column `id` or the first) and labels (`label` or the last)."""
    heading = Heading.of(path)
    last = len(heading.columns) - 1
    if last < 1:
        raise UserError(f"{path}: {last + 1} column; expected node ids and labels")
    id_column = heading.find("id_column", options.id_column, path, 0, ID_NAMES)
    label_column = heading.find("label_column", options.label_column, path, last, LABEL_NAMES)
    ids, values, lines = [], [], []
    for line, row in _rows(path, heading):
        text = row[id_column].strip() if len(row) > max(id_column, label_column) else ""
        if not text.isdecimal() or int(text) > HIGHEST_ID:
            shown = (heading.delimiter or " ").join(row)[:80]
            expected = f"a node id of at least 0 in column {id_column} and a label in column {label_column}"
            raise UserError(f"{path}, line {line}: bad line {shown!r}; expected {expected}")
        ids.append(int(text))
        values.append(row[label_column].strip())
        lines.append(line)
    labels = Labels(path, np.array(ids, np.int64), values, lines)
    order = np.argsort(labels.ids, kind="stable")
    repeated = np.flatnonzero(np.diff(labels.ids[order]) == 0)
    if len(repeated):
        second = order[repeated[0] + 1]
        found = f"node {ids[second]} has a second label"
        raise UserError(f"{path}, line {lines[second]}: {found}; expected one for each node")
    return labels


def _rows(path: Path, heading: Heading) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of the lines behind the header that are neither blank nor comments."""
    with reading(path), open_binary(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        for _ in range(heading.skip):
            lines.readline()
        mark, number = heading.delimiter, heading.skip
        rows: Any = csv.reader(lines, delimiter=mark) if mark else map(str.split, lines)
        try:
            for k, row in enumerate(rows, 1):
                number = heading.skip + (rows.line_num if mark else k)
                if row and not row[0].lstrip().startswith("#") and any(field.strip() for field in row):
                    yield number, row
        except csv.Error as error:
            raise UserError(f"{path}, line {number + 1}: {error}; expected a row of CSV") from None

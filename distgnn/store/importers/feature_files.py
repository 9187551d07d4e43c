"""Features in files of their own: .npy, .npz, tables of numbers, or JSON `{node: [active feature ids]}`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Header, Npz, StoredArray, open_npy, scratch_file
from distgnn.store.importers.compressed import StoredMatrix
from distgnn.store.importers.imported import HIGHEST_ID, Imported, check_dense
from distgnn.store.importers.tables import DenseRows, Features, SparseRows
from distgnn.store.importers.text import ID_NAMES, Heading, Table, read_json, reading
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
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".npy") and not path.name.endswith(".gz"):
        return DenseRows(open_npy(path), path)
    if name.endswith(".npz") and not path.name.endswith(".gz"):
        return archived_features(path, options.scratch)
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
    return SparseRows(np.cumsum(indptr), columns[order], None, width, path, complete=False)


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
    places = (heading.position(name) for name in ID_NAMES)
    return dense_csv(path, options.scratch, heading, next((k for k in places if k is not None), None))


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

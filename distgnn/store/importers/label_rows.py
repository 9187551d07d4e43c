"""Labels of nodes that may have several classes: a row of zeros and ones for each node.

A row of -1 or NaN is that of an unlabelled node, and so is a node without a row; a row that has some labels
only is refused, and so are other numbers. In files: an array n x classes (.npy, .npz, also SciPy's sparse
matrices), `{node: [0, 1, ...]}` in JSON, or a text table with a column for each class. An array of n whole
numbers or names, or `{node: class}`, has one class of each node.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import node_words, parquet
from distgnn.store.importers.arrays import Npz, StoredArray, open_npy, strings
from distgnn.store.importers.files import read_json
from distgnn.store.importers.imported import HIGHEST_ID, UNLABELLED, Imported, check_dense
from distgnn.store.importers.made import made_labels
from distgnn.store.importers.names import Place, check_once, parsed, places_of
from distgnn.store.importers.node_words import LABEL_NAMES, table_rows
from distgnn.store.importers.tables import StoredMatrix
from distgnn.store.importers.text import ID_NAMES, Heading, whole
from distgnn.store.source import ImportOptions

Rows = Callable[[int, int], np.ndarray]
#: Labels by node, names of their classes, and whether all of these nodes are listed.
Table = tuple[np.ndarray, "list[str] | None", bool]
_DIGITS = bytes.maketrans(b"01", b"\x00\x01")
_NUMBERS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1} | dict.fromkeys(UNLABELLED, -1)


def zeros_and_ones(rows: Rows, shape: tuple[int, int], where: object) -> np.ndarray:
    """int8 (n, classes): 1, 0, or -1 in all of a row without labels; `rows(first, last)`: some of them.
    UserError names the first node with something else."""
    found = np.empty(shape, np.int8)
    step = max(1, LIMITS.row_bytes // (8 * max(shape[1], 1)))
    for first in range(0, shape[0], step):
        some = np.asarray(rows(first, min(first + step, shape[0])))
        missing = ~(some >= 0)  # also NaN
        wrong = ~missing & (some != 0) & (some != 1)
        if wrong.any():
            node, column = np.argwhere(wrong)[0]
            told = f"label {column} of node {first + node} is {some[node, column]}; expected 0 or 1"
            raise UserError(f"{where}: {told} for each class; numbers to predict (regression) are no labels")
        if (partly := missing.any(axis=1) & ~missing.all(axis=1)).any():
            node = first + int(np.flatnonzero(partly)[0])
            raise UserError(f"{where}: {partly_labelled(f'node {node}')}")
        found[first : first + len(some)] = np.where(missing, -1, some)
    return found


def partly_labelled(node: str) -> str:
    """For errors."""
    return f"{node} has labels of some classes only; expected 0 or 1 for each, or -1 or nothing for all"


def whole_labels(values: np.ndarray, where: object) -> np.ndarray:
    """int64 (n): a class of each node, -1 below zero and for NaN; UserError names the first with another."""
    values = values.astype(np.float64) if values.dtype.kind == "f" else values
    values = np.where(values >= 0, values, -1)  # also NaN
    bad = ~(values <= HIGHEST_ID) | (values != np.rint(values))
    if bad.any():
        node = int(np.flatnonzero(bad)[0])
        raise UserError(f"{where}: node {node} has label {values[node]}; expected a whole number")
    return values.astype(np.int64)


def label_array(array: StoredArray | np.ndarray, where: object) -> np.ndarray:
    """int64 (n), or int8 (n, classes), from an array in memory or in a file."""
    shape, stored = array.shape, array if isinstance(array, StoredArray) else None
    if len(shape) == 2 and shape[1] > 1:
        some: Any = stored.window if stored is not None else lambda lo, hi: array[lo:hi]  # type: ignore[index]
        return zeros_and_ones(some, (shape[0], shape[1]), where)
    if len(shape) != 1 and shape[1:] != (1,):
        raise UserError(f"{where}: labels have shape {shape}; expected (nodes) or (nodes, classes)")
    return whole_labels(np.asarray(array if stored is None else stored.read()).reshape(-1), where)


def word_array(path: Path) -> np.ndarray | None:
    """Names of classes, node by node, in a .npy; None where there are none."""
    if not path.name.lower().endswith(".npy"):
        return None
    array = open_npy(path, "biufUS")
    if array.dtype.kind not in "US":
        return None
    words = strings(array.read(), path)
    return words[:, 0] if words.ndim == 2 and words.shape[1] == 1 else words


def label_file(path: Path, source: Imported, scratch: str | None = None) -> Table | None:
    """The labels in a file of arrays, or in JSON; None for other files."""
    name = path.name.lower()
    if name.endswith(".npy"):
        return label_array(open_npy(path), path), None, True
    if name.endswith(".npz"):
        archive = Npz(path, scratch)
        if "format" in archive:
            matrix = StoredMatrix(archive, archive.text("format"))
            table = matrix.rows()
            labels = zeros_and_ones(lambda lo, hi: table.rows(np.arange(lo, hi)), matrix.shape, path)
            return labels, None, True
        if len(archive.names) != 1:
            expected = "one array of labels, or a matrix saved by SciPy"
            raise UserError(f"{path}: holds {archive.described()}; expected {expected}")
        return label_array(archive.stored(archive.names[0]), path), None, True
    if name.removesuffix(".gz").endswith(".json"):
        return json_labels(path, source)
    return None


def json_labels(path: Path, source: Imported) -> Table:
    """`{node: [0, 1, ...]}` or `{node: class}`."""
    table, expected = read_json(path), "expected {node: [0, 1, ...]} or {node: class}"
    expected += "" if source.names else " with ids from 0"
    nodes = [*table] if isinstance(table, dict) else []
    if source.names is not None:
        known, highest = _named(path, nodes, source, lambda row: str(path)), source.n - 1
    else:
        known = np.array(
            [n for node in nodes if (n := whole(node)) is not None and n <= HIGHEST_ID], np.int64
        )
        highest = int(known.max(initial=-1))
        check_dense(highest, len(nodes), path)
    if not nodes or len(np.unique(known)) < len(nodes):
        raise UserError(f"{path}: {expected}")
    try:
        values = np.asarray(list(table.values()))
    except ValueError:  # rows of several lengths
        values = np.zeros(0, object)
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        raise UserError(f"{path}: {expected}; every node needs as many")
    labels = np.full((highest + 1, *values.shape[1:]), -1.0)
    labels[known] = values
    several = values.ndim == 2 and values.shape[1] > 1
    rows = zeros_and_ones(lambda lo, hi: labels[lo:hi], labels.shape, path) if several else None
    found = whole_labels(labels.reshape(len(labels)), path) if rows is None else rows
    return found, None, len(nodes) == len(labels)


def label_table(path: Path, options: ImportOptions, source: Imported) -> Table | None:
    """A text table with a column of 0 and 1 for each class, and the classes' names; None for a table whose
    lines have one label each.

    Ids stand in the column `id_column`, in one called `id`, or in the first; where that is a class like the
    others, of zeros and ones, line i is node i. Columns of classes are those that `label_column` names,
    between commas; or all others, if no column is called `label` and they hold 0 and 1 only.
    """
    heading, chosen = Heading.of(path), [] if not options.label_column else options.label_column.split(",")
    if len(chosen) == 1 or (not chosen and heading.position(*LABEL_NAMES) is not None):
        return None
    named = options.id_column is not None or heading.position(*ID_NAMES) is not None
    ids = heading.find("id_column", options.id_column, path, 0, ID_NAMES)
    columns = _columns(path, heading, options, chosen, ids, named)
    found = _read(path, heading, ids, columns, bool(chosen)) if len(columns) > 1 else None
    if found is None:
        return None
    lines, nodes, rows = found
    counted = not named and ids in columns
    different = {node.lower() for node in nodes}
    if not named and not chosen and different <= _NUMBERS.keys() and len(nodes) > len({*nodes}):
        first = np.array([_NUMBERS[text.lower()] for text in nodes], np.int8)
        rows, columns, counted = np.column_stack([first, rows]), [ids, *columns], True
    if (partly := (rows < 0).any(axis=1) & ~(rows < 0).all(axis=1)).any():
        line = lines[int(np.flatnonzero(partly)[0])]
        raise UserError(f"{path}, {partly_labelled(f'line {line}')}; label_column=NAME takes one column")
    names = [heading.columns[k] for k in columns] if heading.named else None
    if counted:
        source.check_rows(path)
    places = np.arange(len(rows)) if counted else _places(path, lines, nodes, source)
    labels = np.full((int(places.max(initial=-1)) + 1, rows.shape[1]), -1, np.int8)
    labels[places] = rows
    return labels, names, len(rows) == len(labels)


def _columns(
    path: Path, heading: Heading, options: ImportOptions, chosen: list[str], ids: int, named: bool
) -> list[int]:
    """Those that are chosen, or all but that of the ids."""
    columns = [heading.find("label_column", column.strip(), path, 0) for column in chosen]
    if len(set(columns)) < len(columns) or (named and ids in columns):
        problem = f"names a column twice, or that of ids, in {path}: {heading.described()}"
        raise ArgumentError("label_column", options.label_column, problem)
    return columns or [k for k in range(len(heading.columns)) if k != ids]


def _read(
    path: Path, heading: Heading, ids: int, columns: list[int], strict: bool
) -> tuple[list[int], list[str], np.ndarray] | None:
    """Of every line its number, id and int8 labels; None, or with `strict` an error, for other labels."""
    lines, nodes, rows, most = [], [], bytearray(), max(ids, *columns)
    for line, row in table_rows(path, heading):
        fields = [row[k].strip().lower() for k in columns] if len(row) > most else [""]
        text = "".join(fields)
        if len(text) == len(fields) == len(columns) and not text.strip("01"):
            rows += text.encode().translate(_DIGITS)
        elif len(fields) == len(columns) and all(field in _NUMBERS for field in fields):
            rows += np.array([_NUMBERS[field] for field in fields], np.int8).tobytes()
        elif strict:
            shown = (heading.delimiter or " ").join(row)[:80]
            raise UserError(f"{path}, line {line}: bad line {shown!r}; expected 0 or 1 in each label column")
        else:
            return None
        lines.append(line)
        nodes.append(row[ids].strip())
    return lines, nodes, np.frombuffer(rows, np.int8).reshape(len(lines), len(columns))


def _named(path: Path, nodes: list[str], source: Imported, place: Place) -> np.ndarray:
    """The numbers of nodes that have ids of their own."""
    assert source.names is not None
    try:
        return places_of(source.names, parsed(nodes, source.names), place, source.described())
    except ValueError as error:
        raise UserError(f"{path}: no node ids ({error})") from None


def _places(path: Path, lines: list[int], nodes: list[str], source: Imported) -> np.ndarray:
    """The nodes' numbers; UserError for a line without one, or with one that another has."""
    if source.names is not None:
        return _named(path, nodes, source, lambda row: f"{path}, line {lines[row]}")
    places = np.array([-1 if (node := whole(text)) is None else node for text in nodes], np.int64)
    bad = (places < 0) | (places > HIGHEST_ID)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise UserError(f"{path}, line {lines[at]}: {nodes[at][:40]!r} is no node id; expected 0, 1, 2, ...")
    check_dense(int(places.max(initial=-1)), len(places), path)
    check_once(places, places, lambda row: f"{path}, line {lines[row]}")
    return places


def attach_labels(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the labels that the options name, if any: those of this module, or a table with one
    label in each line. With `grow`, labels of all of 0..k-1 may add isolated nodes. UserError for nodes that
    the source has not, or for an array of another length."""
    if not options.labels or made_labels(source, options.labels):
        return
    path, table = Path(options.labels), None
    if path.name.lower().endswith((".npy", ".npz")):
        source.check_rows(path)
    if (words := word_array(path)) is not None:
        source.n = max(source.n, len(words)) if grow else source.n
        source.set_classes(words, path)
        return
    if path.is_file() and not parquet.is_parquet(path):
        found = label_file(path, source, options.scratch)
        table = label_table(path, options, source) if found is None else found
    if table is None:
        node_words.attach_labels(source, options, grow)
        return
    labels, names, full = table
    if grow and full:
        source.n = max(source.n, len(labels))
    if len(labels) > source.n:
        there = f"{source.path} has nodes 0..{source.n - 1}"
        raise UserError(f"{path}: labels of node {len(labels) - 1}, which is not in the graph; {there}")
    if not full:  # a table, of which nodes may be missing
        missing = np.full((source.n - len(labels), *labels.shape[1:]), -1, labels.dtype)
        labels = np.concatenate([labels, missing])
    source.set_labels(labels, path)
    source.class_names = names

"""Labels of nodes: one class each, or a row of zeros and ones for nodes that may have several.

A row of -1 or NaN is that of an unlabelled node, and so is a node without a row; a row that has some labels
only is refused, and so are other numbers. In files: an array n x classes (.npy, .npz, also SciPy's sparse
matrices), `{node: [0, 1, ...]}` in JSON, or a text or Parquet table with a column for each class. An array of
n whole numbers or names, `{node: class}`, or a table with one column of labels has one class of each node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import NoneType

import numpy as np

from distgnn.errors import UserError
from distgnn.split import labelled
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import node_table
from distgnn.store.importers.arrays import StoredArray, strings, window_of
from distgnn.store.importers.arrow import numpy_of
from distgnn.store.importers.imported import HIGHEST_ID, NO_LABEL, UNLABELLED, Imported
from distgnn.store.importers.made import is_made, made_labels
from distgnn.store.importers.names import Names
from distgnn.store.importers.roles import ZEROS_AND_ONES, Roles, label_roles
from distgnn.store.importers.table import Table, WantedColumn
from distgnn.store.importers.table_files import is_array, is_json, open_table
from distgnn.store.importers.tables import StoredMatrix
from distgnn.store.source import ImportOptions

#: Words for no number to predict; -1 is a number there.
ABSENT = tuple(word for word in UNLABELLED if not word.startswith("-1"))
EXPECTED = "expected {node: [0, 1, ...]} or {node: class}"
Rows = Callable[[int, int], np.ndarray]


def attach_labels(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the labels that the options name, if any.

    With `grow`, labels of all of 0..k-1 may add isolated nodes. Raises UserError for nodes that are not in
    the source, or for an array of another length.
    """
    if not options.labels or made_labels(source, options.labels):
        return
    path = Path(options.labels)
    if is_array(path) or is_json(path):
        source.readings.append(f"{path.name} (labels)")
    if is_array(path):
        _attach_array(source, path, options.scratch, grow)
    elif is_json(path):
        _attach_json(source, path)
    else:
        _attach_columns(source, path, options)


def label_ids(options: ImportOptions, names: Names | None) -> np.ndarray:
    """Read the ids, of the kind of `names`, in a table of labels; none of an array, or of made labels."""
    path = Path(options.labels or "")
    if is_json(path):
        return node_table.read_json_table(path, names, EXPECTED)[0].ids
    if not is_array(path) and not is_made(options.labels or ""):
        table = open_table(path, options)
        if (column := label_roles(table, options).ids) is not None:
            return node_table.read_ids(table, column, names)
    return np.zeros(0, np.int64 if names is None else names.names.dtype)


def _attach_array(source: Imported, path: Path, scratch: str | None, grow: bool) -> None:
    source.check_rows(path)
    stored = node_table.open_array(path, "labels", scratch, "biufUS")
    source.n = max(source.n, stored.shape[0]) if grow else source.n
    take_labels(source, stored, path)


def take_labels(source: Imported, stored: StoredArray | np.ndarray | StoredMatrix, where: object) -> None:
    """Give the source the labels of an array or a matrix, or the numbers that its options ask for."""
    regression = source.options.regression
    set_values(source, (stored_numbers if regression else stored_labels)(stored, where), where)


def set_values(source: Imported, values: np.ndarray, where: object) -> None:
    """Give the source text (objects), classes, rows of them, or numbers to predict.

    Raises UserError if no node has a label. Notes a class that numbers below 0 leave alone.
    """
    if source.options.regression:
        source.set_numbers(values, where)
    elif values.dtype == object and any(values.reshape(-1).tolist()):
        source.set_classes(values, where)
    else:
        source.set_labels(np.full(len(values), -1) if values.dtype == object else values, where)
    there = np.zeros(0, bool) if source.labels is None else labelled(source.labels)
    if not there.any():
        classes = "below 0, NaN or empty; expected a class"
        problem = "NaN; expected a number" if source.regression else classes
        raise UserError(f"{where}: every label is {problem} for some node")
    if source.class_names is None and values.ndim == 1 and not source.regression and not there.all():
        only = np.unique(values[there])
        if len(only) == 1:
            unlabelled = "and nodes below 0 or NaN have none; two classes are numbered 0 and 1"
            source.notes.append(f"{where}: every label is {only[0]}, {unlabelled}")


def _attach_json(source: Imported, path: Path) -> None:
    """Read `{node: [0, 1, ...]}` or `{node: class}`."""
    expected = EXPECTED
    rows, listed = node_table.read_json_table(path, source.names, expected)
    if any(isinstance(value, str) for value in listed):
        if not all(isinstance(value, (str, NoneType)) for value in listed):
            raise UserError(f"{path}: holds text beside numbers or lists; {expected}")
        words = np.full(source.n, "", object)
        words[rows.nodes(source)] = [(value or "").strip() for value in listed]
        set_values(source, words, path)
        return
    try:
        values = np.asarray([np.nan if value is None else value for value in listed])
    except ValueError:  # rows of several lengths
        values = np.zeros(0, object)
    if not len(values) or values.dtype.kind not in "biuf" or values.ndim > 2:
        raise UserError(f"{path}: {expected}; every node needs as many")
    nodes = rows.nodes(source)
    labels = np.full((source.n, *values.shape[1:]), -1.0)
    labels[nodes] = values
    if source.options.regression:
        labels[np.isin(np.arange(source.n), nodes, invert=True)] = np.nan
    take_labels(source, labels, path)


def _attach_columns(source: Imported, path: Path, options: ImportOptions) -> None:
    """Read a text or Parquet table."""
    table = open_table(path, options)
    roles = label_roles(table, options)
    class_names = [table.names[k] for k in roles.values] if table.named else None
    source.note_table(roles.described(table, "labels"), table, [roles.ids, *roles.values])
    if _attach_vectors(source, table, roles):
        return
    check = not_a_class if len(roles.values) == 1 else not_zero_or_one
    what, check = ("number", not_a_number) if options.regression else ("label", check)
    cells = node_table.read_words(table, roles, source.names, what, check)
    if options.regression:
        numbers = np.full((source.n, len(roles.values)), np.nan)
        given = np.array([*map(_number, cells.words)], np.float64)[cells.codes]
        numbers[cells.rows.nodes(source)] = given
        source.set_numbers(numbers, path)
        return
    if len(roles.values) == 1:
        labels = np.full(source.n, "", object)
        labels[cells.rows.nodes(source)] = np.array([*cells.words, ""], object)[cells.codes[:, 0]]
        source.set_classes(labels, path)
        return
    numbers = np.array([ZEROS_AND_ONES[word.lower()] for word in cells.words], np.int8)[cells.codes]
    if not len(numbers):
        raise UserError(f"{path}: {NO_LABEL}")
    if (partly := (numbers < 0).any(axis=1) & ~(numbers < 0).all(axis=1)).any():
        where = partly_labelled(cells.rows.place(int(np.flatnonzero(partly)[0])))
        raise UserError(f"{where}; label_column=NAME takes one column")
    nodes = cells.rows.nodes(source)
    rows = np.full((source.n, numbers.shape[1]), -1, np.int8)
    rows[nodes] = numbers
    source.set_labels(rows, path)
    source.class_names = class_names


def _attach_vectors(source: Imported, table: Table, roles: Roles) -> bool:
    """Read a column of lists that have 0 or 1 for each class; return False for any other."""
    widths = {table.width(k) for k in roles.values if table.kinds[k] == "vectors"}
    if source.options.regression or len(roles.values) != 1 or not widths or max(widths) < 2:
        return False
    wanted, parts = [WantedColumn(roles.values[0], "numbers", "0 or 1 for each class")], []
    try:
        for (column,) in table.batches(wanted):
            parts.append(numpy_of(column.flatten()).reshape(len(column), -1))
    except UserError:  # lists of several lengths hold classes
        return False
    if not parts or not np.isin(numbers := np.concatenate(parts), (-1, 0, 1)).all():
        return False
    counted = roles.ids is None
    ids = np.arange(len(numbers)) if counted else node_table.read_ids(table, roles.ids or 0, source.names)
    nodes = node_table.RowIds(table.path, ids, table.place, counted).nodes(source)
    rows = np.full((source.n, numbers.shape[1]), -1, np.int8)
    rows[nodes] = zeros_and_ones(lambda lo, hi: numbers[lo:hi], numbers.shape, table.path)
    source.set_labels(rows, table.path)
    return True


def not_a_class(text: str) -> str | None:
    """Return the fault of a label, or None: classes are names or whole numbers, not fractions."""
    try:
        good = text.lower() in UNLABELLED or float(text).is_integer()
    except ValueError:
        return None
    return None if good else f"label {text[:40]!r} is not whole; expected a class"


def _number(text: str) -> float:
    return float("nan") if text.lower() in ABSENT else float(text)


def not_a_number(text: str) -> str | None:
    """Return the fault of a number to predict, or None."""
    try:
        _number(text)
    except ValueError:
        return f"label {text[:40]!r} is no number; numbers to predict were asked for (regression)"
    return None


def not_zero_or_one(text: str) -> str | None:
    """Return the fault of a label in one of several columns, or None."""
    if text.lower() in ZEROS_AND_ONES:
        return None
    return f"label {text[:40]!r}; expected 0 or 1 in each label column"


def zeros_and_ones(rows: Rows, shape: tuple[int, int], where: object) -> np.ndarray:
    """Convert rows to int8 (n, classes): 1, 0, or -1 in all of a row without labels.

    `rows(first, last)` returns rows first..last-1. Raises UserError for other values, with the first such
    node.
    """
    labels = np.empty(shape, np.int8)
    step = max(1, LIMITS.row_bytes // (8 * max(shape[1], 1)))
    for first in range(0, shape[0], step):
        some = np.asarray(rows(first, min(first + step, shape[0])))
        missing = ~(some >= 0)  # True for NaN too
        wrong = ~missing & (some != 0) & (some != 1)
        if wrong.any():
            node, column = np.argwhere(wrong)[0]
            label = f"label {column} of node {first + node} is {some[node, column]}"
            expected = "expected 0 or 1 for each class; numbers to predict (regression) are no labels"
            raise UserError(f"{where}: {label}; {expected}")
        if (partly := missing.any(axis=1) & ~missing.all(axis=1)).any():
            node = first + int(np.flatnonzero(partly)[0])
            raise UserError(partly_labelled(f"{where}: node {node}"))
        labels[first : first + len(some)] = np.where(missing, -1, some)
    return labels


def partly_labelled(node: str) -> str:
    """Return the error text for a node or row with labels of some classes only."""
    return f"{node} has labels of some classes only; expected 0 or 1 for each, or -1 or nothing for all"


def whole_labels(values: np.ndarray, where: object) -> np.ndarray:
    """Convert numbers to int64 (n): the class of each node, -1 for NaN and below zero.

    Raises UserError for a fraction or an infinity, with the first such node.
    """
    values = values.astype(np.float64) if values.dtype.kind == "f" else values
    classes = np.where(values >= 0, values, -1)  # NaN becomes -1 too
    bad = ~(classes <= HIGHEST_ID) | (classes != np.rint(classes)) | np.isinf(values)
    if bad.any():
        node = int(np.flatnonzero(bad)[0])
        raise UserError(f"{where}: node {node} has label {values[node]}; expected a whole number")
    return classes.astype(np.int64)


def label_array(array: StoredArray | np.ndarray, where: object) -> np.ndarray:
    """Convert an array in memory or in a file to int64 (n), or to int8 (n, classes)."""
    shape = array.shape
    if len(shape) == 2 and shape[1] > 1:
        return zeros_and_ones(partial(window_of, array), (shape[0], shape[1]), where)
    if len(shape) != 1 and shape[1:] != (1,):
        raise UserError(f"{where}: labels have shape {shape}; expected (nodes) or (nodes, classes)")
    return whole_labels(window_of(array, 0, shape[0]).reshape(-1), where)


def stored_numbers(stored: StoredArray | np.ndarray | StoredMatrix, where: object) -> np.ndarray:
    """Convert a matrix or an array to numbers to predict, float64 (n) or (n, columns)."""
    if isinstance(stored, StoredMatrix):
        return np.asarray(stored.rows().rows(np.arange(stored.shape[0])), np.float64)
    if stored.dtype.kind not in "biuf" or len(stored.shape) not in (1, 2):
        given = f"{stored.dtype} of shape {stored.shape}"
        raise UserError(f"{where}: labels are {given}; expected numbers, (nodes) or (nodes, columns)")
    return window_of(stored, 0, stored.shape[0]).astype(np.float64)


def stored_labels(stored: StoredArray | np.ndarray | StoredMatrix, where: object) -> np.ndarray:
    """Convert a matrix or an array, of numbers or of names (which become objects), to labels."""
    if isinstance(stored, StoredMatrix):
        rows = stored.rows()
        return zeros_and_ones(lambda lo, hi: rows.rows(np.arange(lo, hi)), stored.shape, where)
    if stored.dtype.kind not in "US":
        return label_array(stored, where)
    words = strings(stored if isinstance(stored, np.ndarray) else stored.read(), where)
    return words[:, 0] if words.ndim == 2 and words.shape[1] == 1 else words

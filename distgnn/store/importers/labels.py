"""Labels of nodes: one class each, or a row of zeros and ones for nodes that may have several.

A row of -1 or NaN is that of an unlabelled node, and so is a node without a row; a row that has some labels
only is refused, and so are other numbers. In files: an array n x classes (.npy, .npz, also SciPy's sparse
matrices), `{node: [0, 1, ...]}` in JSON, or a text or Parquet table with a column for each class. An array of
n whole numbers or names, `{node: class}`, or a table with one column of labels has one class of each node.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.imported import UNLABELLED, Imported
from distgnn.store.importers.label_arrays import label_array, partly_labelled, stored_labels
from distgnn.store.importers.made import made_labels
from distgnn.store.importers.node_table import (
    is_array,
    is_json,
    open_array,
    open_columns,
    read_json_table,
    read_words,
)
from distgnn.store.importers.roles import ZEROS_AND_ONES, label_roles
from distgnn.store.source import ImportOptions


def attach_labels(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the labels that the options name, if any; with `grow`, labels of all of 0..k-1 may add
    isolated nodes. UserError for nodes that the source has not, or for an array of another length."""
    if not options.labels or made_labels(source, options.labels):
        return
    path = Path(options.labels)
    if is_array(path):
        _attach_array(source, path, options.scratch, grow)
    elif is_json(path):
        _attach_json(source, path, grow)
    else:
        _attach_columns(source, path, options, grow)


def _attach_array(source: Imported, path: Path, scratch: str | None, grow: bool) -> None:
    source.check_rows(path)
    labels = stored_labels(open_array(path, "labels", scratch, "biufUS"), path)
    source.n = max(source.n, len(labels)) if grow else source.n
    (source.set_classes if labels.dtype == object else source.set_labels)(labels, path)


def _attach_json(source: Imported, path: Path, grow: bool) -> None:
    """Read `{node: [0, 1, ...]}` or `{node: class}`."""
    expected = "expected {node: [0, 1, ...]} or {node: class}"
    rows, listed = read_json_table(path, source.names, expected)
    try:
        values = np.asarray(listed)
    except ValueError:  # rows of several lengths
        values = np.zeros(0, object)
    if not len(values) or values.dtype.kind not in "biuf" or values.ndim > 2:
        raise UserError(f"{path}: {expected}; every node needs as many")
    nodes = rows.nodes(source, grow)
    labels = np.full((source.n, *values.shape[1:]), -1.0)
    labels[nodes] = values
    source.set_labels(label_array(labels, path), path)


def _attach_columns(source: Imported, path: Path, options: ImportOptions, grow: bool) -> None:
    """Read a text or Parquet table."""
    table = open_columns(path)
    roles = label_roles(table, options)
    class_names = [table.names[k] for k in roles.values] if table.named else None
    source.readings.append(roles.described(table, "labels"))
    if len(roles.values) == 1:
        found = read_words(table, roles, source.names, "label", not_a_class)
        nodes = found.rows.nodes(source, grow)
        labels = np.full(source.n, "", object)
        labels[nodes] = np.array([*found.words, ""], object)[found.codes[:, 0]]
        source.set_classes(labels, path)
        return
    found = read_words(table, roles, source.names, "label", not_zero_or_one)
    numbers = np.array([ZEROS_AND_ONES[word.lower()] for word in found.words], np.int8)[found.codes]
    if (partly := (numbers < 0).any(axis=1) & ~(numbers < 0).all(axis=1)).any():
        where = partly_labelled(found.rows.place(int(np.flatnonzero(partly)[0])))
        raise UserError(f"{where}; label_column=NAME takes one column")
    nodes = found.rows.nodes(source, grow)
    rows = np.full((source.n, numbers.shape[1]), -1, np.int8)
    rows[nodes] = numbers
    source.set_labels(rows, path)
    source.class_names = class_names


def not_a_class(text: str) -> str | None:
    """Say what is wrong with a label: classes have names or whole numbers, and no fractions."""
    try:
        good = text.lower() in UNLABELLED or float(text).is_integer()
    except ValueError:
        return None
    return None if good else f"label {text[:40]!r} is not whole; expected a class"


def not_zero_or_one(text: str) -> str | None:
    """Say what is wrong with a label in one of several columns."""
    if text.lower() in ZEROS_AND_ONES:
        return None
    return f"label {text[:40]!r}; expected 0 or 1 in each label column"

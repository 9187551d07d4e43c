"""Labels from arrays, in memory or in files: a class of each node, or a row of zeros and ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import StoredArray, strings, window_of
from distgnn.store.importers.imported import HIGHEST_ID
from distgnn.store.importers.tables import StoredMatrix

Rows = Callable[[int, int], np.ndarray]


def zeros_and_ones(rows: Rows, shape: tuple[int, int], where: object) -> np.ndarray:
    """Convert rows to int8 (n, classes): 1, 0, or -1 in all of a row without labels.

    `rows(first, last)` gives some of them. UserError names the first node with something else.
    """
    labels = np.empty(shape, np.int8)
    step = max(1, LIMITS.row_bytes // (8 * max(shape[1], 1)))
    for first in range(0, shape[0], step):
        some = np.asarray(rows(first, min(first + step, shape[0])))
        missing = ~(some >= 0)  # also NaN
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
    """Say in errors that this node or row has a part of its labels."""
    return f"{node} has labels of some classes only; expected 0 or 1 for each, or -1 or nothing for all"


def whole_labels(values: np.ndarray, where: object) -> np.ndarray:
    """Convert numbers to int64 (n): the class of each node, -1 for NaN and below zero. UserError names the
    first node with a fraction."""
    values = values.astype(np.float64) if values.dtype.kind == "f" else values
    values = np.where(values >= 0, values, -1)  # also NaN
    bad = ~(values <= HIGHEST_ID) | (values != np.rint(values))
    if bad.any():
        node = int(np.flatnonzero(bad)[0])
        raise UserError(f"{where}: node {node} has label {values[node]}; expected a whole number")
    return values.astype(np.int64)


def label_array(array: StoredArray | np.ndarray, where: object) -> np.ndarray:
    """Convert an array in memory or in a file to int64 (n), or to int8 (n, classes)."""
    shape = array.shape
    if len(shape) == 2 and shape[1] > 1:
        return zeros_and_ones(partial(window_of, array), (shape[0], shape[1]), where)
    if len(shape) != 1 and shape[1:] != (1,):
        raise UserError(f"{where}: labels have shape {shape}; expected (nodes) or (nodes, classes)")
    return whole_labels(window_of(array, 0, shape[0]).reshape(-1), where)


def stored_labels(stored: Any, where: object) -> np.ndarray:
    """Convert a matrix or an array, of numbers or of names (which become objects), to labels."""
    if isinstance(stored, StoredMatrix):
        rows = stored.rows()
        return zeros_and_ones(lambda lo, hi: rows.rows(np.arange(lo, hi)), stored.shape, where)
    if stored.dtype.kind not in "US":
        return label_array(stored, where)
    words = strings(stored.read(), where)
    return words[:, 0] if words.ndim == 2 and words.shape[1] == 1 else words

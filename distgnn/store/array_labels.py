"""Labels in arrays: classes as numbers, as text or as rows of 0 and 1, or numbers to predict."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.errors import ArgumentError, UserError
from distgnn.store.adapters import array, sparse
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.labels import label_array, set_values

_ROWS = "expected rows of 0 and 1, (nodes, classes), as scikit-learn's MultiLabelBinarizer makes them"


def values_of(y: Any, regression: bool) -> np.ndarray:
    """Return labels: text, as objects (n), int64 (n) or int8 (n, classes); or numbers to predict.

    Raises:
        ArgumentError: values of another kind, or of several.
    """
    y = sparse("y", y)
    if isinstance(y, (list, tuple)):
        _check_each(y)
        y = np.array(y, object) if any(isinstance(value, str) for value in y) else y
    values = y.toarray() if sp.issparse(y) else array("y", y)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.dtype.kind in "OUST" and values.ndim in (1, 2):
        values = _plain(values)
    return _numbers(values) if regression else _classes(values)


def take(source: Imported, values: np.ndarray) -> None:
    """Give a source its labels; ArgumentError for wrong ones, or none."""
    try:
        set_values(source, values, "y")
    except UserError as error:
        given, problem = f"{values.dtype} of shape {values.shape}", str(error).removeprefix("y: ")
        raise ArgumentError("y", given, problem) from None


def _check_each(y: Sequence[Any]) -> None:
    """Raise ArgumentError for a list of lists of text, or of several lengths."""
    several = [k for k, value in enumerate(y) if isinstance(value, (list, tuple, set, frozenset))]
    sets = [k for k in several if isinstance(y[k], (set, frozenset)) or len(y[k]) != len(y[several[0]])]
    if sets or any(isinstance(value, (str, bytes)) for k in several for value in y[k]):
        node = several[0]
        raise ArgumentError("y", type(y[node]).__name__, f"node {node} has several classes; {_ROWS}")


def _plain(values: np.ndarray) -> np.ndarray:
    """Convert objects to text, empty where there is none, or to numbers, NaN where there is none."""
    labels = [_one(node, value) for node, value in enumerate(values.reshape(-1).tolist())]
    texts = [node for node, value in enumerate(labels) if isinstance(value, str)]
    numbers = [node for node, value in enumerate(labels) if isinstance(value, (Real, np.bool_))]
    if texts and numbers:
        problem = f"node {numbers[0]} has a number, others have text; expected one kind"
        raise ArgumentError("y", labels[numbers[0]], problem)
    if len(texts) + len(numbers) + labels.count(None) < len(labels):
        known = (Real, np.bool_, str, type(None))
        node = next(node for node, value in enumerate(labels) if not isinstance(value, known))
        several = isinstance(labels[node], (list, tuple, set, frozenset, np.ndarray))
        problem = f"has several classes; {_ROWS}" if several else "has no class; expected a number or text"
        raise ArgumentError("y", type(labels[node]).__name__, f"node {node} {problem}")
    if texts and values.ndim == 2:
        raise ArgumentError("y", f"{values.dtype} of shape {values.shape}", f"has text in rows; {_ROWS}")
    missing = "" if texts or values.dtype.kind in "UST" else np.nan
    made = [missing if value is None else value for value in labels]
    return np.array(made, object if missing == "" else np.float64).reshape(values.shape)


def _one(node: int, value: Any) -> Any:
    """Return a label as it is, decoded, or None where there is none: None, NaN, or pandas' NA and NaT."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ArgumentError("y", value, f"node {node} is no text in UTF-8") from None
    absent = value is None or type(value).__name__ in ("NAType", "NaTType")
    return None if absent or (isinstance(value, float) and value != value) else value


def _numbers(values: np.ndarray) -> np.ndarray:
    """Check numbers to predict, (n) or (n, columns)."""
    if values.ndim not in (1, 2) or values.dtype.kind not in "biuf":
        given = f"{values.dtype} of shape {values.shape}"
        raise ArgumentError("y", given, "expected a number for each node, or a row of some")
    return values


def _classes(values: np.ndarray) -> np.ndarray:
    """Check classes, text or numbers."""
    given = f"{values.dtype} of shape {values.shape}"
    if values.dtype == object:
        return values
    if values.ndim not in (1, 2) or values.dtype.kind not in "biuf" or 0 in values.shape[1:]:
        raise ArgumentError("y", given, "expected a class for each node, a whole number, or a row of 0 and 1")
    if values.ndim == 2:
        try:
            return label_array(values, "y")
        except UserError as error:
            raise ArgumentError("y", given, str(error)) from None
    if values.dtype.kind == "f":
        if (infinite := np.flatnonzero(np.isinf(values))).size:
            problem = f"is the label of node {infinite[0]}; expected a class, a whole number, or NaN for none"
            raise ArgumentError("y", values[infinite[0]], problem)
        values = np.where(np.isnan(values), -1, values)
        if not (values == np.rint(values)).all():
            expected = "expected whole numbers; regression=True, of fit loss=mse, predicts numbers"
            raise ArgumentError("y", "numbers with fractions", f"are no classes; {expected}")
    return values.astype(np.int64)

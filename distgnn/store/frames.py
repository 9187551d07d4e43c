"""Tables of pandas by their columns and indices: edges, features, labels and parts.

edges  the columns called source and target, src and dst, from and to, among others; else the first two of
       two, or of three where the third has numbers: weights, which `weights=True` takes
nodes  rows are nodes. A column of X called id or node, among others, or an index that is not 0..n-1, has ids,
       by which labels and parts find their rows; nodes without a label or part have none
X      all other columns, which are numbers, but those that are y or split; the store keeps their names

Tables of pyarrow, polars and others that have a method `to_pandas` are taken by it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError, did_you_mean
from distgnn.store.adapters import Given, array
from distgnn.store.importers.imported import LABEL_NAMES
from distgnn.store.importers.names import fractions
from distgnn.store.importers.roles import ENDS, WEIGHT_NAMES
from distgnn.store.importers.table import ID_NAMES

UNNAMED = "unnamed: "  # how pandas calls the column of an index in a file
_TABLES = ("graph", "X", "y", "split")


def is_table(given: Any) -> bool:
    """Tell whether this is a table or a column of pandas."""
    return hasattr(given, "iloc") and hasattr(given, "index")


def of_tables(given: Given) -> Given:
    """Take the arrays out of tables of pandas; anything else stays as it is.

    Raises:
        ArgumentError: columns that cannot be told, that hold no numbers, or rows of nodes that X has not.
    """
    given = replace(given, **{name: _as_table(name, getattr(given, name)) for name in _TABLES})
    if is_table(given.graph):
        given = _of_edges(given)
    X, nodes = given.X, {"y": given.y, "split": given.split}
    if is_table(X) and isinstance(given.y, str):
        nodes["y"] = _column(X, given.y)
    tables = {name: table for name, table in nodes.items() if is_table(table)}
    index = X.index if is_table(X) else next((table.index for table in tables.values()), None)
    if index is None:
        return given
    ids = given.ids if _plain(index) or given.ids is not None else index.to_numpy()
    nodes |= {name: _in_order(name, table, index) for name, table in tables.items()}
    if is_table(X):
        X, ids = _features(X, ids, [table.name for table in tables.values() if table.ndim == 1])
        named = all(isinstance(name, str) for name in X.columns)
        given = replace(given, feature_names=[*X.columns] if named else None)
        X = X.to_numpy(np.float64, na_value=np.nan)
    return replace(given, X=X, ids=ids, **nodes)


def _as_table(name: str, given: Any) -> Any:
    """Return a table of another library as one of pandas, and anything else as it is."""
    if is_table(given) or not hasattr(given, "to_pandas"):
        return given
    try:
        return given.to_pandas()
    except ImportError as error:
        raise ArgumentError(name, type(given).__name__, f"cannot be read: {error}; pass arrays") from None


def _of_edges(given: Given) -> Given:
    """Take the ends and the weights out of the columns of a table."""
    table = _without_index(given.graph)
    called = {str(name).lower(): k for k, name in enumerate(table.columns)}
    pairs = [(called[a], called[b]) for a, b in ENDS if a in called and b in called]
    numbers = len(table.columns) == 3 and table.dtypes.iloc[2].kind in "iuf"
    if len(pairs) != 1 and len(table.columns) != 2 and not numbers:
        expected = "cannot tell the ends of edges; pass graph[[SOURCE, TARGET]]"
        raise ArgumentError("graph", f"columns {_listed(table)}", expected)
    if len(pairs) != 1:
        _check_columns(table)
    places = pairs[0] if len(pairs) == 1 else (0, 1)
    ends = [table.iloc[:, place] for place in places]
    for end in ends:
        if (empty := end.isna().to_numpy()).any():
            row = int(np.flatnonzero(empty)[0])
            raise ArgumentError("graph", f"column {end.name}", f"row {row} is empty; expected a node")
    graph = np.stack([_ids("graph", end) for end in ends])
    if not given.wants_weights:
        return replace(given, graph=graph)
    weights = [called[name] for name in WEIGHT_NAMES if name in called] or ([2] if numbers else [])
    if not weights:
        problem = f"no column is called weight among {_listed(table)}; pass weights=graph[NAME]"
        raise ArgumentError("weights", True, problem)
    return replace(given, graph=graph, weights=table.iloc[:, weights[0]].to_numpy())


def _check_columns(table: Any) -> None:
    """Raise ArgumentError for a table of labels, and for a first column that may be an index."""
    first, second = (str(name).lower() for name in table.columns[:2])
    if first in ID_NAMES and second in LABEL_NAMES:
        problem = "are those of a table of labels: pass it as y"
        raise ArgumentError("graph", f"columns {first} and {second}", problem)
    if len(table.columns) == 3 and all(dtype.kind in "iu" for dtype in table.dtypes):
        rows, last = table.iloc[:, 0].to_numpy(), table.iloc[:, 2]
        if len(rows) > 2 and rows[0] in (0, 1) and (np.diff(rows) == 1).all() and last.nunique() > 1:
            problem = "runs as row numbers do, so that it may be an index; pass graph[[SOURCE, TARGET]]"
            raise ArgumentError("graph", f"column {table.columns[0]}", problem)


def _features(X: Any, ids: Any, others: list[Any]) -> tuple[Any, Any]:
    """Return the columns of numbers, and the ids of a column that has them, unless there are some."""
    X = _without_index(X.to_frame() if X.ndim == 1 else X)
    X = X[[name for name in X.columns if name not in others]]
    named = [name for name in X.columns if str(name).lower() in ID_NAMES]
    if named:
        ids = _ids("X", X[named[0]]) if ids is None else ids
        X = X[[name for name in X.columns if name not in named]]
    for name, dtype in X.dtypes.items():
        if dtype.kind not in "biuf":
            advice = "leave it out, or pass pandas.get_dummies(X)"
            raise ArgumentError("X", f"column {name}", f"holds {dtype}, no numbers; {advice}")
    return X, ids


def _ids(argument: str, column: Any) -> np.ndarray:
    """Return ids, which pandas made floats if one was missing at some time."""
    ids = array(argument, column.to_numpy())
    if ids.dtype.kind != "f":
        return ids
    if (wrong := fractions(ids)).any():
        row = int(np.argmax(wrong))
        problem = f"row {row} is {ids[row]}; expected a node, a whole number"
        raise ArgumentError(argument, f"column {column.name}", problem)
    return ids.astype(np.int64)


def _in_order(name: str, table: Any, index: Any) -> Any:
    """Return the rows in the order of the nodes, as an array; those that are missing are empty."""
    if not table.index.equals(index) and not (_plain(table.index) and len(table) == len(index)):
        unknown = table.index.difference(index)
        if len(unknown) or not (index.is_unique and table.index.is_unique):
            problem = "is listed twice in an index" if not len(unknown) else "is no node of X, by its index"
            raise ArgumentError(name, f"row {unknown[0] if len(unknown) else 'labels'}", problem)
        table = table.reindex(index)
    return table.to_numpy()


def _column(X: Any, name: str) -> Any:
    """Return the column of this name."""
    if name not in X.columns:
        near = did_you_mean(name, X.columns)
        raise ArgumentError("y", name, f"is no column of X, which has {_listed(X)}{near}")
    return X[name]


def _without_index(table: Any) -> Any:
    """Leave out a first column without a name."""
    first = str(table.columns[0]).lower() if len(table.columns) > 1 else ""
    return table.iloc[:, 1:] if first.startswith(UNNAMED) else table


def _plain(index: Any) -> bool:
    """Tell whether rows are numbered from 0."""
    return index.nlevels == 1 and np.array_equal(index.to_numpy(), np.arange(len(index)))


def _listed(table: Any) -> str:
    return ", ".join(map(str, table.columns))

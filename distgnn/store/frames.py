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
    rows = X.index if is_table(X) else next((table.index for table in tables.values()), None)
    if rows is None:
        return given
    by_id = _id_column(X) if is_table(X) else None
    nodes |= {name: _in_order(name, table, rows, by_id) for name, table in tables.items()}
    index = rows if by_id is None else by_id
    ids = given.ids if given.ids is not None or _plain(index) else index.to_numpy()
    if is_table(X):
        X = _features(X, {table.name: nodes[name] for name, table in tables.items() if table.ndim == 1})
        named = X.columns.is_unique and all(isinstance(name, str) for name in X.columns)
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


def _features(X: Any, others: dict[Any, np.ndarray]) -> Any:
    """Return the columns of numbers, without ids and without the columns that are labels or parts.

    A column of the name of labels is these; one that has a number for a name only if it holds them.
    """
    X = _without_index(X.to_frame() if X.ndim == 1 else X)
    kept, rows = np.ones(len(X.columns), bool), X.index
    for k, name in enumerate(X.columns):
        column = X.iloc[:, k]
        same = name in others and (isinstance(name, str) or column.equals(type(column)(others[name], rows)))
        kept[k] = not same and str(name).lower() not in ID_NAMES
    X = X.loc[:, kept]
    for name, dtype in zip(X.columns, X.dtypes, strict=True):
        if dtype.kind not in "biuf":
            advice = "leave it out, or pass pandas.get_dummies(X)"
            raise ArgumentError("X", f"column {name}", f"holds {dtype}, no numbers; {advice}")
    return X


def _id_column(X: Any) -> Any:
    """Return the index of a column of ids, or None."""
    named = [k for k, name in enumerate(X.columns) if str(name).lower() in ID_NAMES] if X.ndim == 2 else []
    return X.set_index(_ids("X", X.iloc[:, named[0]])).index if named else None


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


def _in_order(name: str, table: Any, rows: Any, ids: Any) -> Any:
    """Return the rows in the order of the nodes, as an array; those that are missing are empty.

    Rows with the index of X are in its order. Others are found by ids: an index that is called as one, or not
    that of X. An index that has none of them and counts from 0 stands for none.
    """
    called = ids is not None and str(table.index.name).lower() in ID_NAMES
    index = ids if ids is not None and (called or not table.index.equals(rows)) else rows
    alike = _plain(table.index) and len(table) == len(index) and not table.index.isin(index).any()
    if not table.index.equals(index) and not alike:
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

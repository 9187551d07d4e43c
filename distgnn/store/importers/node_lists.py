"""Lists of all nodes in their order: tables with a column of ids, or arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import integers, open_npy, strings
from distgnn.store.importers.columns import ID_NAMES
from distgnn.store.importers.names import Names, check_once, encoded
from distgnn.store.importers.node_table import open_columns, read_words
from distgnn.store.importers.roles import Roles, id_role
from distgnn.store.importers.text import TextColumns
from distgnn.store.source import ImportOptions


def read_nodes(path: Path, options: ImportOptions, kind: str, ends: Callable[[], np.ndarray]) -> Names:
    """Read the ids of all nodes, of this kind (integers or text), in the order of the file.

    A first line of words is a header unless it is one of the `ends` of edges. A .npy holds only ids.
    """
    if path.name.lower().endswith(".npy"):
        return _array(path, kind)
    table = open_columns(path)
    if isinstance(table, TextColumns) and table.delimiter is None and ".csv" in path.name.lower():
        table.take_whole_lines()
    if not table.names:
        raise UserError(f"{path}: 0 column; expected node ids")
    column, known = id_role(table, options), np.zeros(0, "S1" if kind == "text" else np.int64)
    if kind == "text" and isinstance(table, TextColumns) and table.named:
        if table.names[column].lower() not in (*ID_NAMES, options.id_column):
            known = ends()
    rows = read_words(table, Roles(column, []), Names(known, path), "").rows
    try:
        return Names(rows.ids, path)
    except ValueError:
        check_once(np.unique(rows.ids, return_inverse=True)[1], rows.ids, rows.place)
        raise


def _array(path: Path, kind: str) -> Names:
    """Read ids of this kind from an array of integers or strings."""
    array = open_npy(path, "iuUS")
    if len(array.shape) != 1:
        raise UserError(f"{path}: node ids have shape {array.shape}; expected (nodes)")
    ids, words = array.read(), array.dtype.kind in "US"
    if words and kind != "text":
        raise UserError(f"{path}: holds strings; expected node ids that are integers, or ids=text")
    try:
        listed = strings(ids, path).tolist() if words else map(str, ids.tolist())
        return Names(encoded(listed) if kind == "text" else integers(ids, str(path)), path)
    except ValueError as error:
        raise UserError(f"{path}: no list of nodes ({error})") from None

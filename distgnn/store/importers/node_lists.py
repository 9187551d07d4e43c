"""Lists of all nodes in their order: tables with a column of ids, or arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import integers, open_npy, strings
from distgnn.store.importers.names import Names, check_once, encoded
from distgnn.store.importers.node_table import read_ids
from distgnn.store.importers.roles import id_role
from distgnn.store.importers.table import ID_NAMES
from distgnn.store.importers.table_files import open_table
from distgnn.store.source import ImportOptions


def read_nodes(path: Path, options: ImportOptions, words: bool, ends: Callable[[], np.ndarray]) -> Names:
    """Read the ids of all nodes, words or whole numbers, in the order of the file.

    A first line of words is a header unless it is one of the `ends` of edges. A .npy holds only ids.
    """
    if path.name.lower().endswith(".npy"):
        return _array(path, words)
    table = open_table(path, options, whole_lines=".csv" in path.name.lower())
    if not table.names:
        raise UserError(f"{path}: 0 column; expected node ids")
    column, known = id_role(table, options), np.zeros(0, "S1" if words else np.int64)
    if words and table.named and table.names[column].lower() not in (*ID_NAMES, options.id_column):
        known = ends()
    ids = read_ids(table, column, Names(known, path))
    try:
        return Names(ids, path)
    except ValueError:
        check_once(np.unique(ids, return_inverse=True)[1], ids, table.place)
        raise


def _array(path: Path, words: bool) -> Names:
    """Read ids from an array of integers or strings."""
    array = open_npy(path, "iuUS")
    if len(array.shape) != 1:
        raise UserError(f"{path}: node ids have shape {array.shape}; expected (nodes)")
    ids, strings_ = array.read(), array.dtype.kind in "US"
    if strings_ and not words:
        raise UserError(f"{path}: holds strings; expected node ids that are integers, or ids=text")
    try:
        listed = strings(ids, path).tolist() if strings_ else map(str, ids.tolist())
        return Names(encoded(listed) if words else integers(ids, str(path)), path)
    except ValueError as error:
        raise UserError(f"{path}: no list of nodes ({error})") from None

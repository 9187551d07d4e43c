"""Feature tables: rows by node id, from a dense array in a file or from sparse rows in memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import StoredArray, integers, rows_of

Array = StoredArray | np.ndarray


class Features(Protocol):
    """`nodes`: ids 0..nodes-1 have rows; `complete`: the table says that there are exactly so many nodes."""

    nodes: int
    width: int
    complete: bool

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """float32 (len(ids), width)."""
        ...


def finite(rows: np.ndarray, ids: np.ndarray, path: object) -> np.ndarray:
    """The rows as float32; UserError names the first node with a NaN or infinity, also beyond float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.ascontiguousarray(rows, np.float32)
    if not np.isfinite(rows.sum(dtype=np.float64)) and not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        found = f"feature {column} of node {ids[row]} is {rows[row, column]}"
        raise UserError(f"{path}: {found}; expected finite numbers")
    return rows


class DenseRows:
    """Rows of an array in a file. `places[id]` is the row of a node (-1: all zero), by default its id."""

    def __init__(self, array: StoredArray, path: object, places: np.ndarray | None = None):
        if len(array.shape) != 2:
            raise UserError(f"{path}: features have shape {array.shape}, expected (nodes, width)")
        self.array, self.path, self.places = array, path, places
        self.complete = places is None
        self.nodes = array.shape[0] if places is None else len(places)
        self.width = array.shape[1]

    def rows(self, ids: np.ndarray) -> np.ndarray:
        if self.places is None:
            return finite(self.array.rows(ids), ids, self.path)
        known = ids < self.nodes
        places = np.full(len(ids), -1, np.int64)
        places[known] = self.places[ids[known]]
        rows = np.zeros((len(ids), self.width), np.float32)
        have = places >= 0
        rows[have] = finite(self.array.rows(places[have]), ids[have], self.path)
        return rows


class SparseRows:
    """Rows in compressed sparse form; nodes at and beyond `nodes` have none. `data` None: all ones. UserError
    where the arrays are no matrix of this shape."""

    def __init__(
        self, indptr: np.ndarray, indices: Array, data: Array | None, width: int, path: object,
        complete: bool = True,
    ):  # fmt: skip
        self.nodes, self.width, self.path, self.complete = len(indptr) - 1, width, path, complete
        self.indptr, self.indices, self.data = check_pointers(indptr, len(indices), path), indices, data
        if data is not None and len(data) != len(indices):
            raise UserError(f"{path}: {len(data)} values for {len(indices)} column indices, expected as many")

    def rows(self, ids: np.ndarray) -> np.ndarray:
        starts, counts = np.zeros((2, len(ids)), np.int64)
        known = ids < self.nodes
        starts[known] = self.indptr[ids[known]]
        counts[known] = self.indptr[ids[known] + 1] - starts[known]
        owner = np.repeat(np.arange(len(ids)), counts)
        first = np.cumsum(counts) - counts
        entries = starts[owner] + np.arange(len(owner)) - first[owner]
        columns = integers(rows_of(self.indices, entries), f"{self.path}: column indices")
        if len(columns) and (columns.min() < 0 or columns.max() >= self.width):
            raise UserError(f"{self.path}: a feature column lies outside 0..{self.width - 1}")
        rows = np.zeros((len(ids), self.width), np.float64 if self.data is not None else np.float32)
        if self.data is None:
            rows[owner, columns] = 1
        else:
            np.add.at(rows, (owner, columns), rows_of(self.data, entries))
        return finite(rows, ids, self.path)


def check_pointers(indptr: np.ndarray, entries: int, path: object) -> np.ndarray:
    """The row pointers of a compressed matrix as int64, checked: from 0, never falling, up to the entries."""
    indptr = integers(indptr, f"{path}: row pointers")
    if not len(indptr) or indptr[0] != 0 or indptr[-1] != entries or np.any(np.diff(indptr) < 0):
        raise UserError(f"{path}: row pointers do not rise from 0 to {entries}, the number of entries")
    return indptr

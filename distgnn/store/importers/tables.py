"""Tables of features, and matrices in .npz archives (CSR, CSC, COO), read by rows or streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Npz, StoredArray, integers, rows_of

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

    complete = True

    def __init__(self, indptr: np.ndarray, indices: Array, data: Array | None, width: int, path: object):
        self.nodes, self.width, self.path = len(indptr) - 1, width, path
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


Entries = Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]


class StoredMatrix:
    """A sparse matrix in `archive`: its arrays are `prefix` + data, indices, indptr, row, col, shape."""

    def __init__(self, archive: Npz, kind: str, prefix: str = ""):
        self.archive, self.kind, self.prefix = archive, kind, prefix
        self.where = f"{archive.path}, {prefix}*" if prefix else str(archive.path)
        if kind not in ("csr", "csc", "coo"):
            raise UserError(f"{self.where}: a matrix in format {kind!r}; expected csr, csc or coo")
        shape = archive.integers(f"{prefix}shape").ravel()
        if len(shape) != 2:
            raise UserError(f"{self.where}: shape {tuple(shape)}; expected a matrix")
        self.shape = (int(shape[0]), int(shape[1]))
        self.entries = archive.header(f"{prefix}data").size
        for part in ("row", "col") if kind == "coo" else ("indices",):
            size = archive.header(prefix + part).size
            if size != self.entries:
                raise UserError(f"{self.where}: {size} {part} for {self.entries} values")

    def square(self) -> int:
        """The number of nodes; UserError where rows and columns differ."""
        return check_square(*self.shape, self.where)

    def rows(self) -> SparseRows:
        """The rows of a CSR matrix: pointers in memory, entries in the file."""
        indices, data = (self.archive.stored(self.prefix + part) for part in ("indices", "data"))
        return SparseRows(self._pointers(), indices, data, self.shape[1], self.where)

    def __iter__(self) -> Entries:
        """Yield (row int64[k], column int64[k], value[k])."""
        if self.kind == "coo":
            for row, column, value in zip(*map(self._member, ("row", "col", "data")), strict=True):
                yield integers(row, self.where), integers(column, self.where), value
            return
        pointers, begin = self._pointers(), 0
        for indices, value in zip(self._member("indices"), self._member("data"), strict=True):
            major, minor = owners(pointers, begin, begin + len(indices)), integers(indices, self.where)
            begin += len(indices)
            yield (major, minor, value) if self.kind == "csr" else (minor, major, value)

    def _member(self, part: str) -> Iterator[np.ndarray]:
        return self.archive.stream(self.prefix + part, 0, self.entries)

    def _pointers(self) -> np.ndarray:
        rows, indptr = self.shape[self.kind == "csc"], self.archive.read(f"{self.prefix}indptr")
        if len(indptr) != rows + 1:
            found = f"{len(indptr)} row pointers for {rows} rows"
            raise UserError(f"{self.where}: {found}; expected one more than rows")
        return check_pointers(indptr, self.entries, self.where)


def check_square(rows: int, columns: int, where: object) -> int:
    if rows != columns:
        needs = "a graph needs as many rows as columns"
        raise UserError(f"{where}: the matrix is {rows} x {columns}; {needs}")
    return rows


def owners(indptr: np.ndarray, lo: int, hi: int) -> np.ndarray:
    """The rows to which entries lo..hi-1 of a compressed matrix belong."""
    if lo == hi:
        return np.zeros(0, np.int64)
    first = int(np.searchsorted(indptr, lo, side="right")) - 1
    last = int(np.searchsorted(indptr, hi - 1, side="right")) - 1
    counts = np.diff(indptr[first : last + 2].clip(lo, hi))
    return np.repeat(np.arange(first, last + 1), counts)

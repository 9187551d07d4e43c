"""Sparse matrices inside .npz archives (CSR, CSC, COO), streamed entry by entry."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import Npz, integers
from distgnn.store.importers.tables import SparseRows, check_pointers

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
        rows, columns = self.shape
        if rows != columns:
            needs = "a graph needs as many rows as columns"
            raise UserError(f"{self.where}: the matrix is {rows} x {columns}; {needs}")
        return rows

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


def owners(indptr: np.ndarray, lo: int, hi: int) -> np.ndarray:
    """The rows to which entries lo..hi-1 of a compressed matrix belong."""
    if lo == hi:
        return np.zeros(0, np.int64)
    first = int(np.searchsorted(indptr, lo, side="right")) - 1
    last = int(np.searchsorted(indptr, hi - 1, side="right")) - 1
    counts = np.diff(indptr[first : last + 2].clip(lo, hi))
    return np.repeat(np.arange(first, last + 1), counts)

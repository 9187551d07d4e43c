"""Sparse matrices inside .npz archives (CSR, CSC, COO), streamed entry by entry."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.arrays import CHUNK, Npz, integers
from distgnn.store.importers.tables import check_pointers

Entries = Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]


class StoredMatrix:
    """A sparse matrix whose arrays lie in `archive` under `prefix` + data, indices, indptr, row, col, shape."""

    def __init__(self, archive: Npz, kind: str, prefix: str = ""):
        self.archive, self.kind, self.prefix = archive, kind, prefix
        self.where = f"{archive.path}, {prefix}*" if prefix else str(archive.path)
        if kind not in ("csr", "csc", "coo"):
            raise UserError(f"{self.where}: a matrix in format {kind!r}; expected csr, csc or coo")
        shape = integers(archive.read(f"{prefix}shape"), self.where).ravel()
        if len(shape) != 2:
            raise UserError(f"{self.where}: shape {tuple(shape)}; expected a matrix")
        self.shape = (int(shape[0]), int(shape[1]))
        parts = ("row", "col") if kind == "coo" else ("indices",)
        self.entries = archive.header(f"{prefix}data").size
        for part in parts:
            if archive.header(prefix + part).size != self.entries:
                raise UserError(
                    f"{self.where}: {archive.header(prefix + part).size} {part} for {self.entries} values"
                )

    def square(self) -> int:
        """The number of nodes; UserError where rows and columns differ."""
        if self.shape[0] != self.shape[1]:
            raise UserError(
                f"{self.where}: the matrix is {self.shape[0]} x {self.shape[1]}; "
                "a graph needs as many rows as columns"
            )
        return self.shape[0]

    def _member(self, part: str) -> Iterator[np.ndarray]:
        return self.archive.stream(self.prefix + part, 0, self.entries)

    def __iter__(self) -> Entries:
        """Yield (row int64[k], column int64[k], value[k])."""
        if self.kind == "coo":
            for row, column, value in zip(
                self._member("row"), self._member("col"), self._member("data"), strict=True
            ):
                yield integers(row, self.where), integers(column, self.where), value
            return
        major = self.shape[0] if self.kind == "csr" else self.shape[1]
        indptr = check_pointers(self.archive.read(f"{self.prefix}indptr"), self.entries, self.where)
        if len(indptr) != major + 1:
            raise UserError(
                f"{self.where}: {len(indptr)} row pointers for {major} rows; expected one more than rows"
            )
        for k, (indices, value) in enumerate(zip(self._member("indices"), self._member("data"), strict=True)):
            owner = owners(indptr, k * CHUNK, k * CHUNK + len(indices))
            minor = integers(indices, self.where)
            yield (owner, minor, value) if self.kind == "csr" else (minor, owner, value)


def owners(indptr: np.ndarray, lo: int, hi: int) -> np.ndarray:
    """The rows to which entries lo..hi-1 of a compressed matrix belong."""
    if lo == hi:
        return np.zeros(0, np.int64)
    first = int(np.searchsorted(indptr, lo, side="right")) - 1
    last = int(np.searchsorted(indptr, hi - 1, side="right")) - 1
    counts = np.diff(indptr[first : last + 2].clip(lo, hi))
    return np.repeat(np.arange(first, last + 1), counts)

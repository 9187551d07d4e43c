"""Tables of features, and matrices in .npz archives (CSR, CSC, COO), read by rows or streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.backend import module
from distgnn.errors import UserError
from distgnn.store.importers.arrays import Npz, StoredArray, indices, integers, pointers, rows_of
from distgnn.store.importers.files import check_declared

Array = StoredArray | np.ndarray


class FeatureRows(Protocol):
    """Rows of features for nodes 0..nodes-1. `listed`: the nodes that have a row, None for all."""

    nodes: int
    width: int
    listed: np.ndarray | None

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return float32 (len(ids), width), zeros for a node without a row."""
        ...


Place = Callable[[int], str]  # names the place of the k-th number


def finite(rows: np.ndarray, ids: np.ndarray, path: object, kind: Any = np.float32) -> np.ndarray:
    """Convert rows to `kind`; the UserError for a NaN, infinity or number beyond that names the node."""
    width = max(1, rows.shape[1])
    return _finite(rows, lambda k: f"feature {k % width} of node {ids[k // width]}", path, kind)


def _finite(numbers: np.ndarray, place: Place, path: object, kind: Any) -> np.ndarray:
    """Convert numbers to `kind`; raise UserError for one that is not finite, or that `kind` would change."""
    if numbers.dtype.kind in "iu":
        _check_whole(numbers, place, path, np.dtype(kind))
    xp = module(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = xp.ascontiguousarray(numbers, kind)
        total = float(numbers.sum(dtype=np.float64))
    if not np.isfinite(total) and not (known := xp.isfinite(numbers)).all():
        bad = int(known.argmin())
        raise UserError(f"{path}: {place(bad)} is {numbers.reshape(-1)[bad]}; expected finite numbers")
    return numbers


def _check_whole(numbers: np.ndarray, place: Place, path: object, kind: np.dtype) -> None:
    """Raise UserError for a whole number that `kind` would change."""
    if numbers.size and max(int(numbers.max()), -int(numbers.min())) > 2 << np.finfo(kind).nmant:
        with np.errstate(invalid="ignore"):
            changed = numbers.astype(kind).astype(numbers.dtype) != numbers
        if changed.any():
            bad = int(changed.argmax())
            problem = f"{place(bad)} is {numbers.reshape(-1)[bad]}, which {kind} cannot hold"
            raise UserError(f"{path}: {problem}; give shorter numbers, or floating-point ones to be rounded")


class DenseRows:
    """Features in an array in a file. `places[id]` is the row of a node (-1: none), by default its id.

    `fill`: numbers, one for each column, that stand for NaN; `names`: of the columns, where they have some.
    """

    names: list[str] | None = None

    def __init__(
        self, array: Array, path: object, places: np.ndarray | None = None, fill: np.ndarray | None = None
    ) -> None:  # fmt: skip
        if len(array.shape) != 2:
            raise UserError(f"{path}: features have shape {array.shape}, expected (nodes, width)")
        self.array, self.path, self.places = array, path, places
        self.listed = None if places is None else np.flatnonzero(places >= 0)
        self.nodes = array.shape[0] if places is None else len(places)
        self.width, self.fill = array.shape[1], fill

    def _rows(self, places: np.ndarray, ids: np.ndarray) -> np.ndarray:
        rows = rows_of(self.array, places)
        return finite(
            rows if self.fill is None else np.where(np.isnan(rows), self.fill, rows), ids, self.path
        )

    def rows(self, ids: np.ndarray) -> np.ndarray:
        if self.places is None:
            return self._rows(ids, ids)
        known = ids < self.nodes
        places = np.full(len(ids), -1, np.int64)
        places[known] = self.places[ids[known]]
        rows = np.zeros((len(ids), self.width), np.float32)
        have = places >= 0
        rows[have] = self._rows(places[have], ids[have])
        return rows


class SparseRows:
    """Sparse features: row i is the entries starts[i]..ends[i]-1 of `columns` and `data` (None: all ones).

    Nodes at and beyond `nodes` have none. Reading raises UserError for entries outside the matrix, that come
    twice, or that are not finite. `entries`: how many are listed; `kind`: of the numbers that are read.
    """

    listed: np.ndarray | None = None
    names: list[str] | None = None
    kind = np.dtype(np.float32)

    def __init__(
        self,
        starts: np.ndarray,
        ends: np.ndarray,
        columns: Array,
        data: Array | None,
        width: int,
        path: object,
    ):
        self.starts, self.ends, self.columns, self.data = starts, ends, columns, data
        self.nodes, self.width, self.path = len(starts), width, path
        self.entries = int((ends - starts).sum())
        if data is not None and len(data) != len(columns):
            raise UserError(f"{path}: {len(data)} values for {len(columns)} column indices, expected as many")

    @classmethod
    def compressed(
        cls, indptr: np.ndarray, columns: Array, data: Array | None, shape: tuple[int, int], path: object
    ) -> SparseRows:
        """Open the rows of a CSR matrix."""
        indptr = pointers(indptr, shape[0], len(columns), path)
        return cls(indptr[:-1], indptr[1:], columns, data, shape[1], path)

    @classmethod
    def of_entries(
        cls,
        rows: np.ndarray,
        columns: np.ndarray,
        data: np.ndarray | None,
        shape: tuple[int, int],
        path: object,
    ) -> SparseRows:
        """Return the rows of entries that are in any order."""
        rows = indices(rows, shape[0], path, "row")
        order = np.argsort(rows, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
        return cls.compressed(indptr, columns[order], None if data is None else data[order], shape, path)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        return self.sparse(ids).toarray()

    def sparse(self, ids: np.ndarray) -> sp.csr_array:
        """Return the rows of these nodes as CSR, sorted, each entry once and none of them 0."""
        starts, counts = np.zeros((2, len(ids)), np.int64)
        known = ids < self.nodes
        starts[known] = self.starts[ids[known]]
        counts[known] = self.ends[ids[known]] - starts[known]
        owner = np.repeat(np.arange(len(ids)), counts)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        entries = starts[owner] + np.arange(len(owner)) - indptr[owner]
        columns = integers(rows_of(self.columns, entries), f"{self.path}: feature columns")
        place = lambda k: f"feature {columns[k]} of node {ids[owner[k]]}"  # noqa: E731
        if len(outside := np.flatnonzero((columns < 0) | (columns >= self.width))):
            problem = f"{place(outside[0])} lies outside 0..{self.width - 1}"
            raise UserError(f"{self.path}: {problem}")
        data = np.ones(len(columns), self.kind)
        if self.data is not None:
            data = _finite(rows_of(self.data, entries), place, self.path, self.kind)
        matrix = sp.csr_array((data, columns, indptr), shape=(len(ids), self.width))
        matrix.sort_indices()
        columns = matrix.indices
        twice = (columns[1:] == columns[:-1]) & (owner[1:] == owner[:-1])
        if twice.any():
            raise UserError(f"{self.path}: {place(np.argmax(twice))} comes twice; expected it once")
        matrix.eliminate_zeros()
        return matrix


Entries = Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]


class StoredMatrix:
    """A sparse matrix in `archive`: its arrays are `prefix` + data, indices, indptr, row, col, shape."""

    def __init__(self, archive: Npz, kind: str, prefix: str = ""):
        self.archive, self.kind, self.prefix = archive, kind, prefix
        self.where = f"{archive.path}, {prefix}*" if prefix else str(archive.path)
        if kind not in ("csr", "csc", "coo"):
            raise UserError(f"{self.where}: a matrix in format {kind!r}; expected csr, csc or coo")
        shape = archive.integers(f"{prefix}shape").ravel()
        if len(shape) != 2 or shape.min() < 0:
            raise UserError(f"{self.where}: shape {tuple(shape)}; expected a matrix")
        self.shape = (int(shape[0]), int(shape[1]))
        check_declared(max(self.shape), archive.path, "rows or columns")
        self.entries = archive.header(f"{prefix}data").size
        for part in ("data", "row", "col") if kind == "coo" else ("data", "indices"):
            header = archive.header(prefix + part)
            if header.shape != (self.entries,):
                member = f"{header.size} {part} of shape {header.shape}"
                raise UserError(f"{self.where}: {member} for {self.entries} values")

    def square(self) -> int:
        """Return the number of nodes; UserError if rows and columns differ."""
        return check_square(*self.shape, self.where)

    def rows(self) -> SparseRows:
        """Open the rows, of a CSR matrix with entries in the file, of others in memory."""
        if self.kind == "csr":
            stored = [self.archive.stored(self.prefix + part) for part in ("indices", "data")]
            return SparseRows.compressed(self._indptr(), stored[0], stored[1], self.shape, self.where)
        none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        rows, columns, values = map(np.concatenate, zip(none, *self, strict=True))
        return SparseRows.of_entries(rows, columns, values, self.shape, self.where)

    def __iter__(self) -> Entries:
        """Yield (row int64[k], column int64[k], value[k]), ids not yet checked."""
        if self.kind == "coo":
            for row, column, value in zip(*map(self._member, ("row", "col", "data")), strict=True):
                yield integers(row, self.where), integers(column, self.where), value
            return
        indptr, begin = self._indptr(), 0
        for minor, value in zip(self._member("indices"), self._member("data"), strict=True):
            major, minor = owners(indptr, begin, begin + len(minor)), integers(minor, self.where)
            begin += len(minor)
            yield (major, minor, value) if self.kind == "csr" else (minor, major, value)

    def _member(self, part: str) -> Iterator[np.ndarray]:
        return self.archive.stream(self.prefix + part, 0, self.entries)

    def _indptr(self) -> np.ndarray:
        indptr = self.archive.read(f"{self.prefix}indptr")
        return pointers(indptr, self.shape[self.kind == "csc"], self.entries, self.where)


def check_square(rows: int, columns: int, where: object) -> int:
    """Return the number of nodes; UserError for a matrix that is not square."""
    if rows != columns:
        needs = "a graph needs as many rows as columns"
        raise UserError(f"{where}: the matrix is {rows} x {columns}; {needs}")
    return rows


def owners(indptr: np.ndarray, lo: int, hi: int) -> np.ndarray:
    """Find the rows to which entries lo..hi-1 of a compressed matrix belong."""
    if lo == hi:
        return np.zeros(0, np.int64)
    first = int(np.searchsorted(indptr, lo, side="right")) - 1
    last = int(np.searchsorted(indptr, hi - 1, side="right")) - 1
    counts = np.diff(indptr[first : last + 2].clip(lo, hi))
    return np.repeat(np.arange(first, last + 1), counts)

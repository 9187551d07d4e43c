"""Arrays with one row per node, read from files of consecutive rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from distgnn.arrays.csr import index_type
from distgnn.errors import UserError
from distgnn.layout import Range, partition
from distgnn.split import TEST
from distgnn.stages import followed
from distgnn.store.format import hdf5
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import Members
from distgnn.store.format.shards import overlaps
from distgnn.store.format.stored import StoredFile

if TYPE_CHECKING:
    from distgnn.comm.grid import Grid

#: Types of row pointers, column numbers and positions.
INDICES = (np.int32, np.int64)
#: By name and dimensions; the others are positions.
_TYPES = {
    ("labels", 1): np.int32, ("labels", 2): np.int8, ("split", 1): np.uint8,
    ("targets", 2): np.float32, ("ids", 1): np.int64, ("ids", 2): np.uint8,
}  # fmt: skip


class NodeFiles:
    """Arrays cut into files by a partition vector.

    `widths`: columns of two-dimensional ones, by name; `features`: the dtype of features.
    """

    def __init__(
        self, members: Members, partition: Sequence[int], files: Sequence[str],
        widths: Mapping[str, int] | None = None, features: Any = np.float32,
    ) -> None:  # fmt: skip
        self.members, self.files, self.widths = members, files, widths or {}
        self.partition = np.asarray(partition, np.int64)
        self._types: dict[Any, Any] = _TYPES | {("features", 2): features}

    def rows(self, name: str, rows: Range, cols: Range | None = None) -> np.ndarray:
        """Read rows `rows` (of columns `cols`) of an array."""
        result = self._empty(name, rows[1] - rows[0], cols)
        pieces = overlaps(self.partition, rows)
        for k, (lo, hi) in followed(pieces, f"load {name}", rows[1] - rows[0], "nodes", _length):
            window = _window(lo - self.partition[k], hi - self.partition[k], cols)
            with self.members.open(self.files[k]) as file:
                dataset = self._dataset(file, name, k, cols)
                hdf5.read_into(part := result[lo - rows[0] : hi - rows[0]], dataset, *window)
                self._check(name, k, part)
        return result

    def turns(self, name: str, ranks: int, cols: Range | None = None) -> list[np.ndarray]:
        """Return which rows each of so many ranks reads by turns: their first rows, and the ends of these.

        Whole chunks, in all about as many for each rank, and in a turn a chunk at least: an eighth of what a
        rank reads, but LIMITS.row_bytes at most, as it holds what it reads, sends and receives in a turn.
        """
        n, inner = int(self.partition[-1]), () if cols is None else (self.widths[name],)
        size = np.dtype(self._types.get((name, 1 + len(inner)), index_type(n))).itemsize
        ends = list(pairwise(self.partition.tolist()))
        most = self._most(name, inner, size, cols)
        shapes = [hdf5.chunk_shape((hi - lo, *inner), size, len(ends), most)[0] for lo, hi in ends]
        chunks = [np.arange(*end, rows) for end, rows in zip(ends, shapes, strict=True)]
        bounds = np.concatenate([*chunks, [n]])
        shares = partition(len(bounds) - 1, ranks)
        row = size * int(np.prod(inner))
        largest = max(int(np.diff(bounds).max(initial=1)) * row, 1)
        step = max(min(LIMITS.row_bytes, max(n * row // ranks // 8, 1 << 20)) // largest, 1)
        starts = range(0, max(int(np.diff(shares).max()), 1), step)
        return [
            bounds[np.minimum(np.stack([shares[:-1] + k, shares[:-1] + k + step]), shares[1:])]
            for k in starts
        ]

    def _most(self, name: str, inner: tuple[int, ...], size: int, cols: Range | None) -> int | None:
        """Return most bytes of a chunk, from the first file: None for those of this version."""
        rows = int(self.partition[1])
        with self.members.open(self.files[0]) as file:
            chunks = self._dataset(file, name, 0, cols).chunks
        now = hdf5.chunk_shape((rows, *inner), size, len(self.files))
        return None if chunks in (None, now) else LIMITS.past_chunk_bytes

    def gather(
        self, name: str, positions: np.ndarray, cols: Range | None = None, grid: Grid | None = None
    ) -> np.ndarray:
        """Read the rows at `positions`, in this order; from front to back, LIMITS.row_bytes at a time.

        With a grid, its ranks read together: see `together.gather`. Collective then.
        """
        if grid is not None and grid.size > 1:
            from distgnn.store.read import together  # with MPI

            return together.gather(grid, self, name, positions, cols)
        result = self._empty(name, len(positions), cols)
        step = max(1, LIMITS.row_bytes // max(1, result[:1].nbytes))
        arrangement = np.argsort(positions, kind="stable")
        ascending = positions[arrangement]
        n = int(self.partition[-1])
        pieces = overlaps(self.partition, (0, n))
        for k, (first, last) in followed(pieces, f"load {name}", n, "nodes", _length):
            with self.members.open(self.files[k]) as file:
                dataset = self._dataset(file, name, k, cols)
                for lo in range(first, last, step):
                    a, b = np.searchsorted(ascending, [lo, min(lo + step, last)])
                    if a < b:
                        start, stop = int(ascending[a]), int(ascending[b - 1]) + 1
                        rows = hdf5.read(dataset, *_window(start - first, stop - first, cols))
                        self._check(name, k, rows)
                        result[arrangement[a:b]] = rows[ascending[a:b] - start]
        return result

    def _dataset(self, file: StoredFile, name: str, k: int, cols: Range | None) -> h5py.Dataset:
        rows = int(self.partition[k + 1] - self.partition[k])
        shape = (rows,) if cols is None else (rows, self.widths[name])
        known = self._types.get((name, len(shape)))
        return file.array(name, shape, *(INDICES if known is None else (known,)))

    def _empty(self, name: str, rows: int, cols: Range | None) -> np.ndarray:
        shape = (rows,) if cols is None else (rows, cols[1] - cols[0])
        return np.empty(shape, self._types.get((name, len(shape)), np.int64))

    def _check(self, name: str, k: int, rows: np.ndarray) -> None:
        """Raise UserError for numbers that `prepare` never writes."""
        problem = _problem(name, rows, int(self.partition[-1]))
        if problem:
            path = self.members.root / self.files[k]
            raise UserError(f"{path}: {name} has {problem}; copy it or make it again")


def _length(part: tuple[int, Range]) -> int:
    return part[1][1] - part[1][0]


def _window(lo: int, hi: int, cols: Range | None) -> list[Range]:
    return [(lo, hi)] if cols is None else [(lo, hi), cols]


def _problem(name: str, rows: np.ndarray, n: int) -> str | None:
    """Describe what is wrong with rows of an array by node, and what is expected; None if nothing is."""
    most = {"permutation": n - 1, "inverse": n - 1, "split": TEST}.get(name)
    if most is not None and len(rows) and not 0 <= rows.min() <= rows.max() <= most:
        return f"{rows.min()}..{rows.max()}; expected 0..{most}"
    if name == "features" and not all_finite(rows):
        return "a number that is not finite; expected none"
    if name in ("labels", "targets") and rows.ndim == 2:
        missing = np.isnan(rows) if name == "targets" else rows == -1
        if np.any(missing.any(axis=1) != missing.all(axis=1)) or np.isinf(rows).any():
            return "a row with a part of its values; expected all of them or none"
    return None


def all_finite(numbers: np.ndarray) -> bool:
    """Tell whether there is no NaN and no infinity: then the sum, in float64, is finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = numbers.sum(dtype=np.float64)
    return bool(np.isfinite(total) or np.isfinite(numbers).all())


def check_window(what: str, window: Range, extent: int) -> None:
    """Raise ValueError unless a window lies within an extent."""
    if not 0 <= window[0] <= window[1] <= extent:
        raise ValueError(f"{what} {window[0]}..{window[1]} do not lie within 0..{extent}")


def check_partition(what: str, vector: np.ndarray, n: int) -> None:
    """Raise ValueError unless a vector cuts ``n`` nodes."""
    if not len(vector) or vector[0] != 0 or vector[-1] != n or np.any(np.diff(vector) < 0):
        shown = vector.tolist() if len(vector) < 9 else f"... {vector[-1]}"
        raise ValueError(f"{n} nodes, but {what} is cut at {shown}")

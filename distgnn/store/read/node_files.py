"""Arrays with one row per node, read from files of consecutive rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import h5py
import numpy as np

from distgnn.errors import UserError
from distgnn.layout import Range
from distgnn.stages import followed
from distgnn.store.format import hdf5, manifest
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import Members
from distgnn.store.format.shards import overlaps

#: By name and dimensions; the others are int64.
_TYPES = {
    ("features", 2): np.float32, ("labels", 1): np.int32, ("labels", 2): np.int8, ("split", 1): np.uint8,
    ("targets", 2): np.float32, ("ids", 2): np.uint8,
}  # fmt: skip


class NodeFiles:
    """Arrays cut into files by a partition vector; `widths`: columns of two-dimensional ones, by name."""

    def __init__(
        self, members: Members, partition: Sequence[int], files: Sequence[str],
        widths: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.members, self.files, self.widths = members, files, widths or {}
        self.partition = np.asarray(partition, np.int64)

    def rows(self, name: str, rows: Range, cols: Range | None = None) -> np.ndarray:
        """Read rows `rows` (of columns `cols`) of an array."""
        result = _empty(name, rows[1] - rows[0], cols)
        pieces = overlaps(self.partition, rows)
        for k, (lo, hi) in followed(pieces, f"load {name}", rows[1] - rows[0], "nodes", _length):
            window = _window(lo - self.partition[k], hi - self.partition[k], cols)
            with self.members.open(self.files[k]) as file:
                dataset = self._dataset(file, name, k, cols)
                hdf5.read_into(result[lo - rows[0] : hi - rows[0]], dataset, *window)
        return result

    def gather(self, name: str, positions: np.ndarray, cols: Range | None = None) -> np.ndarray:
        """Read the rows at `positions`, in this order; from front to back, LIMITS.row_bytes at a time."""
        result = _empty(name, len(positions), cols)
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
                        result[arrangement[a:b]] = rows[ascending[a:b] - start]
        return result

    def _dataset(self, file: h5py.File, name: str, k: int, cols: Range | None) -> h5py.Dataset:
        rows = int(self.partition[k + 1] - self.partition[k])
        return check_shape(file[name], (rows,) if cols is None else (rows, self.widths[name]))


def _length(part: tuple[int, Range]) -> int:
    return part[1][1] - part[1][0]


def _empty(name: str, rows: int, cols: Range | None) -> np.ndarray:
    shape = (rows,) if cols is None else (rows, cols[1] - cols[0])
    return np.empty(shape, _TYPES.get((name, len(shape)), np.int64))


def _window(lo: int, hi: int, cols: Range | None) -> list[Range]:
    return [(lo, hi)] if cols is None else [(lo, hi), cols]


def check_shape(dataset: h5py.Dataset, expected: tuple[int, ...]) -> h5py.Dataset:
    """Return the dataset; raise UserError for another shape."""
    if dataset.shape != expected:
        problem = f"{dataset.name[1:]} has shape {dataset.shape}, but {manifest.NAME} means {expected}"
        advice = "one of them was changed, copy or prepare the store again"
        raise UserError(f"{dataset.file.filename}: {problem}; {advice}")
    return dataset


def check_window(what: str, window: Range, extent: int) -> None:
    """Raise ValueError unless a window lies within an extent."""
    if not 0 <= window[0] <= window[1] <= extent:
        raise ValueError(f"{what} {window[0]}..{window[1]} do not lie within 0..{extent}")


def check_partition(what: str, vector: np.ndarray, n: int) -> None:
    """Raise ValueError unless a vector cuts ``n`` nodes."""
    if not len(vector) or vector[0] != 0 or vector[-1] != n or np.any(np.diff(vector) < 0):
        shown = vector.tolist() if len(vector) < 9 else f"... {vector[-1]}"
        raise ValueError(f"{n} nodes, but {what} is cut at {shown}")

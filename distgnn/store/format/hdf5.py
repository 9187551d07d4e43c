"""The HDF5 files of a store: explicit chunks, Fletcher-32, no locking, no compression; read by `stored`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import h5py
import numpy as np

from distgnn import ledger
from distgnn.arrays.blocking import rows_within
from distgnn.comm.interrupts import later
from distgnn.files.leftovers import AnyPath
from distgnn.layout import Range
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.steady import SteadyFile

CHUNK_COLUMNS = 128


def chunk_shape(
    shape: tuple[int, ...], itemsize: int, files: int = 1, most: int | None = None
) -> tuple[int, ...]:  # fmt: skip
    """Return a chunk shape of at most `most` bytes, LIMITS.chunk_bytes by default, and CHUNK_COLUMNS columns.

    Chunks are about equally full. Ranks read ranges of rows, and of columns where features are cut over a
    grid axis. `files`: files that the rows are cut into; all of them have LIMITS.chunks or more.
    """
    width = tuple(_evenly(extent, CHUNK_COLUMNS) for extent in shape[1:])
    row = itemsize * int(np.prod(width, dtype=np.int64))
    if most is None:
        fine = max(LIMITS.least_chunk_bytes, row * shape[0] * files // LIMITS.chunks)
        most = min(LIMITS.chunk_bytes, fine)
    return (_evenly(shape[0], max(1, most // max(row, 1))), *width)


def _evenly(extent: int, most: int) -> int:
    """Return the size of the fewest blocks of at most `most` that cover `extent`."""
    return max(1, -(-extent // max(1, -(-extent // most))))


def create(
    group: h5py.Group, name: str, shape: tuple[int, ...], dtype: Any, files: int = 1
) -> h5py.Dataset:  # fmt: skip
    """Create a dataset to be filled, one of so many files'.

    HDF5 cannot chunk scalars and empty arrays: they are contiguous.
    """
    if not shape or 0 in shape:
        return group.create_dataset(name, shape, dtype)
    chunks = chunk_shape(shape, np.dtype(dtype).itemsize, files)
    how = {"chunks": chunks, "fletcher32": True, "track_times": False}
    return group.create_dataset(name, shape, dtype, fillvalue=0, **how)


def store_array(group: h5py.Group, name: str, array: np.ndarray, files: int = 1) -> None:
    """Store all of `array` as a dataset, one of so many files'."""
    dataset = create(group, name, array.shape, array.dtype, files)
    dataset[...] = array
    dataset.flush()  # an error on closing the dataset would not be raised


class Growing:
    """A one-dimensional dataset that is written front to back; its length is known at the end."""

    def __init__(self, group: h5py.Group, name: str, dtype: Any, expected: int, files: int = 1) -> None:
        chunks = chunk_shape((max(1, expected),), np.dtype(dtype).itemsize, files)
        self.dataset = group.create_dataset(
            name, (0,), dtype, maxshape=(None,), chunks=chunks, fletcher32=True, track_times=False
        )
        self.length = 0

    def append(self, values: np.ndarray) -> None:
        """Append values and flush them to the file."""
        self.dataset.resize((self.length + len(values),))
        self.dataset[self.length :] = values
        self.dataset.flush()
        self.length += len(values)


@contextmanager
def writing(path: AnyPath, mode: str = "w") -> Iterator[h5py.File]:
    """Open a file for writing; with mode "r+" an existing one. Raise the first error of the disk at the end.

    The format is that of HDF5 1.10, the first with checksums for metadata.
    """
    with later():
        below = SteadyFile(path, mode)
        try:
            how: Any = {"driver": "fileobj", "fileobj": below, "libver": ("v110", "v110"), "locking": False}
            with h5py.File(path, mode, **how) as file:
                yield file
        finally:
            below.close()


def read(dataset: h5py.Dataset, *ranges: Range) -> np.ndarray:
    """Read these rows (and columns), and charge them to the ledger."""
    rows = np.empty([last - first for first, last in ranges], dataset.dtype)
    read_into(rows, dataset, *ranges)
    return rows


def read_into(out: np.ndarray, dataset: h5py.Dataset, *ranges: Range) -> None:
    """Read these rows (and columns) straight into a C-contiguous array of their shape; charge the ledger.

    A few chunks at a time: HDF5 takes some KiB beside each chunk of a read, and leaves them in pieces.
    """
    charge(dataset, *ranges)
    if not out.size:
        return
    ((first, last), *cols), high = ranges, (dataset.chunks or (1,))[0]
    step = max(rows_within(LIMITS.read_bytes, out[:1].nbytes) // high, 1) * high
    for lo, hi in pairwise([first, *range(first // high * high + step, last, step), last]):
        window = tuple(slice(*ends) for ends in ((lo, hi), *cols))
        dataset.read_direct(out[lo - first : hi - first], window)


def charge(dataset: h5py.Dataset, *ranges: Range) -> None:
    """Charge the ledger the chunks that these rows (and columns) touch.

    Call it once for several reads while the dataset stays open: HDF5 keeps a chunk in which two of them meet.
    """
    nbytes = dataset.dtype.itemsize
    for (lo, hi), chunk in zip(ranges, dataset.chunks or (1,) * dataset.ndim, strict=True):
        nbytes *= (-(-hi // chunk) - lo // chunk) * chunk if lo < hi else 0
    ledger.loaded(dataset.name[1:], int(nbytes))

"""Records sorted into buckets that may be larger, all together, than memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BUDGET = 64 << 20  # bytes held in memory


class Spill:
    """Buckets of records; what exceeds BUDGET bytes is appended to one file per bucket.

    No file stays open between appends, so any number of buckets works. `folder` is made when it is first needed and belongs to
    this spill; `close` removes it.
    """

    def __init__(self, folder: Path, buckets: int, dtype: Any) -> None:
        self.folder = folder
        self.dtype = np.dtype(dtype)
        self.lengths = np.zeros(buckets, np.int64)
        self._held: list[list[np.ndarray]] = [[] for _ in range(buckets)]
        self._bytes = 0

    def add(self, buckets: np.ndarray, records: np.ndarray) -> None:
        """Put `records[i]` into bucket `buckets[i]`."""
        count = len(self.lengths)
        if count > 1:
            # NumPy sorts 16-bit keys by radix, several times faster than wider ones.
            narrow = buckets.astype(np.uint16 if count <= 1 << 16 else np.int32)
            records = records[np.argsort(narrow, kind="stable")]
        sizes = np.bincount(buckets, minlength=count)
        ends = np.cumsum(sizes)
        for bucket in np.flatnonzero(sizes):
            self._held[bucket].append(records[ends[bucket] - sizes[bucket] : ends[bucket]])
        self.lengths += sizes
        self._bytes += records.nbytes
        if self._bytes > BUDGET:
            self._flush()

    def read(self, bucket: int, size: int) -> Iterator[np.ndarray]:
        """The records of a bucket, in the order they came, in arrays of at most `size`."""
        path = self._path(bucket)
        if path.exists():
            with open(path, "rb") as file:
                while len(piece := np.fromfile(file, self.dtype, size)):
                    yield piece
        for held in self._held[bucket]:
            for start in range(0, len(held), size):
                yield held[start : start + size]

    def drop(self, bucket: int) -> None:
        """Free what a bucket occupies."""
        self._path(bucket).unlink(missing_ok=True)
        self._held[bucket] = []

    def close(self) -> None:
        """Free everything."""
        for bucket in range(len(self.lengths)):
            self.drop(bucket)
        if self.folder.exists():
            self.folder.rmdir()

    def _flush(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for bucket, held in enumerate(self._held):
            if held:
                with open(self._path(bucket), "ab") as file:
                    for piece in held:
                        file.write(piece.view(np.uint8).data)  # unlike tofile, says what went wrong on a full disk
                self._held[bucket] = []
        self._bytes = 0

    def _path(self, bucket: int) -> Path:
        return self.folder / f"{bucket:06d}"

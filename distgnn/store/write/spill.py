"""Records sorted into buckets that may be larger than memory, and that several ranks may fill."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.local.entries import keys_of, sorted_records
from distgnn.store.format.limits import LIMITS
from distgnn.store.team import Team


class Spill:
    """Buckets of records; what exceeds LIMITS.spilled_bytes is appended to one file per bucket.

    No file stays open between appends. `folder` is made when needed, and `close` removes it. In a team each
    rank adds to a folder of its own, on a shared file system; after `pool` each rank may read any bucket.
    """

    def __init__(self, folder: Path, buckets: int, dtype: Any, team: Team | None = None) -> None:
        self.team = team or Team()
        alone, ranks = self.team.size == 1, range(self.team.size)
        self.folders = [folder] if alone else [folder / f"rank-{rank:04d}" for rank in ranks]
        self.folder = self.folders[self.team.rank]
        self.dtype = np.dtype(dtype)
        self.lengths = np.zeros(buckets, np.int64)
        self._held: list[list[np.ndarray]] = [[] for _ in range(buckets)]
        self._bytes = 0

    def add(self, buckets: np.ndarray, records: np.ndarray) -> None:
        """Put `records[i]` into bucket `buckets[i]`."""
        count = len(self.lengths)
        if count > 1:  # NumPy sorts 16-bit keys by radix, several times faster than wider ones
            narrow = buckets.astype(np.uint16 if count <= 1 << 16 else np.int32)
            records = records[np.argsort(narrow, kind="stable")]
        self._add(records, np.bincount(buckets, minlength=count))

    def add_keyed(self, records: np.ndarray, bits: int) -> None:
        """Put records, with keys of `bits` bits, into the buckets whose numbers stand above these bits.

        The given records are lost.
        """
        count = len(self.lengths)
        records = sorted_records(records, bits, bits + (count - 1).bit_length())
        keys = keys_of(records)
        ends = np.searchsorted(keys, np.arange(1, count + 1, dtype=np.int64) << bits)
        keys &= (1 << bits) - 1
        self._add(records, np.diff(ends, prepend=0))

    def _add(self, records: np.ndarray, sizes: np.ndarray) -> None:
        """Add records that are sorted by bucket."""
        ends = np.cumsum(sizes)
        for bucket in np.flatnonzero(sizes):
            self._held[bucket].append(records[ends[bucket] - sizes[bucket] : ends[bucket]])
        self.lengths += sizes
        self._bytes += records.nbytes
        if self._bytes > LIMITS.spilled_bytes:
            self._flush()

    def pool(self) -> None:
        """Let `lengths` and `read` cover the records of all ranks from here on. Collective."""
        if self.team.size > 1:
            with self.team.together():
                self._flush()
            self.team.total(self.lengths)

    def read(self, bucket: int, size: int) -> Iterator[np.ndarray]:
        """Yield the records of a bucket in arrays of at most `size`, rank by rank, in the order they came.

        Raises RuntimeError if the shared file system does not show all records of another rank.
        """
        count = 0
        for path in self._paths(bucket):
            if path.exists():
                with open(path, "rb") as file:
                    while len(records := np.fromfile(file, self.dtype, size)):
                        count += len(records)
                        yield records
        for held in self._held[bucket]:
            count += len(held)
            for start in range(0, len(held), size):
                yield held[start : start + size]
        expected = self.lengths[bucket]
        if count != expected:
            raise RuntimeError(f"{self.folder}: bucket {bucket} has {count} of {expected} records")

    def drop(self, bucket: int) -> None:
        """Free the memory and the files of a bucket."""
        for path in self._paths(bucket):
            path.unlink(missing_ok=True)
        self._held[bucket] = []

    def close(self) -> None:
        """Free all that this rank has added, once no rank reads any more."""
        self._held = []
        shutil.rmtree(self.folder, ignore_errors=True)  # there is a folder only if records went to disk

    def _flush(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for bucket, held in enumerate(self._held):
            if held:
                with open(self.folder / f"{bucket:06d}", "ab") as file:
                    for records in held:
                        file.write(records.view(np.uint8).data)  # unlike tofile, explains a full disk
                self._held[bucket] = []
        self._bytes = 0

    def _paths(self, bucket: int) -> list[Path]:
        return [folder / f"{bucket:06d}" for folder in self.folders]

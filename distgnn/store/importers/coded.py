"""Edges between words, which are read once: a temporary file keeps the numbers of their ends."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import scratch_file
from distgnn.store.importers.names import Names
from distgnn.store.importers.word_numbers import WordNumbers
from distgnn.store.source import Edges


class CodedEdges:
    """A list of edges with a number in place of each word, and perhaps weights.

    Disk: 16 bytes for every edge, 24 with weights, as long as this object lives.

    Args:
        blocks: structured rows of source, target and perhaps weight.
        path: of the list, for errors.
        limit: bytes that the distinct words may take.
        scratch: folder of the temporary file, default: the system's.
    """

    def __init__(self, blocks: Iterable[np.ndarray], path: Path, limit: int, scratch: str | None) -> None:
        numbers, self.dtype = WordNumbers(path, limit), np.dtype([("source", np.int64), ("target", np.int64)])
        with scratch_file(scratch) as file:
            for rows in blocks:
                if "weight" in (rows.dtype.names or ()):
                    self.dtype = np.dtype([*self.dtype.descr[:2], ("weight", np.float64)])
                coded = np.empty(len(rows), self.dtype)
                for name in self.dtype.names or ():
                    words = name != "weight"
                    coded[name] = numbers.of(rows[name]) if words else rows[name]
                file.write(coded.data)
            file.flush()
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self.words = numbers.words()

    def names(self) -> np.ndarray:
        """Return all ids at the ends of edges, in ascending order."""
        return np.sort(self.words)

    def stream(self, ids: Names) -> Callable[[], Iterator[Edges]] | None:
        """Make the function that yields the edges between nodes with these ids; None for other ends."""
        places = ids.find(self.words)
        if (places < 0).any():
            return None

        def stream() -> Iterator[Edges]:
            size, start = LIMITS.entries * self.dtype.itemsize, 0
            while data := os.pread(self._file, size, start):
                rows, start = np.frombuffer(data, self.dtype), start + len(data)
                weight = rows["weight"].copy() if "weight" in (self.dtype.names or ()) else None
                yield places[rows["source"]], places[rows["target"]], weight

        return stream

"""Edges between words, read once, with a number in place of each word."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import scratch_file
from distgnn.store.importers.arrow import as_bytes, numpy_of, places
from distgnn.store.importers.coded import Coder
from distgnn.store.importers.imported import Stream
from distgnn.store.importers.names import LONGEST, Names, shown
from distgnn.store.importers.node_table import most_bytes, no_id
from distgnn.store.importers.table import MISSING, Table
from distgnn.store.importers.text_table import TextTable
from distgnn.store.source import Edges

Batch = tuple[list[pa.Array], "np.ndarray | None"]  # the ends of some edges, and their weights
NO_NAMES = {*MISSING, "#", "%", "->", "<-", "--"}


class CodedEdges:
    """A list of edges, read once, with a number in place of each word, and perhaps weights.

    Disk: 8 bytes for every edge, 16 with weights, as long as this object lives.
    """

    def __init__(
        self, table: Table, ends: list[int], batches: Iterable[Batch], weighted: bool, scratch: str | None
    ) -> None:  # fmt: skip
        self.table, self.ends = table, ends
        self.dtype = np.dtype([("ends", np.int32, 2), *([("weight", np.float64)] if weighted else [])])
        with scratch_file(scratch) as file:

            def write(codes: np.ndarray, weight: np.ndarray | None) -> None:
                rows = np.empty(len(codes), self.dtype)
                rows["ends"] = codes
                if weight is not None:
                    rows["weight"] = weight
                file.write(rows.data)

            coder = Coder(table.path, most_bytes(table.path), write)
            for columns, weight in batches:
                coder.add(columns, weight)
            coder.flush()
            file.flush()
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self.words = as_bytes(coder.words)
        self.wrong = self._wrong_words(coder.words)

    def _wrong_words(self, words: pa.Array) -> np.ndarray:
        """Find words that are no ids."""
        nothing, rule_of_a_table = [*MISSING], r"\x00"
        if isinstance(self.table, TextTable):  # in other files marks are values
            nothing, rule_of_a_table = sorted(NO_NAMES), r"\x00|\A:?-{2,}:?\z"
        listed = "|".join(map(re.escape, nothing))
        bad = places(pc.match_substring_regex(words, rf"\A({listed})\z|{rule_of_a_table}"))
        long = np.flatnonzero(numpy_of(pc.binary_length(words)) > LONGEST)
        return np.union1d(bad, long)

    def check(self, known: Names | None) -> None:
        """Raise UserError for words that are no ids unless they are `known`."""
        wrong = self.wrong if known is None else self.wrong[known.find(self.words[self.wrong]) < 0]
        if len(wrong):
            row, end = self.find(wrong)
            table, word = self.table, self.words[self._codes(row)[end]].decode()
            advice = no_id(word) or ", or node_list=FILE that lists it"
            if word in ("#", "%"):
                advice = f"; comments={word} would skip such lines"
            raise table.bad(row, self.ends[end], word, f"a node id{advice}")

    def check_header(self) -> None:
        """Raise UserError for a second header."""
        names = [self.table.names[k].encode() for k in self.ends] if self.table.named else []
        codes = [np.flatnonzero(self.words == name) for name in names]
        if names and all(map(len, codes)):
            row = self._first(lambda ends: np.all(ends == [codes[0][0], codes[1][0]], axis=1))
            if row >= 0:
                place = self.table.place(row)
                raise UserError(f"{place}: repeats the header; expected one header, in the first line")

    def find(self, words: np.ndarray) -> tuple[int, int]:
        """Find the first row and end that have one of these words, given by number."""
        row = self._first(lambda ends: np.isin(ends, words).any(axis=1))
        return row, int(np.argmax(np.isin(self._codes(row), words)))

    def _codes(self, row: int) -> np.ndarray:
        size = self.dtype.itemsize
        return np.frombuffer(os.pread(self._file, size, row * size), self.dtype)["ends"][0]

    def _first(self, which: Callable[[np.ndarray], Any]) -> int:
        done = 0
        for rows in self._rows():
            if (wrong := which(rows["ends"])).any():
                return done + int(np.argmax(wrong))
            done += len(rows)
        return -1

    def _rows(self) -> Iterator[np.ndarray]:
        size, start = LIMITS.window_entries * self.dtype.itemsize, 0
        while data := os.pread(self._file, size, start):
            yield np.frombuffer(data, self.dtype)
            start += len(data)

    def between(self, ids: Names) -> Stream:
        """Make the function that yields edges between these nodes; UserError names the line of others."""
        places = ids.find(self.words)
        if (places < 0).any():
            row, end = self.find(np.flatnonzero(places < 0))
            word, name = shown(self.words[self._codes(row)[end]]), ("source", "target")[end]
            raise UserError(f"{self.table.place(row)}: {name} {word} is not in {ids.path}")

        def stream() -> Iterator[Edges]:
            for rows in self._rows():
                src, dst = places[rows["ends"].T]
                yield src, dst, rows["weight"].copy() if "weight" in (self.dtype.names or ()) else None

        return stream

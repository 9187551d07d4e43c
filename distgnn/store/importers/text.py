"""Rows of text tables: cleaned bytes for pyarrow, and slowly, with their lines, for errors."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from distgnn.stages import stage
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import dialect
from distgnn.store.importers.files import check_line, reading, unpacked

PIECE, BATCH = 1 << 20, 1 << 22  # bytes that are read, and that become a batch, at a time


class Cleaned(io.RawIOBase):
    """The bytes of a text from its first row on, as readers of CSV take them.

    `leading_zeros`: a digit came behind a zero that began a number, if they are `watched`.
    """

    def __init__(self, path: Path, form: dialect.Dialect, watched: bool = False) -> None:
        self.path, self.dialect, self.watched, self.leading_zeros = path, form, watched, False
        self.held, self.tail, self.line, left = memoryview(b""), b"", form.line + 1, form.start
        with reading(path):
            self.raw = pa.OSFile(os.fspath(path))
            self.file = unpacked(path, self.raw)
            while left and (skipped := self.file.read(left)):
                left -= len(skipped)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer only at the end."""
        parts, left = [], size
        while left and (self.held or self._next()):
            parts.append(self.held[:left])
            self.held = self.held[left:]
            left -= len(parts[-1])
        return b"".join(parts)

    def _next(self) -> bool:
        """Hold the next whole lines, cleaned; return False at the end."""
        while not self.held and (lines := self._lines()):
            self.held = memoryview(self.dialect.clean(lines))
            if self.watched and not self.leading_zeros:
                self.leading_zeros = _has_leading_zeros(lines)
        return bool(self.held)

    def _lines(self) -> bytes:
        """Return whole lines, none at the end."""
        with reading(self.path):
            while data := self.file.read(PIECE):
                cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
                lines, self.tail = (self.tail + data[:cut], data[cut:]) if cut else (b"", self.tail + data)
                self.line += lines.count(b"\n")
                check_line(len(self.tail), self.line, self.path)
                if cut:
                    return lines
        lines, self.tail = self.tail, b""
        return lines


def _has_leading_zeros(lines: bytes) -> bool:
    """Return True if a zero that no digit, point or letter precedes has a digit, or an x, behind it."""
    text = np.frombuffer(b"\n" + lines + b"\n", np.uint8)
    digit = text - ord("0") <= 9
    after = digit[2:] | (text[2:] | 32 == ord("x")) if b"x" in lines or b"X" in lines else digit[2:]
    zeros = np.flatnonzero((text[1:-1] == ord("0")) & after & ~digit[:-2])
    return bool(np.isin(text[zeros], np.frombuffer(b'\n\r\t ,;|-"', np.uint8)).any())


class Text:
    """A text table in `path`, and its dialect."""

    def __init__(
        self, path: Path, options: Any = None, whole_lines: bool = False, given: dialect.Dialect | None = None
    ) -> None:  # fmt: skip
        self.path, self.leading_zeros, self.watched = path, False, True
        self.dialect = given or dialect.tell(path, options, whole_lines)

    def take_header(self) -> None:
        """Take the header for a row."""
        form = self.dialect
        form.start, form.line = form.header
        form.rows.insert(0, form.names)
        form.names = []

    def batches(
        self, types: dict[int, pa.DataType], missing: Sequence[str], done: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns, named by their numbers, of these types, of rows behind those that are done.

        Raises ArrowException for wrong rows.
        """
        watched = self.watched and pa.int64() in types.values()
        longest = max((sum(map(len, row)) + 2 * len(row) for row in self.dialect.rows), default=0)
        for size in (max(min(LIMITS.text_bytes, BATCH), 4 * longest), LIMITS.line_bytes):
            try:
                with Cleaned(self.path, self.dialect, watched) as bytes_:
                    for batch in self._read(bytes_, types, missing, size, done):
                        yield batch
                        done += batch.num_rows
                    self.leading_zeros |= bytes_.leading_zeros
                    self.watched = self.watched and not watched  # once is enough
                return
            except pa.ArrowInvalid as error:
                if "straddling" not in str(error):
                    raise

    def _read(
        self, source: Cleaned, types: dict[int, pa.DataType], missing: Sequence[str], size: int, skip: int
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        names = [str(k) for k in range(self.dialect.width)]
        read = pa.csv.ReadOptions(use_threads=False, block_size=size, column_names=names)
        parse = pa.csv.ParseOptions(delimiter=self.dialect.separator, newlines_in_values=True)
        convert = pa.csv.ConvertOptions(
            column_types={str(k): kind for k, kind in types.items()}, include_columns=[*map(str, types)],
            null_values=list(missing), strings_can_be_null=False,
        )  # fmt: skip
        total = os.path.getsize(self.path)
        with stage(f"read {self.path}", total, "B") as read_stage:
            try:
                batches = pa.csv.open_csv(pa.PythonFile(source, "r"), read, parse, convert)
            except pa.ArrowInvalid as error:
                if str(error).startswith("Empty CSV"):
                    return
                raise
            for batch in batches:
                read_stage.to(min(total, source.raw.tell()))
                if skip < batch.num_rows:
                    yield batch.slice(skip)
                skip = max(0, skip - batch.num_rows)

    def rows(self, first: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, fields) of the rows from row `first` on, slowly."""
        with Cleaned(self.path, self.dialect) as source:
            text = io.TextIOWrapper(io.BufferedReader(source), "utf-8", "surrogateescape", newline="")
            reader = self.dialect.reader(text)
            rows = ((reader.line_num, [*map(str.strip, row)]) for row in reader if row)
            for end, fields in itertools.islice(rows, first, None):
                yield self.dialect.line + end - sum(field.count("\n") for field in fields), fields

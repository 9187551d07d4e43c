"""Rows of text tables: cleaned bytes for pyarrow, and slowly, with their lines, for errors."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from distgnn.stages import stage
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import dialect
from distgnn.store.importers.files import check_line, reading, unpacked

PIECE = 1 << 20  # bytes that are read at a time and become a batch


class Cleaned:
    """The bytes of a text from its first row on, in `pieces` of whole lines that are plain CSV.

    `leading_zeros`: a digit came behind a zero that began a number, if they are `watched`.
    """

    def __init__(self, path: Path, form: dialect.Dialect, watched: bool = False) -> None:
        self.path, self.dialect, self.watched, self.leading_zeros = path, form, watched, False
        with reading(path):
            self.raw = pa.OSFile(os.fspath(path))
            self.file, left = unpacked(path, self.raw), form.start
            while left and (skipped := self.file.read(left)):
                left -= len(skipped)
        self.pieces = self._pieces()

    def close(self) -> None:
        self.file.close()

    def rows(self) -> Iterator[bytes]:
        """Yield pieces of whole rows: a quoted field may have line breaks, an odd quote ends a piece late."""
        parts, size, odd = [], 0, False
        for lines in self.pieces:
            parts.append(lines)
            size, odd = size + len(lines), odd != bool(lines.count(b'"') % 2)
            if not odd or size > LIMITS.line_bytes:
                yield b"".join(parts)
                parts, size, odd = [], 0, False
        yield b"".join(parts)

    def _pieces(self) -> Iterator[bytes]:
        for lines in self._lines():
            if self.watched and not self.leading_zeros:
                self.leading_zeros = _has_leading_zeros(lines, self.dialect.separator)
            if cleaned := self.dialect.clean(lines):
                yield cleaned

    def _lines(self) -> Iterator[bytes]:
        """Yield whole lines."""
        tail, line = b"", self.dialect.line + 1
        with reading(self.path):
            while data := self.file.read(min(LIMITS.text_bytes, PIECE)):
                cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
                lines, tail = (tail + data[:cut], data[cut:]) if cut else (b"", tail + data)
                line += lines.count(b"\n")
                check_line(len(tail), line, self.path)
                if cut:
                    yield lines
        yield tail


def _has_leading_zeros(lines: bytes, separator: str) -> bool:
    """Return True if a zero that no digit, point or letter precedes has a digit, or an x, behind it."""
    text = np.frombuffer(b"\n" + lines + b"\n", np.uint8)
    digit = text - ord("0") <= 9
    after = digit[2:] | (text[2:] | 32 == ord("x")) if b"x" in lines or b"X" in lines else digit[2:]
    zeros = np.flatnonzero((text[1:-1] == ord("0")) & after & ~digit[:-2])
    return bool(np.isin(text[zeros], np.frombuffer(b'\n\r\t -"' + separator.encode(), np.uint8)).any())


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
        names = [str(k) for k in range(self.dialect.width)]
        parse = pa.csv.ParseOptions(delimiter=self.dialect.separator, newlines_in_values=True)
        convert = pa.csv.ConvertOptions(
            column_types={str(k): kind for k, kind in types.items()}, include_columns=[*map(str, types)],
            null_values=list(missing), strings_can_be_null=False,
        )  # fmt: skip
        with closing(Cleaned(self.path, self.dialect, watched)) as source:
            total = os.path.getsize(self.path)
            with stage(f"read {self.path}", total, "B") as read_stage:
                for piece in filter(bytes.strip, source.rows()):
                    # at once: a reader that reads on in a thread of Arrow's would outlive an error here
                    read = pa.csv.ReadOptions(
                        use_threads=False, block_size=len(piece) + 1, column_names=names
                    )
                    for batch in pa.csv.read_csv(pa.BufferReader(piece), read, parse, convert).to_batches():
                        if done < batch.num_rows:
                            yield batch.slice(done)
                        done = max(0, done - batch.num_rows)
                    read_stage.to(min(total, source.raw.tell()))
            self.leading_zeros |= source.leading_zeros
        self.watched = self.watched and not watched  # once is enough

    def rows(self, first: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, fields) of the rows from row `first` on, slowly."""
        with closing(Cleaned(self.path, self.dialect)) as source:
            texts = (piece.decode("utf-8", "surrogateescape") for piece in source.pieces)
            reader = self.dialect.reader(line for text in texts for line in dialect.lines_of(text))
            rows = ((reader.line_num, [*map(str.strip, row)]) for row in reader if row)
            for end, fields in itertools.islice(rows, first, None):
                yield self.dialect.line + end - sum(field.count("\n") for field in fields), fields

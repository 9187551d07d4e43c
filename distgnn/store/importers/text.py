"""Tables of numbers in text files, read in blocks of whole lines; errors name a bad line and its number.

`numpy.loadtxt` checks every field. `numpy.fromstring` is about twice as fast but only counts numbers, so that
`1,2,3` followed by `4` would pass as two edges.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.files import BYTE_ORDER_MARK, AnyPath, check_line, lines, open_binary, reading
from distgnn.store.importers.names import encoded
from distgnn.store.stages import stage

Check = Callable[[np.ndarray], "str | None"]


def blocks(path: AnyPath, skip: int = 0, size: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the first line counted from 1, bytes of whole lines) after the first `skip` lines,
    about `size` bytes at a time."""
    with reading(path), open_binary(path) as file, stage(f"read {path}", os.path.getsize(path), "B") as read:
        for _ in range(skip):
            file.readline()
        number, tail = skip + 1, b""
        packed = getattr(file, "fileobj", file)  # whose size is known
        if not skip and (start := file.read(len(BYTE_ORDER_MARK))) != BYTE_ORDER_MARK:
            tail = start
        while data := file.read(size or LIMITS.text_bytes):
            read.to(packed.tell())
            cut = data.rfind(b"\n") + 1
            if not cut:
                tail += data
                check_line(len(tail), number, path)
                continue
            block, tail = tail + data[:cut], data[cut:]
            yield number, block
            number += block.count(b"\n")
        if tail:
            yield number, tail


def first_line(path: AnyPath) -> tuple[int, str]:
    """Number and text of the first line that is neither blank nor a comment; (0, "") where there is none.

    Before it, and only there, lines that begin with % and a blank are comments, too, as KONECT has them.
    """
    for number, line in lines(path):
        start = line.lstrip()
        if start and not start.startswith("#") and not (start[0] == "%" and not start[1:2].strip()):
            return number, line.rstrip("\r\n")
    return 0, ""


def whole(text: str) -> int | None:
    """The number that these ASCII digits write; None for anything else, or more than 18 of them."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


class BadValue(ValueError):
    """Values of a line that are wrong."""


@dataclass
class Table:
    """A text table of one dtype: structured (one field a column) or plain (`width` columns). `check(array)`
    may return what is wrong with the values; `expected` describes a line.

    Fields of dtype object are words, which come as UTF-8 in a dtype S; a `#` in them is part of a word, so
    comments are only lines that begin with it.
    """

    path: Path
    dtype: np.dtype
    expected: str
    delimiter: str | None = None
    columns: tuple[int, ...] | None = None
    comments: str = "#"
    skip: int = 0
    width: int | None = None
    check: Check | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the rows of each block: structured (rows,) or plain (rows, columns)."""
        size = LIMITS.text_bytes >> 3 if self.dtype.hasobject else None  # words take more room
        for number, block in blocks(self.path, self.skip, size):
            try:
                rows = self._parse(block)
            except ValueError:
                raise self._bad_line(number, block) from None
            if len(rows):
                yield rows

    def place(self, row: int) -> str:
        """Where row `row`, counted from 0, stands, for errors."""
        for number, line in lines(self.path, self.skip):
            row -= bool(line.strip()) and not line.lstrip().startswith(self.comments)
            if row < 0:
                return f"{self.path}, line {number}"
        return str(self.path)

    def _parse(self, block: bytes) -> np.ndarray:
        """The block's rows, or a ValueError caused by one line alone."""
        words = self.dtype.hasobject
        text = io.StringIO(_uncommented(block, self.comments)) if words else io.BytesIO(block)
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # older NumPy reads 1.5 as an integer
            warnings.simplefilter("ignore", UserWarning)  # a block without data
            try:
                rows = np.loadtxt(
                    text, self.dtype, comments=None if words else self.comments, delimiter=self.delimiter,
                    usecols=self.columns, quotechar='"', ndmin=1 if self.dtype.names else 2,
                )  # fmt: skip
            except DeprecationWarning as warning:
                raise ValueError(str(warning)) from None
        if words:
            rows = _in_utf8(rows)
        if len(rows) and self.width is not None and rows.shape[1] != self.width:
            raise BadValue(f"{rows.shape[1]} columns")
        wrong = self.check(rows) if self.check and len(rows) else None
        if wrong:
            raise BadValue(wrong)
        return rows

    def _bad_line(self, number: int, block: bytes) -> UserError:
        """Find the first line of a bad block that cannot be read, by bisection."""
        lines = [line + b"\n" for line in block.split(b"\n")]
        lo, hi = 0, len(lines)
        while hi - lo > 1:
            middle = (lo + hi) // 2
            good = self._wrong(b"".join(lines[lo:middle])) is None
            lo, hi = (middle, hi) if good else (lo, middle)
        why = self._wrong(lines[lo])
        text = lines[lo].decode("utf-8", "replace").rstrip("\r\n")
        text = text if len(text) <= 80 else text[:77] + "..."
        bad = f"bad line {text!r}" + (f" ({why})" if why else "")
        return UserError(f"{self.path}, line {number + lo}: {bad}; expected {self.expected}")

    def _wrong(self, block: bytes) -> str | None:
        """None where the block is good; else what is wrong with its values, empty if it cannot be parsed."""
        try:
            self._parse(block)
        except ValueError as error:
            return str(error) if isinstance(error, BadValue) else ""
        return None


def _uncommented(block: bytes, comments: str) -> str:
    """The text without the lines that are comments."""
    text = block.decode("utf-8")
    if comments not in text:
        return text
    return "".join(line for line in text.splitlines(True) if not line.lstrip().startswith(comments))


def _in_utf8(rows: np.ndarray) -> np.ndarray:
    """Encode words, but in fields that are only skipped; BadValue for words that are no ids."""
    fields = {name: rows[name] for name in rows.dtype.names or () if name[0] != "_"}
    for name, values in fields.items():
        if values.dtype == object:
            try:
                fields[name] = encoded(values.tolist())
            except ValueError as error:
                raise BadValue(str(error)) from None
    return structured(fields)


def structured(fields: dict[str, np.ndarray]) -> np.ndarray:
    """Join arrays of equal length into one whose fields have these names."""
    dtype = [(name, values.dtype, values.shape[1:]) for name, values in fields.items()]
    rows = np.empty(len(next(iter(fields.values()))), dtype)
    for name, values in fields.items():
        rows[name] = values
    return rows


def column(
    path: Path, expected: str, most: int, dtype: Any = np.int64, *, delimiter: str | None = None,
    check: Check | None = None,
) -> np.ndarray:  # fmt: skip
    """All of a table with one number per line, of which there may be `most`."""
    table = Table(path, np.dtype([("value", dtype)]), expected, delimiter, check=check)
    parts, count = [np.zeros(0, dtype)], 0
    for rows in table:
        parts.append(rows["value"])
        count += len(rows)
        if count > most:
            raise UserError(f"{path}: {count} lines or more; expected at most {most}")
    return np.concatenate(parts)


def within(low: int, high: int) -> Check:
    """A check of edges: their ends, the first two fields, lie in low..high, and a third one is finite."""

    def check(rows: np.ndarray) -> str | None:
        names = rows.dtype.names or ()
        for end in names[:2]:
            if rows[end].min() < low or rows[end].max() > high:
                return f"{end} outside {low}..{high}"
        wrong = (f"{name} is not finite" for name in names[2:] if not np.isfinite(rows[name]).all())
        return next(wrong, None)

    return check

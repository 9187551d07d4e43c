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
    """A text table whose structured dtype has a field for each column or for some of them. `check(rows)` may
    return what is wrong with values; `expected` describes a line.

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
    check: Check | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the rows of each block."""
        size = LIMITS.text_bytes >> 3 if self.dtype.hasobject else None  # words take more room
        for number, block in blocks(self.path, self.skip, size):
            try:
                rows = self._parse(block)
            except ValueError:
                raise self._bad_line(number, block) from None
            if len(rows):
                yield rows

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
                    usecols=self.columns, quotechar='"', ndmin=1,
                )  # fmt: skip
            except DeprecationWarning as warning:
                raise ValueError(str(warning)) from None
        if words:
            rows = _in_utf8(rows)
        if self.check and len(rows) and (wrong := self.check(rows)):
            raise BadValue(wrong)
        return rows

    def _bad_line(self, number: int, block: bytes) -> UserError:
        """Make the error for the first line of a bad block that cannot be read."""
        lines = [line + b"\n" for line in block.split(b"\n")]
        row, error = first_bad(lambda lo, hi: self._parse(b"".join(lines[lo:hi])), len(lines))
        text = lines[row].decode("utf-8", "replace").rstrip("\r\n")
        text = text if len(text) <= 80 else text[:77] + "..."
        bad = f"bad line {text!r}" + (f" ({error})" if isinstance(error, BadValue) else "")
        return UserError(f"{self.path}, line {number + row}: {bad}; expected {self.expected}")


def first_bad(parse: Callable[[int, int], Any], count: int) -> tuple[int, ValueError | None]:
    """Find the first of `count` rows for which `parse(first, last)` raises ValueError, by bisection."""
    lo, hi = 0, count
    while hi - lo > 1:
        middle = (lo + hi) // 2
        lo, hi = (lo, middle) if _error_of(parse, lo, middle) else (middle, hi)
    return lo, _error_of(parse, lo, hi)


def _error_of(parse: Callable[[int, int], Any], first: int, last: int) -> ValueError | None:
    try:
        parse(first, last)
    except ValueError as error:
        return error
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

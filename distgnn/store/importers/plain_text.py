"""Blocks of plain text as arrays, without a Python object for each field.

Plain are lines with as many fields as expected between single delimiters, without quotes, comments, blanks
around fields or empty ids. Any other block is for `numpy.loadtxt`, which says what is wrong with it.
"""

from __future__ import annotations

import io
import re
import warnings

import numpy as np

from distgnn.store.importers.columns import structured
from distgnn.store.importers.names import LONGEST

BLANK = re.compile(r"[^\S\n]")  # beyond ASCII
DELIMITER, NEWLINE, ODD = 1, 2, 3
ROWS = 1 << 15  # whose words are gathered at a time


def plain_rows(
    block: bytes, dtype: np.dtype, columns: tuple[int, ...] | None, delimiter: str
) -> np.ndarray | None:  # fmt: skip
    """Read words (fields of dtype object, which become UTF-8 of a dtype S) and numbers from whole lines.

    `columns`: of the fields, where there may be more; fields called _ are skipped. None for a block that is
    not plain.
    """
    block = block.replace(b"\r\n", b"\n")
    text = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    names = dtype.names or ()
    cells = _cells(text, len(names) if columns is None else None, delimiter)
    if cells is None or (not block.isascii() and BLANK.search(block.decode().replace(delimiter, ""))):
        return None
    starts, ends = cells
    fields = {}
    for name, column in zip(names, columns or range(len(names)), strict=True):
        if name[0] == "_":
            continue
        if column >= starts.shape[1]:
            return None
        values = _words(text, starts[:, column], ends[:, column])
        if values is not None and not dtype[name].hasobject:
            values = _numbers(values, dtype[name])
        if values is None:
            return None
        fields[name] = values
    return structured(fields)


def _cells(text: np.ndarray, width: int | None, delimiter: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Find where the fields of each line start and end: two arrays (lines, width)."""
    kinds = np.zeros(256, np.uint8)
    kinds[[*range(10), *range(11, 33), 127, ord('"'), ord("#")]] = ODD
    kinds[ord(delimiter)], kinds[ord("\n")] = DELIMITER, NEWLINE
    marks = kinds[text]
    ends = np.flatnonzero(marks)
    marks = marks[ends]
    width = width or int(np.argmax(marks == NEWLINE)) + 1
    if not len(ends) or len(ends) % width:
        return None
    marks = marks.reshape(-1, width)
    if not ((marks[:, -1] == NEWLINE).all() and (marks[:, :-1] == DELIMITER).all()):
        return None
    starts = np.append(0, ends[:-1] + 1)
    return starts.reshape(-1, width), ends.reshape(-1, width)


def _words(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Gather words, dtype S; None where one is empty or too long."""
    lengths = ends - starts
    longest = int(lengths.max())
    if lengths.min() < 1 or longest > LONGEST:
        return None
    width = -(-longest // 8) * 8
    padded = np.append(text, np.zeros(width, np.uint8))
    words, within = np.empty((len(starts), width), np.uint8), np.arange(width)
    for first in range(0, len(starts), ROWS):
        some = slice(first, first + ROWS)
        words[some] = padded[starts[some, None] + within]
        words[some] *= within < lengths[some, None]
    return words.view(f"S{width}").reshape(-1)


def _numbers(words: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Parse numbers as `numpy.loadtxt` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # older NumPy reads 1.5 as an integer
        try:
            return np.loadtxt(io.BytesIO(b"\n".join(words.tolist())), dtype, comments=None, ndmin=1)
        except (ValueError, DeprecationWarning):
            return None

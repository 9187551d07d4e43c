"""Numbers for words in the order in which they come, by 64-bit hashes that Arrow numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.errors import UserError
from distgnn.rng import splitmix64
from distgnn.store.format.limits import LIMITS

Take = Callable[[np.ndarray, "np.ndarray | None"], object]


class Coder:
    """Distinct words, without the blanks around them, and the numbers that stand for them.

    Batches wait until they have as many words as are known, so that the work is linear. Memory: the words,
    eight bytes for each, and four bytes for each word that waits.

    Args:
        path: of the file that they are in, for errors.
        limit: bytes that the words may take.
        take: function of the numbers of a batch, int32 (rows, columns), and what was given beside them.
    """

    def __init__(self, path: object, limit: int, take: Take) -> None:
        self.path, self.limit, self.take = path, limit, take
        self.words, self.keys = pa.array([], pa.large_string()), np.zeros(0, np.uint64)
        self.waiting: list[tuple[pa.Array, np.ndarray, np.ndarray, np.ndarray | None]] = []
        self.count = 0

    def add(self, columns: Sequence[pa.Array], beside: np.ndarray | None = None) -> None:
        """Take the words in the columns of a batch, strings or dictionaries of them."""
        coded = pa.types.is_dictionary(columns[0].type)
        given = trimmed(pa.concat_arrays([column.dictionary if coded else column for column in columns]))
        words, keys, numbers = self._different(given, hashed(given))
        if coded:
            starts = np.cumsum([0, *(len(column.dictionary) for column in columns)])
            numbers = np.concatenate(
                [
                    numbers[column.indices.to_numpy() + start]
                    for column, start in zip(columns, starts, strict=False)
                ]
            )
        rows = np.stack(np.split(numbers, len(columns)), axis=1)
        self.waiting.append((words.cast(pa.large_string()), keys, rows, beside))
        self.count += len(words) + len(rows)
        if self.count > max(2 * LIMITS.entries, len(self.words)):
            self.flush()

    def _different(self, words: pa.Array, keys: np.ndarray) -> tuple[pa.Array, np.ndarray, np.ndarray]:
        """Return each word once, its key, and numbers of all; UserError for two words of one key."""
        coded = pa.array(keys).dictionary_encode()
        numbers, first = coded.indices.to_numpy(), np.zeros(len(coded.dictionary), np.int64)
        first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
        once = words.take(pa.array(first))
        if pc.any(pc.not_equal(once.take(coded.indices), words)).as_py():
            raise UserError(f"{self.path}: two ids have the same 64-bit hash; rename one of them")
        return once, coded.dictionary.to_numpy(), numbers

    def flush(self) -> None:
        """Give numbers to the words that wait."""
        if not self.waiting:
            return
        words = pa.concat_arrays([self.words, *(some for some, *_ in self.waiting)])
        keys, at = np.concatenate([self.keys, *(some for _, some, *_ in self.waiting)]), len(self.words)
        self.words, self.keys, numbers = self._different(words, keys)
        longest = pc.max(pc.binary_length(self.words)).as_py() or 0
        if longest * len(self.words) > self.limit:
            what = f"{len(self.words)} ids of up to {longest} bytes are too many for memory"
            raise UserError(f"{self.path}: {what}; give long ids shorter names")
        for some, _, rows, beside in self.waiting:
            self.take(numbers[at : at + len(some)][rows], beside)
            at += len(some)
        self.waiting, self.count = [], 0


def trimmed(words: pa.Array) -> pa.Array:
    """Cut off blanks around words, where some byte at an end may be one."""
    kind = np.int64 if pa.types.is_large_string(words.type) else np.int32
    _, offsets, data = words.buffers()
    text = np.frombuffer(data or b"", np.uint8)
    if not len(words) or not len(text):
        return words
    ends = np.frombuffer(offsets, kind)[words.offset : words.offset + len(words) + 1]
    first, last = text[ends[:-1].clip(max=len(text) - 1)], text[(ends[1:] - 1).clip(min=0)]
    odd = max(first.max(), last.max()) >= 128 or min(first.min(), last.min()) <= 32
    return pc.utf8_trim_whitespace(words) if odd else words


def hashed(words: pa.Array) -> np.ndarray:
    """Return words of up to 8 bytes as uint64, and 64-bit hashes of longer ones."""
    padded = as_bytes(words, 8)
    parts = padded.view(np.uint64).reshape(len(words), padded.itemsize // 8)
    keys = parts[:, 0].copy()
    for part in parts.T[1:]:
        keys = np.where(part != 0, splitmix64(keys ^ splitmix64(part)), keys)
    return keys


def as_bytes(words: pa.Array, unit: int = 1) -> np.ndarray:
    """Convert strings to UTF-8 in a dtype S, of a multiple of `unit` bytes."""
    longest = max(pc.max(pc.binary_length(words)).as_py() or 1, 1)
    width = -(-longest // unit) * unit
    padded = pc.ascii_rpad(words.cast(pa.large_string()), width=width, padding="\0")
    return np.frombuffer(padded.buffers()[2] or b"", f"S{width}", len(words))

"""Numbers for words in the order in which they come, by 64-bit hashes that Arrow numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.errors import UserError
from distgnn.rng import splitmix64
from distgnn.store.format.limits import LIMITS

Parts = list[tuple["slice | np.ndarray", np.ndarray]]
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
        keys, first, numbers = self._different(given)
        if coded:
            starts = np.cumsum([0, *(len(column.dictionary) for column in columns)])
            numbers = np.concatenate(
                [
                    numbers[column.indices.to_numpy() + start]
                    for column, start in zip(columns, starts, strict=False)
                ]
            )
        rows = np.stack(np.split(numbers, len(columns)), axis=1)
        words = given.take(pa.array(first)).cast(pa.large_string())
        self.waiting.append((words, keys, rows, beside))
        self.count += len(words) + len(rows)
        if self.count > max(2 * LIMITS.entries, len(self.words)):
            self.flush()

    def _different(
        self, words: pa.Array, keys: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a key and a place of each word once, and numbers of all; UserError for two of one key."""
        lengths, parts = _parts(words)
        keys = _hashed(lengths, parts) if keys is None else keys
        coded = pa.array(keys).dictionary_encode()
        numbers, first = coded.indices.to_numpy(), np.zeros(len(coded.dictionary), np.int64)
        first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
        again = first[numbers]
        same, values = (lengths[again] == lengths).all(), np.zeros(len(words), np.uint64)
        for some, part in parts:
            values[some] = part
            same = same and bool((values[again[some]] == part).all())
        if not same:
            raise UserError(f"{self.path}: two ids have the same 64-bit hash; rename one of them")
        return coded.dictionary.to_numpy(), first, numbers

    def flush(self) -> None:
        """Give numbers to the words that wait."""
        if not self.waiting:
            return
        words = pa.concat_arrays([self.words, *(some for some, *_ in self.waiting)])
        keys, at = np.concatenate([self.keys, *(some for _, some, *_ in self.waiting)]), len(self.words)
        self.keys, first, numbers = self._different(words, keys)
        self.words = words.take(pa.array(first))
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
    starts, lengths, text = _layout(words)
    used = text[: len(text) - 8]
    if not len(used) or (used.min() > 32 and used.max() < 128):
        return words
    first, last = text[starts], text[(starts + lengths - 1).clip(min=0)]
    odd = max(first.max(), last.max()) >= 128 or min(first.min(), last.min()) <= 32
    return pc.utf8_trim_whitespace(words) if odd else words


def _layout(words: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each string begins, its bytes, and the bytes of all with eight more behind them."""
    kind = np.int64 if pa.types.is_large_string(words.type) else np.int32
    _, offsets, data = words.buffers()
    if not len(words):
        return np.zeros(0, kind), np.zeros(0, kind), np.zeros(8, np.uint8)
    ends = np.frombuffer(offsets, kind)[words.offset : words.offset + len(words) + 1]
    text = np.zeros(int(ends[-1] - ends[0]) + 8, np.uint8)
    text[:-8] = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return ends[:-1] - ends[0], np.diff(ends), text


def _parts(words: pa.Array) -> tuple[np.ndarray, Parts]:
    """Return the bytes of each string, and its bytes by eight: which strings have them, and a uint64."""
    starts, lengths, text = _layout(words)
    windows = np.ndarray(len(text) - 7, np.uint64, text, strides=(1,))
    masks = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
    parts: Parts = []
    for done in range(0, int(lengths.max(initial=0)), 8):
        some = slice(None) if done == 0 else np.flatnonzero(lengths > done)
        parts.append((some, windows[starts[some] + done] & masks[(lengths[some] - done).clip(max=8)]))
    return lengths, parts


def _hashed(lengths: np.ndarray, parts: Parts) -> np.ndarray:
    """Return strings of up to 8 bytes as uint64, and 64-bit hashes of longer ones."""
    keys = np.zeros(len(lengths), np.uint64)
    for some, part in parts:
        keys[some] = part if isinstance(some, slice) else splitmix64(splitmix64(part) ^ keys[some])
    return keys


def as_bytes(words: pa.Array) -> np.ndarray:
    """Convert strings to UTF-8 in a dtype S."""
    width = max(pc.max(pc.binary_length(words)).as_py() or 1, 1)
    padded = pc.ascii_rpad(words.cast(pa.large_string()), width=width, padding="\0")
    return np.frombuffer(padded.buffers()[2] or b"", f"S{width}", len(words))

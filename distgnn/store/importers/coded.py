"""Numbers for words in the order in which they come, by Arrow's dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS

Take = Callable[[np.ndarray, "np.ndarray | None"], object]


class Coder:
    """Distinct words, without the blanks around them, and the numbers that stand for them.

    Batches wait until they have as many words as are known, so that the work is linear. Memory: the
    words, and four bytes for each word that waits.

    Args:
        path: of the file that they are in, for errors.
        limit: bytes that the words may take.
        take: function of the numbers of a batch, int32 (rows, columns), and what was given beside them.
    """

    def __init__(self, path: object, limit: int, take: Take) -> None:
        self.path, self.limit, self.take = path, limit, take
        self.words = pa.array([], pa.large_string())
        self.waiting: list[tuple[pa.Array, np.ndarray, np.ndarray | None]] = []
        self.count = 0

    def add(self, columns: Sequence[pa.Array], beside: np.ndarray | None = None) -> None:
        """Take the words in the columns of a batch, strings or dictionaries of them."""
        if all(pa.types.is_dictionary(column.type) for column in columns):
            parts = [column.dictionary for column in columns]
            shifts = np.cumsum([0, *map(len, parts[:-1])])
            numbers = [c.indices.to_numpy() + s for c, s in zip(columns, shifts.tolist(), strict=True)]
            words = pa.concat_arrays(parts)
        else:
            encoded = pa.concat_arrays(columns).dictionary_encode()
            words, numbers = encoded.dictionary, np.split(encoded.indices.to_numpy(), len(columns))
        self.waiting.append((words.cast(pa.large_string()), np.stack(numbers, axis=1), beside))
        self.count += len(words) + len(numbers[0])
        if self.count > max(2 * LIMITS.entries, len(self.words)):
            self.flush()

    def flush(self) -> None:
        """Give numbers to the words that wait."""
        if not self.waiting:
            return
        words = pc.utf8_trim_whitespace(pa.concat_arrays([some for some, _, _ in self.waiting]))
        known = pa.concat_arrays([self.words, words]).dictionary_encode()
        self.words, numbers, at = known.dictionary, known.indices.to_numpy(), len(self.words)
        longest = pc.max(pc.binary_length(self.words)).as_py() or 0
        if longest * len(self.words) > self.limit:
            what = f"{len(self.words)} ids of up to {longest} bytes are too many for memory"
            raise UserError(f"{self.path}: {what}; give long ids shorter names")
        for some, codes, beside in self.waiting:
            self.take(numbers[at : at + len(some)][codes], beside)
            at += len(some)
        self.waiting, self.count = [], 0

    def encoded(self) -> np.ndarray:
        """Return all words by number, UTF-8 in a dtype S of the length of the longest."""
        self.flush()
        return as_bytes(self.words)


def as_bytes(words: pa.Array) -> np.ndarray:
    """Convert strings to UTF-8 in a dtype S."""
    longest = max(pc.max(pc.binary_length(words)).as_py() or 1, 1)
    padded = pc.ascii_rpad(words.cast(pa.large_string()), width=longest, padding="\0")
    return np.frombuffer(padded.buffers()[2] or b"", f"S{longest}", len(words))

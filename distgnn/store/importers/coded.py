"""Numbers for words, in the order in which they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrow import numpy_of

Take = Callable[[np.ndarray, "np.ndarray | None"], object]


class Coder:
    """Distinct words, without the blanks around them, and the numbers that stand for them.

    Batches wait until they have as many words as are known, so that the work is linear. Memory: the words,
    and four bytes for each word that waits.

    Args:
        path: of the file that they are in, for errors.
        limit: bytes that the words may take.
        take: function of the numbers of a batch, int32 (rows, columns), and what was given beside them.
    """

    def __init__(self, path: object, limit: int, take: Take) -> None:
        self.path, self.limit, self.take = path, limit, take
        self.words = pa.nulls(0, pa.large_string())
        self.waiting: list[tuple[Sequence[pa.Array], np.ndarray | None]] = []
        self.count = 0

    def add(self, columns: Sequence[pa.Array], beside: np.ndarray | None = None) -> None:
        """Take the words in the columns of a batch, strings or dictionaries of them."""
        self.waiting.append((columns, beside))
        self.count += sum(len(column) for column in columns)
        if self.count > max(LIMITS.entries >> 3, len(self.words)):
            self.flush()

    def flush(self) -> None:
        """Give numbers to the words that wait."""
        batches, self.waiting, self.count = self.waiting, [], 0
        given = [trimmed(words_of(column)) for columns, _ in batches for column in columns]
        starts = iter(np.cumsum([len(self.words), *map(len, given)]).tolist())
        coded = pa.concat_arrays([self.words, *given]).dictionary_encode()
        self.words, numbers = coded.dictionary, numpy_of(coded.indices)
        longest = pc.max(pc.binary_length(self.words)).as_py() or 0
        if longest * len(self.words) > self.limit:
            what = f"{len(self.words)} ids of up to {longest} bytes are too many for memory"
            raise UserError(f"{self.path}: {what}; give long ids shorter names")
        for columns, beside in batches:
            rows = np.empty((len(columns[0]), len(columns)), np.int32)
            for k, (column, start) in enumerate(zip(columns, starts, strict=False)):
                some = numbers[start : start + len(words_of(column))]
                rows[:, k] = some[numpy_of(column.indices)] if is_coded(column) else some
            self.take(rows, beside)


def is_coded(column: pa.Array) -> bool:
    """Tell whether a column is a dictionary of words and its indices."""
    return bool(pa.types.is_dictionary(column.type))


def words_of(column: pa.Array) -> pa.Array:
    """Return the different words of a dictionary, all of another column."""
    return column.dictionary if is_coded(column) else column


def trimmed(words: pa.Array) -> pa.Array:
    """Cut off blanks around words, as large strings; no byte is one where all are printed ones of ASCII."""
    words = words.cast(pa.large_string())
    text = np.frombuffer(words.buffers()[2] or b"", np.uint8)
    if text.min(initial=127) > 32 and text.max(initial=0) < 128:
        return words
    return pc.utf8_trim_whitespace(words)

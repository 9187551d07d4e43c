"""Numbers for words in the order in which they come, by a hash table in arrays."""

from __future__ import annotations

import numpy as np

from distgnn.errors import UserError
from distgnn.rng import splitmix64


class WordNumbers:
    """The distinct words met so far, and their numbers from 0.

    Memory: the words, and at most 48 bytes for each; while they grow, the words once more.

    Args:
        path: of the file that they are in, for errors.
        limit: bytes that the words may take.
    """

    def __init__(self, path: object, limit: int) -> None:
        self.path, self.limit, self.count = path, limit, 0
        self._words = np.zeros(1024, "S8")
        self._hashes, self._numbers = np.zeros(4096, np.uint64), np.full(4096, -1, np.int64)

    def words(self) -> np.ndarray:
        """Return all words by number, UTF-8 in a dtype S of the length of the longest."""
        words = self._words[: self.count]
        return words.astype(f"S{np.char.str_len(words).max(initial=1)}")

    def of(self, words: np.ndarray) -> np.ndarray:
        """Return numbers of these words, int64; words have dtype S, and new ones get the next numbers."""
        words = words.astype(f"S{-(-max(words.itemsize, 1) // 8) * 8}")
        hashes = hashed(words)
        numbers = self._find(hashes)
        if len(new := np.flatnonzero(numbers < 0)):
            _, first = np.unique(hashes[new], return_index=True)
            self._add(words[new[np.sort(first)]], hashes[new[np.sort(first)]])
            numbers[new] = self._find(hashes[new])
        if (self._words[numbers] != words).any():
            raise UserError(f"{self.path}: two ids have the same 64-bit hash; rename one of them")
        return numbers

    def _find(self, hashes: np.ndarray) -> np.ndarray:
        """Look up the numbers of hashes, -1 of unknown ones."""
        numbers, left = np.full(len(hashes), -1, np.int64), np.arange(len(hashes))
        slots = self._slots(hashes)
        while len(left):
            there = self._numbers[slots]
            same = self._hashes[slots] == hashes[left]
            numbers[left[same]] = there[same]
            further = ~same & (there >= 0)
            left, slots = left[further], (slots[further] + 1) % len(self._hashes)
        return numbers

    def _add(self, words: np.ndarray, hashes: np.ndarray) -> None:
        """Add distinct words that are new, and make room for them."""
        count = self.count + len(words)
        size = max(words.itemsize, self._words.itemsize)
        if count * size > self.limit:
            what = f"{count} ids of up to {size} bytes are too many for memory; give long ids shorter names"
            raise UserError(f"{self.path}: {what}")
        if count > len(self._words) or size > self._words.itemsize:
            room = np.zeros(max(count, 3 * len(self._words) // 2), f"S{size}")
            room[: self.count] = self._words[: self.count]
            self._words = room
        self._words[self.count : count] = words
        numbers = np.arange(self.count, count)
        if 3 * count > len(self._hashes):
            known = self._numbers >= 0
            hashes = np.concatenate([self._hashes[known], hashes])
            numbers = np.concatenate([self._numbers[known], numbers])
            size = 1 << (6 * count).bit_length()
            self._hashes, self._numbers = np.zeros(size, np.uint64), np.full(size, -1, np.int64)
        self.count = count
        self._put(hashes, numbers)

    def _put(self, hashes: np.ndarray, numbers: np.ndarray) -> None:
        """Enter distinct hashes that are not in the table: of several at a slot the last one stays there."""
        slots = self._slots(hashes)
        while len(hashes):
            free = np.flatnonzero(self._numbers[slots] < 0)
            self._numbers[slots[free]] = numbers[free]
            entered = self._numbers[slots] == numbers
            self._hashes[slots[entered]] = hashes[entered]
            hashes, numbers = hashes[~entered], numbers[~entered]
            slots = (slots[~entered] + 1) % len(self._hashes)

    def _slots(self, hashes: np.ndarray) -> np.ndarray:
        return (hashes & np.uint64(len(self._hashes) - 1)).astype(np.int64)


def hashed(words: np.ndarray) -> np.ndarray:
    """Hash words of a dtype S of a multiple of 8 bytes to uint64, whatever zeros stand behind them."""
    parts = np.ascontiguousarray(words).view(np.uint64).reshape(len(words), words.itemsize // 8)
    hashes = splitmix64(parts[:, 0].copy())
    for part in parts.T[1:]:
        hashes = np.where(part != 0, splitmix64(hashes ^ part), hashes)
    return hashes

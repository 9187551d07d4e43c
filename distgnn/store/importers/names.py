"""Ids of nodes that are words or any whole numbers, and the numbers that nodes have here.

Words are UTF-8 in arrays of dtype S, integers are int64. Memory: the ids, once, and once more while they are
sorted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS

LONGEST = 1 << 10  # bytes of an id
Place = Callable[[int], str]  # the place of row k of a table in its file
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


class Names:
    """Ids by node: `names[k]` is the id of node k, and `find` returns k. ValueError for a repeated id."""

    def __init__(self, names: np.ndarray, path: object = "ids") -> None:
        self.names, self.path, self.sorter = names, path, None
        if not (names[1:] > names[:-1]).all():
            self.sorter = np.argsort(names, kind="stable")
            ordered = names[self.sorter]
            twice = np.flatnonzero(ordered[1:] == ordered[:-1])
            if len(twice):
                self.twice: tuple[int, int] = (int(self.sorter[twice[0]]), int(self.sorter[twice[0] + 1]))
                raise ValueError(f"node {shown(ordered[twice[0]])} is listed twice")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def words(self) -> bool:
        return self.names.dtype.kind == "S"

    def has(self, *words: str) -> bool:
        """Return True if any of these words is an id."""
        try:
            return self.words and bool((self.find(encoded(words)) >= 0).any())
        except ValueError:
            return False

    def find(self, names: np.ndarray) -> np.ndarray:
        """Look up the number of each id, int64, -1 for an unknown one."""
        if not len(self):
            return np.full(len(names), -1, np.int64)
        dtype, cut = self.names.dtype, names
        if self.words and names.dtype != dtype:
            cut = names.astype(dtype)  # of one size, or all would be copied for every search
        places = np.searchsorted(self.names, cut, sorter=self.sorter).clip(max=len(self) - 1)
        places = places if self.sorter is None else self.sorter[places]
        return np.where(self.names[places] == names, places, -1)


class NumberIds:
    """Ids that are the numbers of nodes, 0..n-1."""

    words = False

    def __init__(self, n: int) -> None:
        self.n = n

    def find(self, names: np.ndarray) -> np.ndarray:
        return np.where((names >= 0) & (names < self.n), names, -1)


class Seen:
    """A set of whole numbers: marks of those below a limit, and the others in ascending order."""

    def __init__(self) -> None:
        self.marks, self.far = np.zeros(0, bool), np.zeros(0, np.int64)

    def add(self, *ids: np.ndarray) -> None:
        for some in ids:
            if len(some) and (some.min() < 0 or some.max() >= 64 * LIMITS.entries):
                near = (some >= 0) & (some < 64 * LIMITS.entries)
                self.far = distinct(self.far, some[~near])
                some = some[near]
            if (top := int(some.max(initial=-1)) + 1) > len(self.marks):
                grown = np.zeros(max(top, 3 * len(self.marks) // 2), bool)
                grown[: len(self.marks)] = self.marks
                self.marks = grown
            self.marks[some] = True

    def ids(self) -> np.ndarray:
        """Return all, int64, in ascending order."""
        below, split = np.flatnonzero(self.marks), np.searchsorted(self.far, 0)
        return np.concatenate([self.far[:split], below, self.far[split:]])


def distinct(*ids: np.ndarray) -> np.ndarray:
    """Return all ids once, in ascending order: several times as fast as numpy.unique, which hashes them."""
    ordered = np.sort(np.concatenate(ids))
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def encoded(words: Iterable[Any]) -> np.ndarray:
    """Convert words to UTF-8, dtype S, without blanks around them; ValueError for an empty or long one."""
    texts = [word.strip().encode() if isinstance(word, str) else b"" for word in words]
    longest = max(map(len, texts), default=1)
    if longest > LONGEST:
        raise ValueError(f"an id of {longest} bytes, at most {LONGEST} are possible")
    if not all(texts):
        raise ValueError("an empty id")
    if any(b"\0" in word for word in texts):
        raise ValueError("an id with a zero byte")
    return np.array(texts, f"S{longest}")


def whole(text: str) -> int | None:
    """Return the number that these ASCII digits write; None for another text, or for more than 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def integer(text: str) -> int | None:
    """Return the whole number that this text writes; None for another word, or beyond int64."""
    number = int(text) if _INTEGER.fullmatch(text) else 1 << 63
    return number if -(1 << 63) <= number < 1 << 63 else None


def fractions(values: np.ndarray) -> np.ndarray:
    """Return True for each floating-point number that is not whole, or may be a rounded one."""
    digits = np.finfo(values.dtype).nmant + 1
    return ~((np.abs(values) <= 2.0**digits) & (np.trunc(values) == values))


def shown(name: Any) -> str:
    """Return an id as errors show it."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    return repr(text[:60]) if isinstance(name, bytes) else text


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def places_of(ids: Names | NumberIds, listed: np.ndarray, place: Place, where: str) -> np.ndarray:
    """Look up the numbers of the ids in a table; UserError for the first unknown or repeated id.

    `where` describes the nodes of the graph.
    """
    numbers = ids.find(listed)
    if len(numbers) and numbers.min() < 0:
        row = int(np.flatnonzero(numbers < 0)[0])
        raise UserError(f"{place(row)}: node {shown(listed[row])} is not in the graph; {where}")
    check_once(numbers, listed, place)
    return numbers


def check_once(numbers: np.ndarray, listed: np.ndarray, place: Place) -> None:
    """Raise UserError for the first node that has a second row."""
    order = np.argsort(numbers, kind="stable")
    again = np.flatnonzero(np.diff(numbers[order]) == 0)
    if len(again):
        row = int(order[again + 1].min())
        raise UserError(f"{place(row)}: node {shown(listed[row])} is listed twice; expected one row for each")

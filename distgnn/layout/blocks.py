"""Partition vectors, which cut a range of rows or columns into blocks. Pure functions of integers.

A *partition vector* is a monotone int64 vector ``v`` of length ``parts + 1`` with ``v[0] == 0`` and ``v[-1]
== n``; block ``i`` is the range ``v[i]:v[i+1]``, perhaps empty. Nothing is ever padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Range = tuple[int, int]


def partition(n: int, parts: int) -> np.ndarray:
    """Cut ``n`` into ``parts`` blocks of about equal size: block i begins at i n/parts.

    Examples:
        >>> partition(10, 4)
        array([ 0,  2,  5,  7, 10])

    ``partition(n, a * b)[::b]`` equals ``partition(n, a)``: cutting once more never moves a boundary.
    """
    if n < 0 or parts < 1:
        raise ValueError(f"cannot cut {n} into {parts} blocks")
    each, rest = divmod(int(n), parts)
    i = np.arange(parts + 1, dtype=np.int64)
    return i * each + i * rest // parts


def as_partition(vector: Sequence[int] | np.ndarray | None, n: int, parts: int) -> np.ndarray:
    """Return ``vector``, or for None the even partition; ValueError if it doesn't cut ``n`` as asked."""
    if vector is None:
        return partition(n, parts)
    checked = np.asarray(vector, dtype=np.int64)
    if checked.shape != (parts + 1,):
        raise ValueError(f"a partition into {parts} blocks has {parts + 1} boundaries, not {checked.shape}")
    if checked[0] != 0 or checked[-1] != n or (checked[1:] < checked[:-1]).any():
        raise ValueError(f"a partition vector must rise from 0 to {n}, got {checked.tolist()[:8]}…")
    return checked


def nested(outer: np.ndarray, parts: int) -> np.ndarray:
    """Cut every block of ``outer`` evenly into ``parts``: a vector of ``parts * (len(outer) - 1)`` blocks."""
    cut = [first + partition(int(last - first), parts)[:-1] for first, last in pairwise(outer)]
    return np.concatenate([*cut, outer[-1:]]).astype(np.int64)


def within(vector: np.ndarray, outer: int, parts: int) -> np.ndarray:
    """Return the partition vector of block ``outer``, from a vector with ``parts`` blocks in each."""
    return vector[outer * parts : (outer + 1) * parts + 1] - vector[outer * parts]


def shares(vector: np.ndarray, number: int) -> np.ndarray:
    """Cut a partitioned range into ``number`` ranges, each of as many blocks, or parts of blocks.

    Examples:
        >>> shares(np.array([0, 4, 8, 12]), 2)
        array([ 0,  6, 12])
    """
    whole, rest = np.divmod(np.arange(number + 1) * (len(vector) - 1), number)
    sizes = np.append(np.diff(vector), 0)[whole]
    return vector[whole] + sizes * rest // number


def refine(first: np.ndarray, second: np.ndarray) -> list[Range]:
    """Return the common refinement of two partitions of the same range: its non-empty blocks, in order."""
    return list(pairwise(np.union1d(first, second).tolist()))


def owner(vector: np.ndarray, position: int) -> int:
    """Return the block of a partition that holds ``position`` (never an empty block)."""
    return int(np.searchsorted(vector, position, side="right")) - 1


def block(vector: np.ndarray, index: int) -> Range:
    """Return block ``index`` of a partition vector as ``(first, last + 1)``."""
    return int(vector[index]), int(vector[index + 1])

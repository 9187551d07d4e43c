"""Arrays by node that no rank holds whole: cut in blocks, on disk, and looked up over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from distgnn.arrays.csr import index_type
from distgnn.layout import Range, block, partition
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.shards import Blocks, overlaps
from distgnn.store.team import Team

T = TypeVar("T")
TURNS = 16  # at most, in which all nodes are sorted, each of a quarter of LIMITS.entries


class CutArray:
    """A one-dimensional array in blocks, each in a file or, without a path, in memory.

    A block is written by one rank; after a collective call every rank may read any range.
    """

    def __init__(self, bounds: np.ndarray, dtype: Any, path: Path | None) -> None:
        self.bounds, self.dtype, self.path = bounds, np.dtype(dtype), path
        self._held: dict[int, np.ndarray] = {}

    def write(self, index: int, values: np.ndarray) -> None:
        """Write a block."""
        values = np.ascontiguousarray(values, self.dtype)
        if self.path is None:
            self._held[index] = values
        else:
            self._file(self.path, index).write_bytes(values.data)

    def read(self, lo: int, hi: int) -> np.ndarray:
        """Read the numbers lo..hi-1."""
        result = np.empty(hi - lo, self.dtype)
        for index, (first, last) in overlaps(self.bounds, (lo, hi)):
            begin, end = first - int(self.bounds[index]), last - int(self.bounds[index])
            if self.path is None:
                part = self._held[index][begin:end]
            else:
                at = begin * self.dtype.itemsize
                part = np.fromfile(self._file(self.path, index), self.dtype, end - begin, offset=at)
            result[first - lo : last - lo] = part
        return result

    def drop(self, index: int) -> None:
        """Free a block."""
        self._held.pop(index, None)
        if self.path is not None:
            self._file(self.path, index).unlink()

    def _file(self, path: Path, index: int) -> Path:
        return path.with_name(f"{path.name}-{index:05d}")


def own(team: Team, n: int) -> Range:
    """Return this rank's range of n nodes, or of n positions."""
    return block(partition(n, team.size), team.rank)


def pieces(lo: int, hi: int, divided: int = 1) -> Iterator[Range]:
    """Cut a range into ranges of at most LIMITS.entries, divided by a number."""
    step = max(1, LIMITS.entries // divided)
    return ((first, min(first + step, hi)) for first in range(lo, hi, step))


def turns(team: Team, items: Iterable[T]) -> Iterator[T | None]:
    """Yield this rank's items, then None until no rank has more. Collective, as whatever a turn does."""
    mine = iter(items)
    while True:
        with team.together():
            item = next(mine, None)
        if not any(team.gather_objects(item is not None)):
            return
        yield item


def routed(team: Team, owners: np.ndarray, *arrays: np.ndarray) -> list[list[np.ndarray]]:
    """Send element k of each array to rank `owners[k]`; return what came, by array and rank. Collective."""
    if team.size == 1:
        return [[array] for array in arrays]
    order, cuts = _by_owner(team, owners)
    return [team.swap(np.split(array[order], cuts)) for array in arrays]


def answered(
    team: Team, owners: np.ndarray, asked: np.ndarray, answer: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:  # fmt: skip
    """Return the answers to `asked`, element k by rank `owners[k]`, which gets all its questions at once.

    These come rank by rank, of each in the order asked. Collective.
    """
    if team.size == 1:
        return answer(asked)
    order, cuts = _by_owner(team, owners)
    came = team.swap(np.split(asked[order], cuts))
    ends = np.cumsum([len(some) for some in came])[:-1]
    back = np.concatenate(team.swap(np.split(answer(np.concatenate(came)), ends)))
    result = np.empty_like(back)
    result[order] = back
    return result


def fetch(team: Team, n: int, mine: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the numbers at `places` of an array of n, of which each rank holds its own range. Collective."""
    if team.size == 1:
        return mine.take(places)
    bounds, kind = partition(n, team.size), index_type(n)
    owners = Blocks(bounds).of(places)
    return answered(team, owners, places.astype(kind), lambda some: mine[some - bounds[team.rank]])


def _by_owner(team: Team, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a stable order by owner, and where those of each next rank begin."""
    narrow = owners.astype(np.uint16 if team.size <= 1 << 16 else np.int64)  # NumPy sorts 16 bits by radix
    cuts = np.cumsum(np.bincount(narrow, minlength=team.size))[:-1]
    return np.argsort(narrow, kind="stable"), cuts


def ranked(team: Team, n: int, keys: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Return the places of this rank's nodes in the order of ascending keys, then of ids. Collective.

    `keys(lo, hi)`: uint64, spread evenly. Each rank sorts a part of their range, in turns.
    """
    (first, last), many = own(team, n), min(TURNS, max(1, -(-4 * n // (team.size * LIMITS.entries))))
    total, places = team.size * many, np.empty(last - first, index_type(n))
    counts = np.zeros(total, np.int64)
    for lo, hi in pieces(first, last, 4):
        counts += np.bincount(_range(keys(lo, hi), total), minlength=total)
    starts = np.cumsum(team.total(counts)) - counts
    for turn in range(many):
        chosen, owners, asked = _of_turn(keys, (first, last), total, many, turn)
        before = int(starts[team.rank * many + turn])
        places[chosen] = answered(team, owners, asked, partial(_ranks, before))
    return places


def _range(keys: np.ndarray, total: int) -> np.ndarray:
    """Return which of so many equal ranges each key is in."""
    return ((keys >> np.uint64(32)) * np.uint64(total) >> np.uint64(32)).astype(np.int64)


def _of_turn(
    keys: Callable[[int, int], np.ndarray], span: Range, total: int, many: int, turn: int
) -> tuple[np.ndarray, ...]:
    """Return the nodes of a span (from 0), owners and keys that are sorted in a turn."""
    chosen = []
    for lo, hi in pieces(*span, 4):
        some = keys(lo, hi)
        owners, at = np.divmod(_range(some, total), many)
        where = np.flatnonzero(at == turn)
        chosen.append((where + (lo - span[0]), owners[where], some[where]))
    nothing = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)
    return tuple(np.concatenate(parts) for parts in zip(nothing, *chosen, strict=True))


def _ranks(before: int, keys: np.ndarray) -> np.ndarray:
    ranks = np.empty(len(keys), np.int64)
    ranks[np.argsort(keys, kind="stable")] = np.arange(before, before + len(keys))
    return ranks


def counted(team: Team, labels: np.ndarray, count: int) -> np.ndarray:
    """Return the places of this rank's nodes in the order of their labels in 0..count-1, then of ids.

    Collective.
    """
    every = np.stack(team.gather_objects(np.bincount(labels, minlength=count)))
    totals, mine = every.sum(axis=0), every[team.rank]
    starts = np.cumsum(totals) - totals + every[: team.rank].sum(axis=0)
    shifts, order = starts - (np.cumsum(mine) - mine), np.argsort(labels, kind="stable")
    places = np.empty(len(labels), index_type(int(totals.sum())))
    for lo, hi in pieces(0, len(labels)):
        some = order[lo:hi]
        places[some] = shifts[labels[some]] + np.arange(lo, hi)
    return places

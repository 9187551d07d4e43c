"""Node orders of a store that is prepared, cut over its ranks (``partition/orders.py`` says which there are).

A rank holds the positions of its own range of nodes. Both arrays lie on disk, where any range is read; the
positions of other nodes are asked of the ranks that hold them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from distgnn import rng
from distgnn.arrays.csr import index_type
from distgnn.layout import partition
from distgnn.partition.orders import random_keys, spread_keys
from distgnn.store.format.shards import Blocks
from distgnn.store.team import Team
from distgnn.store.write.cut import CutArray, counted, fetch, own, pieces, ranked, routed


class Side:
    """The order of the rows or the columns; without `places`, the positions of own nodes, the identity.

    With places, making it is collective, and writes files that begin with `path`.
    """

    def __init__(
        self, team: Team, n: int, path: Path | None = None, places: np.ndarray | None = None
    ) -> None:
        self.team, self.n, self.kind, self.held = team, n, index_type(n), None
        if places is None or path is None:
            return
        bounds = partition(n, team.size)
        self.held = places.astype(self.kind, copy=False)
        self._inverse = CutArray(bounds, self.kind, path.with_name(f"{path.name}-inverse"))
        self._permutation = CutArray(bounds, self.kind, path.with_name(f"{path.name}-permutation"))
        turned = self._turned(bounds)
        with team.together():
            self._inverse.write(team.rank, self.held)
            self._permutation.write(team.rank, turned)
        with team.together():
            pass  # all files are there

    @property
    def identity(self) -> bool:
        """True if node i is at position i."""
        return self.held is None

    def _turned(self, bounds: np.ndarray) -> np.ndarray:
        """Return the nodes at this rank's own positions."""
        (first, last), held = own(self.team, self.n), self.held
        assert held is not None
        result, most = np.empty(last - first, held.dtype), int(np.diff(bounds).max())
        for lo, hi in pieces(0, most, 4):  # as many turns on every rank
            some = held[lo:hi]
            nodes = np.arange(first + lo, first + lo + len(some), dtype=held.dtype)
            owners = Blocks(bounds).of(some)
            for places, ids in zip(*routed(self.team, owners, some, nodes), strict=True):
                result[places - first] = ids
        return result

    def ids(self, lo: int, hi: int) -> np.ndarray:
        """Read the nodes at positions lo..hi-1."""
        return np.arange(lo, hi, dtype=self.kind) if self.identity else self._permutation.read(lo, hi)

    def places(self, lo: int, hi: int) -> np.ndarray:
        """Read the positions of nodes lo..hi-1."""
        return np.arange(lo, hi, dtype=self.kind) if self.identity else self._inverse.read(lo, hi)

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Return the positions of any nodes. Collective."""
        return ids if self.held is None else fetch(self.team, self.n, self.held, ids)

    def sha256(self) -> str:
        """Hash the permutation. Collective."""
        digest = hashlib.sha256()
        with self.team.together():
            for lo, hi in pieces(0, self.n if self.team.rank == 0 else 0):
                digest.update(self.ids(lo, hi).data)
        return self.team.gather_objects(digest.hexdigest())[0]


@dataclass(frozen=True)
class Version:
    """A version of the matrix: the order of its rows and the order of its columns."""

    rows: Side
    cols: Side

    @property
    def alike(self) -> bool:
        """True if row i and column i belong to the same node."""
        return self.rows is self.cols

    def twins(self, path: Path | None) -> CutArray | None:
        """Return the row positions of the nodes at each column; None if they are alike. Collective."""
        if self.alike:
            return None
        team, n = self.rows.team, self.rows.n
        bounds = partition(n, team.size)
        result, parts = CutArray(bounds, index_type(n), path), [np.empty(0, index_type(n))]
        for lo, hi in pieces(0, int(np.diff(bounds).max())):
            first, last = np.minimum(bounds[team.rank] + [lo, hi], bounds[team.rank + 1]).tolist()
            with team.together():
                ids = self.cols.ids(first, last)
            parts.append(self.rows.positions(ids))
        with team.together():
            result.write(team.rank, np.concatenate(parts))
        return result


@dataclass(frozen=True)
class MatrixOrder:
    """An order of the matrix: `sides[k]` orders the rows of version k, and the columns of version k + 1.

    Layer l takes version l modulo their number. `partition`: the partition vector that it was made for, or
    None.
    """

    name: str
    sides: tuple[Side, ...]
    partition: np.ndarray | None = None

    @property
    def versions(self) -> tuple[Version, ...]:
        """The orders of rows and columns of each version of the matrix."""
        return tuple(Version(rows, self.sides[k - 1]) for k, rows in enumerate(self.sides))

    @property
    def input(self) -> Side:
        """The order of the columns of layer 0's matrix, which features take."""
        return self.sides[-1]


def make(
    name: str, n: int, seed: int, team: Team, folder: Path, degrees: np.ndarray | None = None
) -> MatrixOrder:  # fmt: skip
    """Make the order of this name; the same for a seed on every machine, NumPy version and number of ranks.

    `degrees`, int64, of this rank's own nodes, is for `double`. Collective.
    """
    if name == "original":
        return MatrixOrder(name, (Side(team, n),))
    streams = (rng.PERMUTATION, rng.COLUMN_PERMUTATION) if name == "double" else (rng.PERMUTATION,)
    ranks = None if degrees is None or name != "double" else degree_ranks(team, degrees)
    sides = []
    for number, stream in enumerate(streams):
        keys: Callable[[int, int], np.ndarray] = partial(random_keys, seed, stream)
        if ranks is not None:
            keys = _spread(ranks, own(team, n)[0], seed, stream)
        places = ranked(team, n, keys)
        del keys
        sides.append(Side(team, n, folder / f"{name}-{number}", places))
    return MatrixOrder(name, tuple(sides))


def _spread(ranks: np.ndarray, first: int, seed: int, stream: int) -> Callable[[int, int], np.ndarray]:
    """Return `ranked`'s keys of the order `double`, for the nodes from `first` on that have these ranks."""
    spread = np.empty(len(ranks), np.uint64)
    for lo, hi in pieces(0, len(ranks), 4):
        some = ranks[lo:hi].astype(np.uint64), np.arange(first + lo, first + hi)
        spread[lo:hi] = spread_keys(*some, seed, stream)
    return lambda lo, hi: spread[lo - first : hi - first]


def by_parts(name: str, part: np.ndarray, parts: int, n: int, team: Team, folder: Path) -> MatrixOrder:
    """Order the nodes of part 0, then of part 1, and so on, each by id. Collective.

    part: of this rank's own nodes, int in 0..parts-1.
    """
    sizes = team.total(np.bincount(part, minlength=parts).astype(np.int64))
    side = Side(team, n, folder / name, counted(team, part, parts))
    return MatrixOrder(name, (side,), np.concatenate([[0], np.cumsum(sizes)]))


def degree_ranks(team: Team, degrees: np.ndarray) -> np.ndarray:
    """Return the places of this rank's nodes by descending degree, then by id. Collective."""
    cuts = list(pieces(0, len(degrees)))
    distinct = np.unique(np.concatenate([degrees[:0], *(np.unique(degrees[lo:hi]) for lo, hi in cuts)]))
    known = -np.unique(np.concatenate(team.gather_objects(distinct)))[::-1]
    labels = np.empty(len(degrees), index_type(len(known)))
    for lo, hi in cuts:
        labels[lo:hi] = np.searchsorted(known, -degrees[lo:hi])
    return counted(team, labels, len(known))


def count_ends(team: Team, n: int, ends: Sequence[np.ndarray], into: np.ndarray) -> None:
    """Add 1 (or True) to the numbers, of which each rank holds its own range, of these nodes. Collective."""
    bounds = partition(n, team.size)
    for ids in ends:
        owners = Blocks(bounds).of(ids)
        (came,) = routed(team, owners, ids.astype(np.int64, copy=False))
        for some in came:
            np.add.at(into, some - bounds[team.rank], into.dtype.type(1))

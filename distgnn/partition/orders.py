"""Node orders: which node stands at which position.

A node order is a permutation ``p`` with ``p[position] = original id``. `random` spreads hubs and communities
evenly over any blocks (MG-GCN section 5.2: it balances the non-zeros of tiles without looking at the graph).
An order by partition has the parts one after the other; they become the blocks of the products it was made
for.

`double` has two permutations (Plexus section 5.1), because under a single one whatever lies near the diagonal
stays there, self-loops above all: layers 0, 2, 4 … multiply P_r A P_cᵀ and layers 1, 3, 5 … P_c A P_rᵀ, so
that each takes its input in the order in which the one before leaves its output. They are random, but hubs
are dealt out evenly (see `spread`); the paper leaves it to chance how many of them a row of shards gets,
which shows on graphs with very unequal degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distgnn import rng
from distgnn.arrays.csr import index_type
from distgnn.errors import ArgumentError

KNOWN = ("original", "random", "double")
LEVELS = 16  # of halving at which `double` is even: up to 65,536 rows and columns of shards


def check_names(names: Sequence[str]) -> None:
    """ArgumentError unless there is at least one name and all are known and different."""
    known = ", ".join(KNOWN)
    for name in names:
        if name not in KNOWN:
            raise ArgumentError("order", name, f"no such order; known: {known}")
    if not names or len(set(names)) != len(names):
        raise ArgumentError("order", ",".join(names), f"give one or more different orders of {known}")


@dataclass(frozen=True)
class Permutation:
    """A node order held in memory: `permutation` [position] -> id and `inverse` [id] -> position, int32 where
    it fits; both None for the identity."""

    permutation: np.ndarray | None = None
    inverse: np.ndarray | None = None

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """The nodes at these positions."""
        return positions if self.permutation is None else self.permutation[positions]

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Where these nodes stand."""
        return ids if self.inverse is None else self.inverse[ids]


@dataclass(frozen=True)
class Version:
    """A version of the matrix: which nodes stand at its rows and which at its columns."""

    rows: Permutation
    cols: Permutation

    @property
    def alike(self) -> bool:
        """Do the same nodes stand at rows and columns of the same number?"""
        return self.rows is self.cols


@dataclass(frozen=True)
class MatrixOrder:
    """An order of the matrix: `sides[k]` orders the rows of version k, and the columns of the version after
    it. Layer l takes version l modulo their number. `partition`: the partition vector that it was made for,
        or None."""

    name: str
    sides: tuple[Permutation, ...]
    partition: np.ndarray | None = None

    @property
    def versions(self) -> tuple[Version, ...]:
        """The orders of rows and columns of each version of the matrix."""
        return tuple(Version(rows, self.sides[k - 1]) for k, rows in enumerate(self.sides))

    @property
    def input(self) -> Permutation:
        """Of the nodes at the columns of layer 0's matrix, where features belong."""
        return self.sides[-1]


def make(name: str, n: int, seed: int, degrees: np.ndarray | None = None) -> MatrixOrder:
    """The order of this name; the same for a seed on every machine and NumPy version. `degrees` int (n,): for
    `double`, which without them leaves hubs to chance."""
    if name == "original":
        return MatrixOrder(name, (Permutation(),))
    if name == "double":
        degrees = np.zeros(n, np.int64) if degrees is None else degrees
        streams = rng.PERMUTATION, rng.COLUMN_PERMUTATION
        return MatrixOrder(name, tuple(spread(degrees, seed, stream) for stream in streams))
    return MatrixOrder(name, (shuffled(n, seed),))


def shuffled(n: int, seed: int, stream: int = rng.PERMUTATION) -> Permutation:
    """A random permutation, a function of (seed, stream)."""
    return _sorted(rng.hashes(rng.key(seed, stream), np.arange(n)))


def spread(degrees: np.ndarray, seed: int, stream: int) -> Permutation:
    """A random permutation, a function of (seed, stream), that keeps nodes of like degree far apart.

    Of the two nodes of highest degree one is in the first half of the positions and one in the second, as of
    the next two, and so on; of the four of highest degree one is in each quarter, and so on: at every one of
    `LEVELS` levels. Which one is random, independently for different streams, so that the diagonal is spread
    as well.
    """
    rank = np.empty(len(degrees), np.uint64)
    rank[np.argsort(-degrees, kind="stable")] = np.arange(len(degrees), dtype=np.uint64)
    # the leading bits of a fraction: where between the first position and the last
    place = np.zeros_like(rank)
    one, levels = np.uint64(1), np.uint64(LEVELS)
    for level in range(LEVELS):
        group = rank >> np.uint64(level + 1)
        flip = rng.hashes(rng.key(seed, stream, level), group << levels | place) >> np.uint64(63)
        place = place << one | (rank >> np.uint64(level) & one ^ flip)
    within = rng.hashes(rng.key(seed, stream, LEVELS), np.arange(len(degrees)))
    return _sorted(place << np.uint64(64) - levels | within >> levels)


def by_parts(name: str, part: np.ndarray, parts: int) -> MatrixOrder:
    """The nodes of part 0, of part 1, and so on, each by id; part int (n,) in 0..parts-1."""
    bounds = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    return MatrixOrder(name, (_sorted(part),), bounds)


def _sorted(keys: np.ndarray) -> Permutation:
    """By ascending keys; nodes with the same key by id."""
    permutation = np.argsort(keys, kind="stable").astype(index_type(len(keys)))
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(keys), dtype=inverse.dtype)
    return Permutation(permutation, inverse)

"""Node orders: the position of every node.

A node order is a permutation ``p`` with ``p[position] = original id``. `random` spreads hubs and communities
evenly over any blocks (MG-GCN section 5.2: it balances the non-zeros of tiles without looking at the graph).
An order by partition has the parts one after the other; they become the blocks of the products it was made
for.

`double` has two permutations (Plexus section 5.1): under a single one, entries near the diagonal stay there,
self-loops above all. Layers 0, 2, 4 … multiply P_r A P_cᵀ and layers 1, 3, 5 … P_c A P_rᵀ, so that each layer
takes its input in the order in which the layer before leaves its output. They are random, but hubs are dealt
out evenly (see `spread`). The paper leaves to chance how many hubs a row of shards gets, which shows on
graphs with very unequal degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distgnn import rng
from distgnn.arrays.csr import index_type
from distgnn.errors import ArgumentError, offered

KNOWN = ("original", "random", "double")
LEVELS = 16  # levels of halving at which `double` is even: up to 65,536 rows and columns of shards


def check_names(names: Sequence[str]) -> None:
    """Raise ArgumentError unless there is at least one name and all are known and different."""
    known = ", ".join(KNOWN)
    for name in names:
        if name not in KNOWN:
            raise ArgumentError("order", name, f"no such order; {offered(name, KNOWN)}")
    if not names or len(set(names)) != len(names):
        raise ArgumentError("order", ",".join(names), f"give one or more different orders of {known}")


@dataclass(frozen=True)
class Permutation:
    """A node order held in memory: `permutation` [position] -> id and `inverse` [id] -> position.

    int32 if the numbers fit; both are None for the identity.
    """

    permutation: np.ndarray | None = None
    inverse: np.ndarray | None = None

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Return the nodes at these positions."""
        return positions if self.permutation is None else self.permutation[positions]

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Return the positions of these nodes."""
        return ids if self.inverse is None else self.inverse[ids]


@dataclass(frozen=True)
class Version:
    """A version of the matrix: the order of its rows and the order of its columns."""

    rows: Permutation
    cols: Permutation

    @property
    def alike(self) -> bool:
        """True if row i and column i belong to the same node."""
        return self.rows is self.cols


@dataclass(frozen=True)
class MatrixOrder:
    """An order of the matrix: `sides[k]` orders the rows of version k, and the columns of version k + 1.

    Layer l takes version l modulo their number. `partition`: the partition vector that it was made for, or
    None.
    """

    name: str
    sides: tuple[Permutation, ...]
    partition: np.ndarray | None = None

    @property
    def versions(self) -> tuple[Version, ...]:
        """The orders of rows and columns of each version of the matrix."""
        return tuple(Version(rows, self.sides[k - 1]) for k, rows in enumerate(self.sides))

    @property
    def input(self) -> Permutation:
        """The order of the columns of layer 0's matrix, which features take."""
        return self.sides[-1]


def make(name: str, n: int, seed: int, degrees: np.ndarray | None = None) -> MatrixOrder:
    """Make the order of this name; the same for a seed on every machine and NumPy version.

    `degrees`, int (n,), is for `double`, which without them leaves hubs to chance.
    """
    if name == "original":
        return MatrixOrder(name, (Permutation(),))
    if name == "double":
        degrees = np.zeros(n, np.int64) if degrees is None else degrees
        streams = rng.PERMUTATION, rng.COLUMN_PERMUTATION
        return MatrixOrder(name, tuple(spread(degrees, seed, stream) for stream in streams))
    return MatrixOrder(name, (shuffled(n, seed),))


def shuffled(n: int, seed: int, stream: int = rng.PERMUTATION) -> Permutation:
    """Draw a random permutation, a function of (seed, stream)."""
    return _sorted(rng.hashes(rng.key(seed, stream), np.arange(n)))


def spread(degrees: np.ndarray, seed: int, stream: int) -> Permutation:
    """Draw a random permutation, a function of (seed, stream), that keeps nodes of like degree far apart.

    Of the two nodes of highest degree one is in the first half of the positions and one in the second; the
    same holds for the next two, and so on. Of the four of highest degree one is in each quarter, and so on,
    at every one of `LEVELS` levels. Which node goes where is random, independently for different streams, so
    that the diagonal is spread as well.
    """
    rank = np.empty(len(degrees), np.uint64)
    rank[np.argsort(-degrees, kind="stable")] = np.arange(len(degrees), dtype=np.uint64)
    # the leading bits of a fraction of the way from the first position to the last
    place = np.zeros_like(rank)
    unit, levels = np.uint64(1), np.uint64(LEVELS)
    for level in range(LEVELS):
        group = rank >> np.uint64(level + 1)
        flip = rng.hashes(rng.key(seed, stream, level), group << levels | place) >> np.uint64(63)
        place = place << unit | (rank >> np.uint64(level) & unit ^ flip)
    within = rng.hashes(rng.key(seed, stream, LEVELS), np.arange(len(degrees)))
    return _sorted(place << np.uint64(64) - levels | within >> levels)


def by_parts(name: str, part: np.ndarray, parts: int) -> MatrixOrder:
    """Order the nodes of part 0, then of part 1, and so on, each by id; part int (n,) in 0..parts-1."""
    bounds = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    return MatrixOrder(name, (_sorted(part),), bounds)


def _sorted(keys: np.ndarray) -> Permutation:
    """Order by ascending keys; nodes with the same key by id."""
    permutation = np.argsort(keys, kind="stable").astype(index_type(len(keys)))
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(keys), dtype=inverse.dtype)
    return Permutation(permutation, inverse)

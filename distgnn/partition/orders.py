"""Node orders: the position of every node.

A node order is a permutation ``p`` with ``p[position] = original id``. `random` spreads hubs and communities
evenly over any blocks (MG-GCN section 5.2: it balances the non-zeros of tiles without looking at the graph).
An order by partition has the parts one after the other; they become the blocks of the products it was made
for.

`double` has two permutations (Plexus section 5.1): under a single one, entries near the diagonal stay there,
self-loops above all. Layers 0, 2, 4 … multiply P_r A P_cᵀ and layers 1, 3, 5 … P_c A P_rᵀ, so that each layer
takes its input in the order in which the layer before leaves its output. They are random, but hubs are dealt
out evenly (see `spread_keys`). The paper leaves to chance how many hubs a row of shards gets, which shows on
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


def shuffled(n: int, seed: int, stream: int = rng.PERMUTATION) -> Permutation:
    """Draw a random permutation, the same for (seed, stream) on all machines and NumPy versions."""
    return by_keys(random_keys(seed, stream, 0, n))


def random_keys(seed: int, stream: int, lo: int, hi: int) -> np.ndarray:
    """Return the keys, uint64, by which nodes lo..hi-1 are sorted in a random order."""
    return rng.hashes(rng.key(seed, stream), np.arange(lo, hi))


def spread_keys(ranks: np.ndarray, ids: np.ndarray, seed: int, stream: int) -> np.ndarray:
    """Return the keys of nodes in a random order that keeps nodes of like degree far apart, uint64.

    `ranks`, uint64: the place of each node by descending degree. Of the two nodes of highest degree one is in
    the first half of the positions and one in the second; the same holds for the next two, and so on. Of the
    four of highest degree one is in each quarter, and so on, at every one of `LEVELS` levels. Which node goes
    where is random, independently for different streams, so that the diagonal is spread as well.
    """
    # the leading bits of a fraction of the way from the first position to the last
    place = np.zeros_like(ranks)
    unit, levels = np.uint64(1), np.uint64(LEVELS)
    for level in range(LEVELS):
        group = ranks >> np.uint64(level + 1)
        flip = rng.hashes(rng.key(seed, stream, level), group << levels | place) >> np.uint64(63)
        place = place << unit | (ranks >> np.uint64(level) & unit ^ flip)
    within = rng.hashes(rng.key(seed, stream, LEVELS), ids)
    return place << np.uint64(64) - levels | within >> levels


def by_keys(keys: np.ndarray) -> Permutation:
    """Order by ascending keys; nodes with the same key by id."""
    permutation = np.argsort(keys, kind="stable").astype(index_type(len(keys)))
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(keys), dtype=inverse.dtype)
    return Permutation(permutation, inverse)

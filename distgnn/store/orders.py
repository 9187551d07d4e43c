"""Node orders: which node stands at which position.

An order is a permutation ``p`` with ``p[position] = original id``. `random` spreads hubs and communities
evenly over any blocks (MG-GCN section 5.2: it balances the non-zeros of tiles without looking at the graph). An order by
partition has the parts one after the other; they become the blocks of the products it was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distgnn import rng
from distgnn.errors import UserError

KNOWN = ("original", "random")


def check_names(names: Sequence[str]) -> None:
    """UserError unless there is at least one name and all are known and different."""
    for name in names:
        if name not in KNOWN:
            raise UserError(f"--order {name}: no such order; known: {', '.join(KNOWN)}")
    if not names or len(set(names)) != len(names):
        raise UserError(f"--order {','.join(names)}: give one or more different orders of {', '.join(KNOWN)}")


@dataclass(frozen=True)
class NodeOrder:
    """A node order held in memory: `permutation` [position] -> id and `inverse` [id] -> position, int32 where it fits;
    both None for the identity. `partition`: the partition vector that it was made for, or None."""

    name: str
    permutation: np.ndarray | None = None
    inverse: np.ndarray | None = None
    partition: np.ndarray | None = None

    def ids(self, positions: np.ndarray) -> np.ndarray:
        return positions if self.permutation is None else self.permutation[positions]

    def positions(self, ids: np.ndarray) -> np.ndarray:
        return ids if self.inverse is None else self.inverse[ids]


def make(name: str, n: int, seed: int) -> NodeOrder:
    """The order of this name; the same for a seed on every machine and NumPy version."""
    if name == "original":
        return NodeOrder(name)
    keys = rng.hashes(rng.key(seed, rng.PERMUTATION), np.arange(n))
    return _sorted(name, keys)


def by_parts(name: str, part: np.ndarray, parts: int) -> NodeOrder:
    """The nodes of part 0, of part 1, and so on, each in the order of their ids; part int (n,) in 0..parts-1."""
    bounds = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    return _sorted(name, part, bounds)


def _sorted(name: str, keys: np.ndarray, partition: np.ndarray | None = None) -> NodeOrder:
    """By ascending keys; nodes with the same key by id."""
    permutation = np.argsort(keys, kind="stable").astype(index_type(len(keys)))
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(keys), dtype=inverse.dtype)
    return NodeOrder(name, permutation, inverse, partition)


def index_type(n: int) -> np.dtype:
    """The smallest of int32 and int64 that counts to n."""
    return np.dtype(np.int32 if n < 2**31 else np.int64)

"""Minibatches of whole parts of the nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays import backend
from distgnn.errors import ArgumentError
from distgnn.sampling.cluster import Cluster
from distgnn.sampling.sampler import Sampler
from distgnn.train.minibatches import Minibatches, even_groups


class PartBatches(Minibatches):
    """The minibatches of every epoch: all parts in an order by (seed, epoch, part), cut evenly.

    A part is in one of them; how many parts each has, :func:`even_groups` says.

    Args:
        part: of each vertex, int (n); vertices of a negative part are in none, a part without vertices is
            none.
        training: positions of the training nodes, on the host or on a GPU; size: parts of a minibatch.
        rescale: whether the sampler rescales, for which a minibatch has several parts.
    """

    def __init__(self, part: Any, training: Any, size: int, seed: int = 0, rescale: bool = False) -> None:
        super().__init__(training, size, seed)
        part = backend.of(part).to_host(part)
        self.parts = np.unique(part[part >= 0])
        if not self.parts.size:
            raise ArgumentError("parts", 0, "no node is in a part")
        nodes = np.argsort(part, kind="stable")
        self.members = np.split(nodes, np.searchsorted(part[nodes], self.parts))[1:]
        self.bounds = even_groups(self.parts.size, size, rescale)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def epoch(self, epoch: int) -> list[Any]:
        """Give the vertices of each minibatch of an epoch, rising, int64, on the host."""
        hashes = rng.hashes(rng.key(self.seed, rng.MINIBATCH, epoch), self.parts)
        groups = np.split(np.argsort(hashes, kind="stable"), self.bounds[1:-1])
        return [np.sort(np.concatenate([self.members[k] for k in group])) for group in groups]


def minibatches_of(sampler: Sampler, training: Any, size: int, seed: int) -> Minibatches:
    """Make the minibatches that a sampler takes: of training nodes, or of parts."""
    if isinstance(sampler, Cluster):
        return PartBatches(sampler.part, training, size, seed, sampler.rescale)
    return Minibatches(training, size, seed)

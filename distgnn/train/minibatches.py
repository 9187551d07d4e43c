"""Training nodes into minibatches."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays import backend
from distgnn.errors import ArgumentError


class Minibatches:
    """The minibatches of every epoch: training nodes in an order by (seed, epoch, node id), cut into batches.

    Args:
        training: distinct global ids, in any order, on the host or int64 on a GPU.
        batch_size: nodes per minibatch; the last one has what is left, and is the only one of too few nodes.

    Raises:
        ArgumentError: no training nodes, or a batch size below 1.
    """

    def __init__(self, training: Any, batch_size: int, seed: int = 0) -> None:
        training = backend.as_array(training).astype(np.int64, copy=False)
        self.training, self.size, self.seed = backend.module(training).sort(training), batch_size, seed
        check_batch_size(batch_size, len(self.training))

    def __len__(self) -> int:
        """Count the minibatches of an epoch."""
        return -(-len(self.training) // self.size)

    def epoch(self, epoch: int) -> list[Any]:
        """Give the minibatches of an epoch, int64 global ids, where the training nodes are."""
        hashes = rng.hashes(rng.key(self.seed, rng.MINIBATCH, epoch), self.training)
        order = self.training[backend.module(hashes).argsort(hashes, kind="stable")]
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]


def check_batch_size(size: int, nodes: int) -> None:
    """Raise ArgumentError unless minibatches of this size can be made of so many training nodes."""
    if nodes == 0:
        problem = "the graph has no training nodes to make minibatches of; give it a split with some"
        raise ArgumentError("batch_size", size, problem)
    if size < 1:
        raise ArgumentError("batch_size", size, "expected a whole number of at least 1")

"""What all samplers share: keys, the interface, and the numbers on the command line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn import rng
from distgnn.errors import ArgumentError
from distgnn.ledger import timed
from distgnn.sampling.block import Sample
from distgnn.sampling.graph import Graph
from distgnn.sampling.relabel import Relabelling, Stack

PROBABILITY, DRAW, EXTRACT = "probability", "draw", "extract"


class Sampler(ABC):
    """Draws the minibatches of a bulk together.

    Attributes:
        rows_first: the rows of every block are the first of its columns.

    Args:
        graph: row i holds the weights with which vertex i gathers from its neighbours.
        fanout: how many per layer, that of the layer next to the batch first.
        seed: of everything that is drawn.

    Raises:
        UserError: no number per layer, or one below 1, named as ``fanout``.
    """

    rows_first = False

    def __init__(
        self, graph: Graph, fanout: Sequence[int], *, layers: int | None = None, seed: int = 0
    ) -> None:
        if graph.shape[0] != graph.shape[1]:
            raise ValueError(f"a graph has as many rows as columns, got {graph.shape}")
        self.graph, self.seed = graph, seed
        self.fanout = check_fanout(fanout, len(fanout) if layers is None else layers)
        self.labels = Relabelling(graph.n)

    @abstractmethod
    def sample(
        self, batches: Sequence[Any], *, epoch: int = 0, first: int | Sequence[int] = 0
    ) -> list[Sample]:
        """One sample per batch.

        Args:
            batches: int64 global ids of each minibatch's vertices, distinct within a minibatch.
            first: number of the first of these minibatches in the epoch, whom the others follow; or the
                number of each. A minibatch with the same number and ids has the same sample, whatever else is
                in the bulk.
        """

    def keys(self, epoch: int, first: int | Sequence[int], count: int, layer: int) -> np.ndarray:
        """uint64 (count): keys of the minibatches first, first + 1, ..., or of those that are listed."""
        single = isinstance(first, (int, np.integer))
        of: Sequence[int] = range(int(first), int(first) + count) if single else list(first)  # type: ignore
        if len(of) != count:
            raise ValueError(f"numbers of {len(of)} minibatches given for {count}")
        return np.array(
            [rng.key(self.seed, rng.SAMPLE, epoch, minibatch, layer) for minibatch in of], np.uint64
        )


def check_fanout(fanout: Sequence[int], layers: int) -> tuple[int, ...]:
    """The numbers, if there is one per layer and each is positive; ArgumentError otherwise."""
    if len(fanout) != layers or layers < 1:
        problem = f"has {len(fanout)} numbers for {layers} layers; expected one per layer"
        raise ArgumentError("fanout", fanout, problem)
    if min(fanout) < 1:
        raise ArgumentError("fanout", fanout, "expected whole numbers of at least 1")
    return tuple(int(one) for one in fanout)


def stacked(batches: Sequence[Any]) -> Stack:
    return Stack.of([np.asarray(batch, np.int64) for batch in batches])


def joined(pieces: Sequence[tuple[np.ndarray, ...]], dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(entries per row, columns, values of this dtype) of consecutive rows, of which there may be none."""
    none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, dtype)
    counts, columns, values = (np.concatenate(parts) for parts in zip(*(pieces or [none]), strict=True))
    return counts, columns, values


def step(name: str) -> Any:
    """Time one of the three steps of Algorithm 1, where a ledger asks for it."""
    return timed("sampling", name)

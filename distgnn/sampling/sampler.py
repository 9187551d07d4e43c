"""The base class of all samplers: keys and the interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays.backend import Backend
from distgnn.comm.steps import Steps, at_once
from distgnn.errors import ArgumentError, check_type
from distgnn.ledger import timed
from distgnn.local.relabel import Relabelling
from distgnn.local.stack import Stack
from distgnn.operators.moves import told
from distgnn.sampling.block import Layer, Sample, samples
from distgnn.sampling.graph import Graph
from distgnn.sampling.ids import Ids

PROBABILITY, DRAW, EXTRACT = "probability", "draw", "extract"


class Sampler(ABC):
    """A sampler, which draws the minibatches of a bulk together.

    Args:
        graph: row i holds the weights with which vertex i gathers from its neighbours.
        fanout: how many per layer, that of the layer next to the batch first; see :func:`check_fanout`. More
            than the graph has vertices are all of them.
        seed: of everything that is drawn.
        rescale: whether values are corrected so that estimates are unbiased.

    Raises:
        DisagreementError: ranks differ in these, on all of them, where the graph is partitioned (collective).

    Attributes:
        rows_first: the rows of every block are the first of its columns.
        ids: the nodes of the graph and their positions in its order.
    """

    rows_first = False

    def __init__(
        self, graph: Graph, fanout: Sequence[int], *, layers: int | None = None, seed: int = 0,
        rescale: bool = True,
    ) -> None:  # fmt: skip
        check_type("graph", graph, Graph, "a graph to sample from: Replicated(matrix) or Partitioned(...)")
        check_type("fanout", fanout, Iterable, "a list with a number for each layer")
        if graph.shape[0] != graph.shape[1]:
            raise ValueError(f"a graph has as many rows as columns, got {graph.shape}")
        self.graph, self.seed, self.rescale, self.fanout = graph, seed, rescale, tuple(fanout)
        if getattr(graph, "collective", False):
            graph.grid.world.agree(self.facts())  # type: ignore[attr-defined]
        numbers = check_fanout(fanout, len(fanout) if layers is None else layers)
        self.fanout = tuple(min(number, max(graph.n, 1)) for number in numbers)  # more are all there are
        self.labels, self.ids = Relabelling(graph.n), Ids(graph.n, getattr(graph, "order", None))

    def facts(self) -> dict[str, Any]:
        """Return the facts that ranks compare of their samplers."""
        settings = {"fanout": self.fanout, "seed": self.seed, "rescale": self.rescale}
        return {"sampler": type(self).__name__} | {
            f"the sampler's {name}": value for name, value in settings.items()
        }

    @abstractmethod
    def layer(self, frontier: Stack, size: int, keys: Any) -> Steps[Layer]:
        """Make the blocks with these rows; `size` is this layer's fanout, `keys` are the minibatches'."""

    def sample(
        self, batches: Sequence[Any], *, epoch: int = 0, first: int | Sequence[int] = 0
    ) -> list[Sample]:
        """Make one sample per batch, all in node ids.

        Args:
            batches: ids of each minibatch's vertices, distinct within a minibatch.
            first: number in the epoch of the first of these minibatches, whom the others follow; or of each.
                Equal numbers and ids give equal samples, whatever else is in the bulk.

        Raises:
            ValueError: ids that are no integers in 0..n-1 (of a partitioned graph on every rank).
        """
        drawn = self.sample_at(self.positions(*batches), epoch=epoch, first=first)
        return drawn if self.ids.order is None else [sample.renamed(self.ids.at) for sample in drawn]

    def positions(self, *lists: Any) -> list[np.ndarray]:
        """Return where the nodes of these lists stand in the graph's order; collective where the graph is."""
        with self.together():
            return [self.ids.positions(ids) for ids in lists]
        raise AssertionError("unreachable: together() raises")

    def together(self) -> AbstractContextManager[None]:
        """Raise errors inside on every rank where the graph is collective, in a region without messages."""
        graph: Any = self.graph
        return graph.grid.world.together() if getattr(graph, "collective", False) else nullcontext()

    def sample_at(
        self, batches: Sequence[Any], *, epoch: int = 0, first: int | Sequence[int] = 0
    ) -> list[Sample]:
        """Sample like :meth:`sample`, with positions in the graph's order in place of ids.

        The positions are int64, on the host or where the graph is.
        """
        return at_once(self.steps(batches, epoch=epoch, first=first))

    def steps(
        self, batches: Sequence[Any], *, epoch: int = 0, first: int | Sequence[int] = 0
    ) -> Steps[list[Sample]]:
        """Sample like :meth:`sample_at` in steps, between which messages travel; see ``comm/steps.py``.

        Of a partitioned graph there are as many on every rank, which may do other work between them. Of a
        replicated graph there are none.
        """
        if not len(batches) and not self.graph.collective:
            return []
        with told(self.graph.grid) if self.graph.collective else nullcontext():  # type: ignore[attr-defined]
            return (yield from self._steps(batches, epoch, first))

    def _steps(
        self, batches: Sequence[Any], epoch: int, first: int | Sequence[int]
    ) -> Steps[list[Sample]]:
        """Make one sample per batch, in what :meth:`steps` tells other ranks the errors of."""
        frontier, layers = Stack.of(batches, self.graph.backend), []
        for hop, size in enumerate(self.fanout):  # Alg. 1: from the batch outwards
            keys = self.keys(epoch, first, len(batches), hop)
            layers.append((yield from self.layer(frontier, size, keys)))
            frontier = layers[-1].cols
        with step(EXTRACT, self.graph.backend):
            return samples(layers)

    def keys(self, epoch: int, first: int | Sequence[int], count: int, layer: int) -> Any:
        """Make the keys of the minibatches first, first + 1, ..., or of those that are listed.

        Returns uint64 (count), where the graph is.
        """
        single = isinstance(first, (int, np.integer))
        of: Sequence[int] = range(int(first), int(first) + count) if single else list(first)  # type: ignore
        if len(of) != count:
            raise ValueError(f"numbers of {len(of)} minibatches given for {count}")
        keys = [rng.key(self.seed, rng.SAMPLE, epoch, minibatch, layer) for minibatch in of]
        return self.graph.backend.asarray(np.array(keys, np.uint64))


def check_fanout(fanout: Sequence[int], layers: int) -> tuple[int, ...]:
    """Return the numbers, if there is one per layer and each is positive; else raise ArgumentError."""
    shown = ",".join(map(str, fanout))
    if len(fanout) != layers or layers < 1:
        problem = f"has {len(fanout)} numbers for {layers} layers; expected one per layer"
        raise ArgumentError("fanout", shown, problem)
    if min(fanout) < 1:
        raise ArgumentError("fanout", shown, "expected whole numbers of at least 1")
    return tuple(int(number) for number in fanout)


def step(name: str, on: Backend) -> AbstractContextManager[None]:
    """Time one of the three steps of Algorithm 1 on this backend, where a ledger asks for it."""
    return timed("sampling", name, on=on)

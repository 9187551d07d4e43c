"""The node sampler of GraphSAINT (Zeng et al., ICLR 2020): one induced subgraph for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.comm.steps import Steps
from distgnn.errors import ArgumentError
from distgnn.sampling.block import Sample
from distgnn.sampling.graph import Graph
from distgnn.sampling.layerwise import FastGCN, choose
from distgnn.sampling.sampler import EXTRACT, step
from distgnn.sampling.subgraph import samples, some_rows, undo_beside


class Saint(FastGCN):
    """A sampler that draws vertices as FastGCN does, once for all layers.

    The subgraph is ``Q A Qᵀ`` with one extraction matrix Q.

    Rescaling (GraphSAINT section 3.2): entry (u, v) off the diagonal is divided by the inclusion of v, the
    loss of u by that of u. The expected value of Σ_u loss weight_u (A H)_u over a sample is then that over
    the graph, for one layer. Vertices that no vertex gathers from, or only with weight 0, are never drawn, so
    their loss is left out.

    Args:
        size: vertices of the subgraph.
        training: ids of the vertices whose loss counts, None for all. Those of them that were drawn, maybe
            none, are the batch of a sample.

    Raises:
        ArgumentError: one vertex of several, which has no edges, where values are rescaled.
    """

    def __init__(self, graph: Graph, size: int, layers: int, *, training: Any = None, **options: Any) -> None:
        super().__init__(graph, [size] * layers, layers=layers, **options)
        if self.rescale and size == 1 < len(self.importance.columns):
            problem = "rescale=True needs two to be drawn together; take 2 or more, or rescale=False"
            raise ArgumentError("fanout", size, problem)
        self.count(slice(None) if training is None else self.positions(training)[0])

    def count(self, positions: Any) -> None:
        """Count the loss of the vertices at these positions from now on, and of no others."""
        counts = np.zeros(self.graph.n, bool)
        counts[positions] = True
        self.counts = self.graph.backend.asarray(counts)
        self.population = int(self.counts[self.importance.columns].sum())

    def _steps(
        self, batches: Sequence[Any], epoch: int, first: int | Sequence[int]
    ) -> Steps[list[Sample]]:
        """Make one sample per batch, of which only the number counts: a sample has a batch of its own."""
        rows = self.repeated(len(batches))
        chosen = choose(rows, self.fanout[0], self.keys(epoch, first, len(batches), 0), self.rescale)
        layer = yield from self.extract(chosen.vertices, chosen)
        with step(EXTRACT, self.graph.backend):
            if self.rescale:
                undo_beside(layer, chosen.scale)
            last, numbers = some_rows(layer, self.counts[layer.rows.ids])
            weighted = (chosen.scale[numbers], self.population) if self.rescale else ()
            return samples(layer, last, len(self.fanout), *weighted)

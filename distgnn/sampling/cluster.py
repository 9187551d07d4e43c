"""Cluster-GCN (Chiang et al., KDD 2019): the subgraphs of some parts of a partition, section 3.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.comm.steps import Steps
from distgnn.sampling.block import Sample
from distgnn.sampling.graph import Graph
from distgnn.sampling.sampler import EXTRACT, step
from distgnn.sampling.subgraph import (
    SubgraphSampler,
    counted_first,
    induced,
    keep_sums,
    samples,
    sizes,
    some_rows,
    undo_beside,
)

Array = Any


class Cluster(SubgraphSampler):
    """A sampler of the subgraphs that some parts induce, with the edges between these parts.

    A minibatch is the vertices of its parts, which :class:`distgnn.train.part_batches.PartBatches` draws.

    Renormalizing: the values of a row are multiplied so that they add up to what they do on the graph (their
    absolute values, where some are negative). D^-1 (A + I) becomes the paper's matrix of the subgraph, by the
    degrees there. Row u of A H is then estimated by the mean of the neighbours that are there, times the
    row's sum: exact where their H is the same, biased towards the neighbours of u's part elsewhere, which
    are there whenever u is. Without it, values are those of A, and the row's sum is too small. Networks with
    means or attention take these in the subgraph. There is no diagonal enhancement (section 3.3).

    Rescaling: of p parts q are drawn uniformly, so that entries (u, v) between parts are divided by
    (q - 1) / (p - 1), the inclusion of v given u, and the loss of u by q / p, that of u. The expected value
    of Σ_u loss weight_u (A H)_u over a sample is then that over the graph, for one layer and q of 2 or more.
    Renormalized too, a row is a ratio of two such estimates, with a bias that is small where many parts are
    drawn.

    The first vertices of a block are those whose loss counts: the rows of every block are the first of its
    columns.

    Args:
        layers: of the network.
        part: of each vertex, at the positions of the graph's order, int (n); vertices of a negative part are
            in no minibatch.
        training: ids of the vertices whose loss counts, None for all.
        renormalize: see above; default: unless values are rescaled. Collective, where the graph is.
    """

    def __init__(
        self, graph: Graph, layers: int, part: np.ndarray, *, training: Any = None, rescale: bool = False,
        renormalize: bool | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.renormalize = not rescale if renormalize is None else renormalize
        super().__init__(graph, [1] * layers, rescale=rescale, **options)
        self.sums = self.graph.map(sizes).row_sums() if self.renormalize else None
        self.part = self.graph.backend.asarray(part, np.int64)
        self.parts = len(np.unique(part[part >= 0]))
        self.count(slice(None) if training is None else self.positions(training)[0])

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"renormalize": self.renormalize}

    def count(self, positions: Any) -> None:
        """Count the loss of the vertices at these positions from now on, and of no others."""
        counts = np.zeros(self.graph.n, bool)
        counts[positions] = True
        counts &= self.graph.backend.to_host(self.part) >= 0
        self.population = int(counts.sum())
        self.counts = self.graph.backend.asarray(counts)

    def _steps(
        self, batches: Sequence[Any], epoch: int, first: int | Sequence[int]
    ) -> Steps[list[Sample]]:
        """Make the subgraph of each minibatch: the vertices of whole parts."""
        on = self.graph.backend
        vertices, drawn = counted_first(batches, self.counts, on), on.asarray(self._drawn(batches))
        parts, of_rows = max(self.parts - 1, 1), drawn[vertices.owners]
        between = parts / on.xp.maximum(of_rows - 1, 1)  # 1 / inclusion; one part has no edges between parts
        layer = yield from induced(self, vertices, between)
        with step(EXTRACT, on):
            if self.rescale:
                undo_beside(layer, between, self.part)
            if self.renormalize:
                keep_sums(layer, self.sums)
            last, numbers = some_rows(layer, self.counts[vertices.ids])
            weighted = (self.parts / of_rows[numbers], self.population) if self.rescale else ()
            return samples(layer, last, len(self.fanout), *weighted)

    def _drawn(self, batches: Sequence[Any]) -> np.ndarray:
        """Count the parts in each minibatch: int64."""
        xp = self.graph.backend.xp
        return np.array([len(xp.unique(self.part[batch])) for batch in batches], np.int64)

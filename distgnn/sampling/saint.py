"""The node sampler of GraphSAINT (Zeng et al., ICLR 2020): one induced subgraph for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.local.csr_rows import owners
from distgnn.sampling.block import Block, Layer, Sample
from distgnn.sampling.graph import Graph
from distgnn.sampling.layerwise import Chosen, FastGCN, choose, repeated
from distgnn.sampling.sampler import EXTRACT, step


class Saint(FastGCN):
    """Draws vertices as FastGCN does, once for all layers; the subgraph is ``Q A Qᵀ`` with one extraction
    matrix Q.

    Rescaling (GraphSAINT section 3.2): entry (u, v) off the diagonal is divided by the inclusion of v, the
    loss of u by that of u. The expected value of Σ_u loss weight_u (A H)_u over a sample is then that over
    the graph, for one layer and two or more vertices. Vertices that no vertex gathers from are never drawn,
    so their loss is left out.

    Args:
        size: vertices of the subgraph.
        training: ids of the vertices whose loss counts, None for all. Those of them that were drawn, maybe
            none, are the batch of a sample.
    """

    def __init__(self, graph: Graph, size: int, layers: int, *, training: Any = None, **options: Any) -> None:
        super().__init__(graph, [size] * layers, layers=layers, **options)
        self.count(slice(None) if training is None else self.positions(training)[0])

    def count(self, positions: Any) -> None:
        """From now on the loss of the vertices at these positions counts, and of no others."""
        self.counts = np.zeros(self.graph.n, bool)
        self.counts[positions] = True
        self.population = int(self.counts[self.importance.indices].sum())

    def sample_at(
        self, batches: Sequence[np.ndarray], *, epoch: int = 0, first: int | Sequence[int] = 0
    ) -> list[Sample]:
        """One sample per batch, of which only the number counts: a sample has a batch of its own."""
        rows = repeated(self.importance, len(batches))
        chosen = choose(rows, self.fanout[0], self.keys(epoch, first, len(batches), 0), self.rescale)
        layer = self.extract(chosen.vertices, chosen)
        with step(EXTRACT):
            if self.rescale:
                self._undo_on_diagonal(layer, chosen)
            scales = np.split(chosen.scale, chosen.vertices.bounds[1:-1])
            return list(map(self._sample, layer.blocks(), scales))

    def _undo_on_diagonal(self, layer: Layer, chosen: Chosen) -> None:
        rows = owners(np.diff(layer.indptr))
        columns = layer.indices + layer.cols.bounds[layer.rows.owners[rows]]
        diagonal = np.flatnonzero(rows == columns)
        layer.data[diagonal] /= chosen.scale[rows[diagonal]].astype(layer.data.dtype)

    def _sample(self, block: Block, scale: np.ndarray) -> Sample:
        counted = np.flatnonzero(self.counts[block.rows])
        last = block
        if len(counted) < len(block.rows):
            A = block.A[counted]
            last = Block(block.rows[counted], block.cols, A.indptr, A.indices, A.data)
        weighted = (scale[counted], self.population) if self.rescale else ()
        return Sample(last.rows, (*[block] * (len(self.fanout) - 1), last), *weighted)

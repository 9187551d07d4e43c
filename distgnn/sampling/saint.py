"""The node sampler of GraphSAINT (Zeng et al., ICLR 2020): one induced subgraph for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.local import extract
from distgnn.local.csr_rows import owners, row_pointers
from distgnn.local.stack import Stack
from distgnn.sampling.block import Block, Layer, Sample
from distgnn.sampling.graph import Graph
from distgnn.sampling.layerwise import Chosen, FastGCN, choose
from distgnn.sampling.sampler import EXTRACT, step


class Saint(FastGCN):
    """A sampler that draws vertices as FastGCN does, once for all layers.

    The subgraph is ``Q A Qᵀ`` with one extraction matrix Q.

    Rescaling (GraphSAINT section 3.2): entry (u, v) off the diagonal is divided by the inclusion of v, the
    loss of u by that of u. The expected value of Σ_u loss weight_u (A H)_u over a sample is then that over
    the graph, for one layer and two or more vertices. Vertices that no vertex gathers from, or only with
    weight 0, are never drawn, so their loss is left out.

    Args:
        size: vertices of the subgraph.
        training: ids of the vertices whose loss counts, None for all. Those of them that were drawn, maybe
            none, are the batch of a sample.
    """

    def __init__(self, graph: Graph, size: int, layers: int, *, training: Any = None, **options: Any) -> None:
        super().__init__(graph, [size] * layers, layers=layers, **options)
        self.count(slice(None) if training is None else self.positions(training)[0])

    def count(self, positions: Any) -> None:
        """Count the loss of the vertices at these positions from now on, and of no others."""
        counts = np.zeros(self.graph.n, bool)
        counts[positions] = True
        self.counts = self.graph.backend.asarray(counts)
        self.population = int(self.counts[self.importance.columns].sum())

    def sample_at(
        self, batches: Sequence[Any], *, epoch: int = 0, first: int | Sequence[int] = 0
    ) -> list[Sample]:
        """Make one sample per batch, of which only the number counts: a sample has a batch of its own."""
        if not len(batches) and not self.graph.collective:
            return []
        rows = self.repeated(len(batches))
        chosen = choose(rows, self.fanout[0], self.keys(epoch, first, len(batches), 0), self.rescale)
        layer = self.extract(chosen.vertices, chosen)
        with step(EXTRACT, self.graph.backend):
            if self.rescale:
                self._undo_on_diagonal(layer, chosen)
            last, scale = self._counted(layer, chosen.scale)
            scales = [scale[own] for own in last.rows.slices]
            return list(map(self._sample, layer.blocks(), last.blocks(), scales))

    def _undo_on_diagonal(self, layer: Layer, chosen: Chosen) -> None:
        rows = owners(layer.indptr[1:] - layer.indptr[:-1], len(layer.data))
        columns = layer.indices.ids + layer.cols.bounds[layer.rows.owners[rows]]
        scale = chosen.scale[rows].astype(layer.data.dtype)
        layer.data[...] /= backend.module(rows).where(rows == columns, scale, scale.dtype.type(1))

    def _counted(self, layer: Layer, scale: Any) -> tuple[Layer, Any]:
        """Return the rows of the layer whose loss counts, and of the scale. A GPU is waited for twice."""
        rows, counted = layer.rows, self.counts[layer.rows.ids]
        places, to_host = row_pointers(counted), self.graph.backend.to_host
        bounds = places[rows.bounds]
        ends = to_host(bounds)
        numbers = extract.compact(places, int(ends[-1]))
        entries, indptr = extract.row_entries(layer.indptr, numbers)
        own = indptr[bounds]
        labels = Stack(layer.indices.ids[entries], own, to_host(own))
        kept = Stack(rows.ids[numbers], bounds, ends)
        return Layer(kept, layer.cols, indptr, labels, layer.data[entries]), scale[numbers]

    def _sample(self, block: Block, last: Block, scale: Any) -> Sample:
        weighted = (scale, self.population) if self.rescale else ()
        return Sample(last.rows, (*[block] * (len(self.fanout) - 1), last), *weighted)

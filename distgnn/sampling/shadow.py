"""ShaDow (Zeng et al., NeurIPS 2021): a subgraph of its own for every node of the batch, of any depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.comm.steps import Steps
from distgnn.local.csr_rows import row_pointers
from distgnn.local.draw import stack_keys
from distgnn.local.extract import row_entries
from distgnn.local.stack import Stack
from distgnn.sampling.block import Layer, Sample
from distgnn.sampling.graph import Graph
from distgnn.sampling.sampler import EXTRACT, step
from distgnn.sampling.subgraph import SubgraphSampler, induced, rows_of, samples, some_rows

Array = Any


class Shadow(SubgraphSampler):
    """A sampler of the subgraph around each node of the batch, its root; all layers are of these subgraphs.

    Hop by hop, neighbours of all vertices found are drawn as by :class:`~distgnn.sampling.sage.GraphSage`,
    for each root by itself. What the vertices of a root induce is a block of a block diagonal matrix, ``Q A
    Qᵀ`` with a Q for each root; a vertex stands there once for each root that found it. The last layer has
    the roots alone. Values are those of A: the network on these subgraphs is what is trained, no estimate of
    the one on the graph. With all neighbours and a hop for each layer, its roots are as on the graph.

    The roots are the first rows and columns of a block, in the order of the batch; behind them stand the
    other vertices, root by root.

    Args:
        fanout: neighbours per vertex, that of the roots first; a hop for each.
        layers: of the network, whatever the hops.
    """

    def __init__(self, graph: Graph, fanout: Sequence[int], layers: int, **options: Any) -> None:
        self.layers = layers
        super().__init__(graph, fanout, rescale=False, **options)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"the sampler's layers": self.layers}

    def _steps(
        self, batches: Sequence[Any], epoch: int, first: int | Sequence[int]
    ) -> Steps[list[Sample]]:
        """Make one sample per batch: the subgraphs of its roots side by side."""
        on = self.graph.backend
        roots = Stack.of(batches, on)
        vertices = Stack.cut(roots.ids, np.arange(len(roots.ids) + 1))  # a list for each root
        for hop, size in enumerate(self.fanout):
            keys = stack_keys(roots, self.keys(epoch, first, len(batches), hop))  # of each root
            counts, columns, *_ = yield from self.graph.draw(vertices, size, keys)
            _, vertices = self.labels.extend(Stack(columns, row_pointers(counts)[vertices.bounds]), vertices)
        layer = yield from induced(self, vertices, on.xp.ones(len(vertices.ids)))
        with step(EXTRACT, on):
            whole = self._block_diagonal(layer, roots)
            batch = whole.rows.owners
            places = on.xp.arange(len(batch)) - whole.rows.bounds[batch]
            last, _ = some_rows(whole, places < roots.sizes[batch])
            return samples(whole, last, self.layers)

    def _block_diagonal(self, layer: Layer, roots: Stack) -> Layer:
        """Put the blocks of the roots of each minibatch side by side, and the roots first."""
        on, vertices = self.graph.backend, layer.rows
        xp, to_host = on.xp, on.to_host
        bounds = vertices.bounds[roots.bounds]
        batch = roots.owners[vertices.owners]  # of each vertex
        later = xp.ones(len(vertices.ids), np.int64)
        later[vertices.bounds[:-1]] = 0
        order = xp.argsort(2 * batch + later, kind="stable")
        place = xp.empty_like(order)
        place[order] = xp.arange(len(order))
        place -= bounds[batch]  # among the vertices of the minibatch
        entries, indptr = row_entries(layer.indptr, order)
        columns = layer.indices.ids + vertices.bounds[vertices.owners[rows_of(layer)]]  # among all vertices
        rows, own = Stack(vertices.ids[order], bounds, to_host(bounds)), indptr[bounds]
        labels = Stack(place[columns[entries]], own, to_host(own))
        return Layer(rows, rows, indptr, labels, layer.data[entries])

"""GraphSAGE (Hamilton et al., NIPS 2017) as matrix products: section 4.1 of Tripathy et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.sampling.block import Layer, Sample, samples
from distgnn.sampling.graph import Graph
from distgnn.sampling.relabel import Stack, running
from distgnn.sampling.rows import row_keys
from distgnn.sampling.sampler import Sampler, joined, stacked
from distgnn.sampling.steps import DRAW, EXTRACT, step, timed


class GraphSage(Sampler):
    """Every vertex of a layer samples some of its neighbours, uniformly and without replacement; all where it
    has no more.

    The columns of a block are its rows, in their order, and then the sampled vertices that are not among
    them, in the order in which they first occur: a vertex's own features stand in ``H[:len(rows)]``, as the
    self term of SAGE-mean wants them. All other columns are dropped. Values are those of A.

    Args:
        fanout: neighbours per vertex, that of the batch first.
        rescale: multiply values by degree / sampled neighbours, which makes ``A H`` of a block an unbiased
            estimate of that of the graph (every neighbour is among s of d with probability s / d). Not for a
            mean over what was sampled.
    """

    rows_first = True

    def __init__(self, graph: Graph, fanout: Sequence[int], *, rescale: bool = False, **options: Any) -> None:
        super().__init__(graph, fanout, rescale=rescale, **options)

    def sample(
        self, batches: Sequence[Any], *, epoch: int = 0, first: int | Sequence[int] = 0
    ) -> list[Sample]:
        frontier, layers = stacked(batches), []
        for hop, fanout in enumerate(self.fanout):  # Alg. 1: from the batch outwards
            keys = self.keys(epoch, first, len(batches), hop)
            layers.append(self._layer(frontier, fanout, row_keys(keys[frontier.owners], frontier.ids)))
            frontier = layers[-1].cols
        with step(EXTRACT):
            return samples(layers)

    def _layer(self, frontier: Stack, fanout: int, keys: np.ndarray) -> Layer:
        counts, columns, values = self._neighbours(frontier.ids, fanout, keys)
        with step(EXTRACT):  # Alg. 1: drop the empty columns of Q^l
            indptr = running(counts)
            labels, cols = self.labels.extend(Stack(columns, indptr[frontier.bounds]), frontier)
            return Layer(frontier, cols, indptr, labels, values)

    def _neighbours(
        self, vertices: np.ndarray, fanout: int, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Number of sampled neighbours of every vertex, the neighbours (int64) and the values of A.

        Alg. 1: P = Q A, with weights up to a factor, so that 1 stands for 1 / degree; and draws from its
            rows.
        """
        found = []
        for counts, columns, values, degrees in timed(DRAW, self.graph.draw(vertices, fanout, keys)):
            if self.rescale:
                values *= np.repeat(degrees / np.maximum(counts, 1), counts).astype(values.dtype)
            found.append((counts, columns, values))
        return joined(found, self.graph.dtype)

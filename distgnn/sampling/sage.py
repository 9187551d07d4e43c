"""GraphSAGE (Hamilton et al., NIPS 2017) as matrix products: section 4.1 of Tripathy et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgnn.arrays import backend
from distgnn.local.csr_rows import repeated, row_pointers
from distgnn.local.stack import Stack
from distgnn.sampling.block import Layer
from distgnn.sampling.graph import Graph
from distgnn.sampling.sampler import EXTRACT, Sampler, step


class GraphSage(Sampler):
    """A sampler of some neighbours of every vertex, uniformly and without replacement.

    A vertex that has no more neighbours than its fanout keeps all.

    The columns of a block are its rows, in their order, and then the other sampled vertices in the order in
    which they first occur: own features are ``H[:len(rows)]``, as SAGE-mean wants. Values are those of A.

    Args:
        fanout: neighbours per vertex, that of the batch first.
        rescale: multiply values by degree / sampled neighbours, which makes ``A H`` of a block an unbiased
            estimate of that of the graph (every neighbour is among s of d with probability s / d). Not for a
            mean over what was sampled.
    """

    rows_first = True

    def __init__(self, graph: Graph, fanout: Sequence[int], *, rescale: bool = False, **options: Any) -> None:
        super().__init__(graph, fanout, rescale=rescale, **options)

    def layer(self, frontier: Stack, size: int, keys: Any) -> Layer:
        counts, columns, values, degrees = self.graph.draw(frontier, size, keys)
        if self.rescale:
            factors = degrees / backend.module(counts).maximum(counts, 1)
            values *= repeated(factors, counts, len(values)).astype(values.dtype)
        with step(EXTRACT, self.graph.backend):  # Alg. 1: drop the empty columns of Q^l
            indptr = row_pointers(counts)
            labels, cols = self.labels.extend(Stack(columns, indptr[frontier.bounds]), frontier)
            return Layer(frontier, cols, indptr, labels, values)

"""GraphSAGE (Hamilton et al., NIPS 2017) as matrix products: section 4.1 of Tripathy et al."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

from distgnn.arrays import backend
from distgnn.comm.steps import Steps
from distgnn.local import extract
from distgnn.local.csr_rows import repeated, row_pointers
from distgnn.local.stack import Stack
from distgnn.sampling.block import Layer
from distgnn.sampling.graph import Graph
from distgnn.sampling.sampler import DRAW, EXTRACT, Sampler, step


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

    @cached_property
    def alike(self) -> bool:
        """Tell whether all values of the graph are equal, and not 0: none has to be looked up."""
        values = self.graph.A.data
        return bool(len(values)) and bool(values.min() == values.max() != 0)

    def layer(self, frontier: Stack, size: int, keys: Any) -> Steps[Layer]:
        kernel, graph = self.graph.kernel("neighbours"), cast(Any, self.graph)
        if kernel is None:
            return (yield from self._drawn(frontier, size, keys))
        with step(DRAW, graph.backend):  # of all rows, which this rank holds, and the columns numbered
            drawn = kernel(graph.A, graph.indptr, frontier, size, keys, self.labels, self.alike)
            indptr, labels, values, cols = drawn
            self._rescale(values, indptr[1:] - indptr[:-1], extract.row_lengths(graph.indptr, frontier.ids))
        return Layer(frontier, cols, indptr, labels, values)

    def _rescale(self, values: Any, counts: Any, degrees: Any) -> None:
        if self.rescale:
            factors = degrees / backend.module(counts).maximum(counts, 1)
            values *= repeated(factors, counts, len(values)).astype(values.dtype)

    def _drawn(self, frontier: Stack, size: int, keys: Any) -> Steps[Layer]:
        """Draw, and then number the columns."""
        counts, columns, values, degrees = yield from self.graph.draw(frontier, size, keys)
        self._rescale(values, counts, degrees)
        with step(EXTRACT, self.graph.backend):  # Alg. 1: drop the empty columns of Q^l
            indptr = row_pointers(counts)
            labels, cols = self.labels.extend(Stack(columns, indptr[frontier.bounds]), frontier)
            return Layer(frontier, cols, indptr, labels, values)

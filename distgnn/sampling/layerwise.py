"""Layer-wise samplers: s vertices per layer and all edges between layers (Tripathy et al., section 4.2)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.csr import index_type
from distgnn.comm.steps import Steps, together, without_steps
from distgnn.errors import ArgumentError
from distgnn.local import extract
from distgnn.local.csr_rows import joined, row_pointers
from distgnn.local.draw import draw, inclusion
from distgnn.local.stack import Stack
from distgnn.sampling.block import Layer
from distgnn.sampling.graph import Graph, timed_each
from distgnn.sampling.sampler import DRAW, EXTRACT, PROBABILITY, Sampler, step

Array = Any
SIGNIFICANT = 12


def rounded(values: Array, bits: int) -> Array:
    """Round float64 values to so many significant bits.

    Sums of positive ones are then exact in any order, while the largest term times their number is below
    2 ** (53 - bits) times the smallest: the same to the bit on any ranks and devices.
    """
    xp = backend.module(values)
    mantissa, exponent = xp.frexp(values)
    return xp.ldexp(xp.rint(xp.ldexp(mantissa, bits)), exponent - bits)


def squares(values: Array) -> Array:
    """Return float64 squares, rounded to 12 significant bits.

    A partitioned graph gives the distribution of a replicated one, to the bit, see :func:`rounded`.
    Importance is off by at most 1 in 8000. Estimates stay unbiased, as they use the same probabilities.
    """
    wide = values.astype(np.float64)
    return rounded(wide * wide, SIGNIFICANT)


class Chosen(NamedTuple):
    """The vertices sampled for a layer, ascending per minibatch, and the factor of each one's column."""

    vertices: Stack
    scale: Array


class LayerWise(Sampler):
    """Samples vertices for a whole layer from one distribution per minibatch, and extracts rows and columns.

    Args:
        fanout: vertices per layer, that of the layer next to the batch first.
        rescale: divide the columns by :func:`distgnn.local.draw.inclusion`, which makes ``A H`` of a block
            an unbiased estimate: the 1 / (s p_v) of Zou et al. for draws without replacement.
    """

    @abstractmethod
    def distributions(self, frontier: Stack) -> Steps[Iterator[Any]]:
        """Give the rows of P, one per minibatch of these vertices, some at a time (float64, up to a factor).

        Rows are SciPy's matrices, or on a GPU :class:`distgnn.local.extract.Product`; to make the next ones
        takes no messages.
        """

    def layer(self, frontier: Stack, size: int, keys: Array) -> Steps[Layer]:
        distributions = yield from self.distributions(frontier)
        chosen = yield from self.chosen(lambda: choose(distributions, size, keys, self.rescale))
        return (yield from self.extract(frontier, chosen))

    def chosen(self, make: Callable[[], Chosen]) -> Steps[Chosen]:
        """Return the chosen vertices; raise an error of one rank on all that sample together."""
        graph: Any = self.graph
        return together(graph.grid.world, make) if graph.collective else without_steps(make)()

    def extract(self, rows: Stack, chosen: Chosen) -> Steps[Layer]:
        """Extract all edges from the chosen vertices, rising, to `rows`: Alg. 1, A^l = Q_R A Q_C."""
        with step(EXTRACT, self.graph.backend):
            edges = yield from self.graph.edges(
                rows, chosen.vertices, chosen.scale if self.rescale else None, self.labels
            )
            return Layer(rows, chosen.vertices, *edges)


def choose(distributions: Iterator[Any], size: int, keys: Array, rescale: bool) -> Chosen:
    """Choose `size` columns of every row of P."""
    choices, top = [], 0
    for P in timed_each(PROBABILITY, distributions):
        with step(DRAW, backend.of(keys)):
            own = keys[top : top + P.shape[0]]
            known = getattr(P, "ends", None), getattr(P, "sums", None)
            drawn = draw(P.indptr, P.data, size, own, rescale, *known)
            columns, weights = P.indices[drawn.positions].astype(np.int64), P.data[drawn.positions]
            ones = backend.module(weights).ones
            scale = 1 / inclusion(weights, drawn, own) if rescale else ones(len(weights))
            choices.append((np.diff(drawn.ends), columns, scale))
            top += P.shape[0]
    counts, columns, scales = joined(choices, np.float64, backend.of(keys))
    return Chosen(Stack.cut(columns, row_pointers(counts)), scales)


class Ladies(LayerWise):
    """LADIES (Zou et al., NeurIPS 2019): vertices are drawn among the neighbours of the layer above.

    An edge of weight 0 adds nothing to Zou's importance, as it adds nothing to ``A H``: a vertex that only
    such edges lead to is not drawn. By "counts" it is an edge like others.

    Args:
        importance: "zou": Σ_u A[u, v]² over the vertices u of the layer above (Zou et al., Algorithm 1).
            "counts": the square of the number of such u with an edge to v (Tripathy et al., equation 1).
            Others raise ArgumentError.
    """

    def __init__(
        self, graph: Graph, fanout: Sequence[int], *, importance: str = "zou", **options: Any
    ) -> None:
        self.importance = importance
        super().__init__(graph, fanout, **options)
        if importance not in ("zou", "counts"):
            raise ArgumentError("importance", importance, "expected zou or counts")
        self.weighted = graph.map(squares if importance == "zou" else _ones)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"importance": self.importance}

    def distributions(self, frontier: Stack) -> Steps[Iterator[Any]]:
        with step(PROBABILITY, self.graph.backend):
            P = yield from self.weighted.sums(frontier)
            if self.importance == "counts":
                P.data[...] *= P.data
        return iter([P])


def _ones(values: Array) -> Array:
    return backend.module(values).ones(len(values))


class FastGCN(LayerWise):
    """FastGCN (Chen et al., ICLR 2018): vertices are drawn by Σ_u A[u, v]² over all u, for all layers.

    A drawn vertex that is no neighbour of the layer above keeps its column, which is empty. Edges of weight 0
    count as in :class:`Ladies`.
    """

    def __init__(self, graph: Graph, fanout: Sequence[int], **options: Any) -> None:
        super().__init__(graph, fanout, **options)
        norms = graph.on_host().map(squares).column_sums()
        columns = np.flatnonzero(norms > 0)  # where all edges have weight 0, a vertex has no chance
        # The first draws of every minibatch are from this row.
        kind = index_type(graph.n)
        self.importance = extract.distribution(columns.astype(kind), norms[columns], graph.backend)

    @without_steps
    def distributions(self, frontier: Stack) -> Iterator[Any]:
        return self.repeated(len(frontier.bounds) - 1)

    def repeated(self, times: int) -> Iterator[Any]:
        """Repeat the distribution so many times, in row blocks of a bounded number of entries."""
        return extract.repeated(self.importance, times, self.graph.n)

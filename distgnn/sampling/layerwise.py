"""Layer-wise samplers: s vertices per layer and all edges between layers (Tripathy et al., section 4.2)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.tuning import TUNING
from distgnn.errors import ArgumentError
from distgnn.local.csr_rows import owners, row_pointers
from distgnn.sampling.block import Layer
from distgnn.sampling.graph import Graph, indicator, selection, timed_each
from distgnn.sampling.relabel import Stack
from distgnn.sampling.rows import draw, inclusion
from distgnn.sampling.sampler import DRAW, EXTRACT, PROBABILITY, Sampler, joined, step

Array = np.ndarray
SIGNIFICANT = 12


def squares(values: Array) -> Array:
    """float64 squares, rounded to 12 significant bits.

    Their sums are then exact in any order, while the largest term times their number is below 2**41 times the
    smallest: a partitioned graph gives the distribution of a replicated one, to the bit. Importance is off by
    at most 1 in 8000. Estimates stay unbiased, as they use the same probabilities.
    """
    mantissa, exponent = np.frexp(values.astype(np.float64) ** 2)
    return np.ldexp(np.rint(np.ldexp(mantissa, SIGNIFICANT)), exponent - SIGNIFICANT)


class Chosen(NamedTuple):
    """The vertices sampled for a layer, ascending per minibatch, and the factor of each one's column."""

    vertices: Stack
    scale: Array


class LayerWise(Sampler):
    """Samples vertices for a whole layer from one distribution per minibatch, and extracts rows and columns.

    Args:
        fanout: vertices per layer, that of the layer next to the batch first.
        rescale: divide the columns by :func:`distgnn.sampling.rows.inclusion`, which makes ``A H`` of a block
            an unbiased estimate: the 1 / (s p_v) of Zou et al. for draws without replacement.
    """

    @abstractmethod
    def distributions(self, frontier: Stack) -> Iterator[sp.csr_array]:
        """The rows of P, one per minibatch of these vertices, some at a time (float64, up to a factor)."""

    def layer(self, frontier: Stack, size: int, keys: Array) -> Layer:
        return self.extract(frontier, choose(self.distributions(frontier), size, keys, self.rescale))

    def extract(self, rows: Stack, chosen: Chosen) -> Layer:
        """All edges from the chosen vertices to `rows`: Alg. 1, A^l = Q_R A Q_C, in row blocks."""
        cols, found, top = chosen.vertices, [], 0
        row_blocks = self.graph.row_blocks(selection(rows.ids, self.graph.n))
        with step(EXTRACT):
            for _, R in row_blocks:
                bounds = R.indptr[np.clip(rows.bounds - top, 0, R.shape[0])].astype(np.int64)
                edges = Stack(R.indices.astype(np.int64), bounds)
                labels = self.labels.find(edges, cols)
                kept = np.flatnonzero(labels >= 0)
                values = R.data[kept]
                if self.rescale:
                    batch = owners(np.diff(np.searchsorted(kept, bounds)))
                    values *= chosen.scale[cols.bounds[batch] + labels[kept]].astype(values.dtype)
                found.append((np.diff(np.searchsorted(kept, R.indptr)), labels[kept], values))
                top += R.shape[0]
            counts, labels, values = joined(found, self.graph.dtype)
            return Layer(rows, cols, row_pointers(counts), labels, values)


def choose(distributions: Iterator[sp.csr_array], size: int, keys: Array, rescale: bool) -> Chosen:
    """`size` columns of every row of P."""
    found, top = [], 0
    for P in timed_each(PROBABILITY, distributions):
        with step(DRAW):
            own = keys[top : top + P.shape[0]]
            drawn = draw(P.indptr, P.data, size, own, remaining=rescale)
            columns, weights = P.indices[drawn.positions].astype(np.int64), P.data[drawn.positions]
            scale = 1 / inclusion(weights, drawn, own) if rescale else np.ones(len(weights))
            found.append((drawn.counts, columns, scale))
            top += P.shape[0]
    counts, columns, scales = joined(found, np.float64)
    return Chosen(Stack(columns, row_pointers(counts)), scales)


class Ladies(LayerWise):
    """LADIES (Zou et al., NeurIPS 2019): vertices are drawn among the neighbours of the layer above.

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
        self.weighted = graph.map(squares if importance == "zou" else lambda values: np.ones(len(values)))

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"importance": self.importance}

    def distributions(self, frontier: Stack) -> Iterator[sp.csr_array]:
        P = self.weighted.multiply(indicator(frontier.ids, frontier.bounds, self.graph.n))
        if self.importance == "counts":
            P.data **= 2
        yield P


class FastGCN(LayerWise):
    """FastGCN (Chen et al., ICLR 2018): vertices are drawn by Σ_u A[u, v]² over all u, for all layers.

    A drawn vertex that is no neighbour of the layer above keeps its column, which is empty.
    """

    def __init__(self, graph: Graph, fanout: Sequence[int], **options: Any) -> None:
        super().__init__(graph, fanout, **options)
        everything = indicator(np.arange(graph.n), np.array([0, graph.n]), graph.n)
        self.importance = graph.map(squares).multiply(everything)  # (1, n), the column norms

    def distributions(self, frontier: Stack) -> Iterator[sp.csr_array]:
        return repeated(self.importance, len(frontier.bounds) - 1)


def repeated(row: sp.csr_array, times: int) -> Iterator[sp.csr_array]:
    """The row so many times, in row blocks of a bounded number of entries."""
    most = max(TUNING.product_entries // max(row.nnz, 1), 1)
    for top in range(0, times, most):
        count = min(most, times - top)
        data, indices = np.tile(row.data, count), np.tile(row.indices, count)
        yield sp.csr_array((data, indices, np.arange(count + 1) * row.nnz), shape=(count, row.shape[1]))

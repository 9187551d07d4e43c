"""Layer-wise samplers: s vertices per layer and all edges between them and the layer above (section 4.2 of
Tripathy et al.).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from distgnn.errors import ArgumentError
from distgnn.sampling.block import Layer, Sample, samples
from distgnn.sampling.graph import Graph, indicator, selection
from distgnn.sampling.relabel import Stack, running
from distgnn.sampling.rows import draw, inclusion
from distgnn.sampling.sampler import DRAW, EXTRACT, PROBABILITY, Sampler, joined, stacked, step
from distgnn.sampling.spgemm import PIECE

Array = np.ndarray
SIGNIFICANT = 12


def squares(values: Array) -> Array:
    """float64 squares, rounded to 12 significant bits.

    Their sums are then exact in any order, as long as the largest term times their number is below 2**41
    times the smallest, so a graph that is partitioned gives the same distribution as a replicated one, to the
    bit. The importance of a vertex is off by at most 1 in 8000 for it, and estimates stay unbiased, since
    they use the probabilities that were used.
    """
    mantissa, exponent = np.frexp(values.astype(np.float64) ** 2)
    return np.ldexp(np.rint(np.ldexp(mantissa, SIGNIFICANT)), exponent - SIGNIFICANT)


class Chosen(NamedTuple):
    """The vertices sampled for a layer, ascending per minibatch, and the factor by which each one's column is
    multiplied.
    """

    vertices: Stack
    scale: Array


class LayerWise(Sampler):
    """Samples vertices for a whole layer from one distribution per minibatch, and extracts rows and columns.

    Args:
        fanout: vertices per layer, that of the layer next to the batch first.
        rescale: divide the columns by :func:`distgnn.sampling.rows.inclusion`, which makes ``A H`` of a block
            an unbiased estimate of that of the graph. This is the 1 / (s p_v) of Zou et al. for draws without
            replacement.
    """

    def __init__(
        self,
        graph: Graph,
        fanout: Sequence[int],
        *,
        layers: int | None = None,
        seed: int = 0,
        rescale: bool = True,
    ) -> None:
        super().__init__(graph, fanout, layers=layers, seed=seed)
        self.rescale = rescale

    @abstractmethod
    def distributions(self, frontier: Stack) -> Iterator[sp.csr_array]:
        """The rows of P, one per minibatch with these vertices, in consecutive pieces (float64, up to a
        factor).
        """

    def sample(
        self, batches: Sequence[Any], *, epoch: int = 0, first: int | Sequence[int] = 0
    ) -> list[Sample]:
        frontier, layers = stacked(batches), []
        for hop, size in enumerate(self.fanout):
            chosen = choose(
                self.distributions(frontier), size, self.keys(epoch, first, len(batches), hop), self.rescale
            )
            layers.append(self.extract(frontier, chosen))
            frontier = chosen.vertices
        with step(EXTRACT):
            return samples(layers)

    def extract(self, rows: Stack, chosen: Chosen) -> Layer:
        """All edges from the chosen vertices to `rows`: Alg. 1, A^l = Q_R A Q_C.

        The product with the block-diagonal Q_C follows piece by piece on the product Q_R A, which would not
        fit for many hubs.
        """
        cols, found, top = chosen.vertices, [], 0
        pieces = self.graph.pieces(selection(rows.ids, self.graph.n))
        with step(EXTRACT):
            for _, R in pieces:
                bounds = R.indptr[np.clip(rows.bounds - top, 0, R.shape[0])].astype(np.int64)
                edges = Stack(R.indices.astype(np.int64), bounds)
                labels = self.labels.find(edges, cols)
                kept = np.flatnonzero(labels >= 0)
                values = R.data[kept]
                if self.rescale:
                    owners = np.repeat(np.arange(len(bounds) - 1), np.diff(np.searchsorted(kept, bounds)))
                    values *= chosen.scale[cols.bounds[owners] + labels[kept]].astype(values.dtype)
                found.append((np.diff(np.searchsorted(kept, R.indptr)), labels[kept], values))
                top += R.shape[0]
            counts, labels, values = joined(found, self.graph.dtype)
            return Layer(rows, cols, running(counts), labels, values)


def choose(distributions: Iterator[sp.csr_array], size: int, keys: Array, rescale: bool) -> Chosen:
    """`size` columns of every row of P."""
    counts, columns, scales, top = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)], 0
    while True:
        with step(PROBABILITY):
            P = next(distributions, None)
        if P is None:
            return Chosen(
                Stack(np.concatenate(columns), running(np.concatenate(counts))), np.concatenate(scales)
            )
        with step(DRAW):
            own = keys[top : top + P.shape[0]]
            drawn = draw(P.indptr, P.data, size, own, remaining=rescale)
            counts.append(drawn.counts)
            columns.append(P.indices[drawn.positions].astype(np.int64))
            scales.append(
                1 / inclusion(P.data[drawn.positions], drawn, own)
                if rescale
                else np.ones(len(drawn.positions))
            )
            top += P.shape[0]


class Ladies(LayerWise):
    """LADIES (Zou et al., NeurIPS 2019): vertices are drawn among the neighbours of the layer above, by
    importance.

    Args:
        importance: "zou": Σ_u A[u, v]² over the vertices u of the layer above (Zou et al., Algorithm 1).
            "counts": the square of the number of such u with an edge to v (Tripathy et al., equation 1).

    Raises:
        UserError: another importance.
    """

    def __init__(
        self, graph: Graph, fanout: Sequence[int], *, layers: int | None = None, seed: int = 0,
        rescale: bool = True, importance: str = "zou",
    ) -> None:  # fmt: skip
        super().__init__(graph, fanout, layers=layers, seed=seed, rescale=rescale)
        if importance not in ("zou", "counts"):
            raise ArgumentError("importance", importance, "expected zou or counts")
        self.importance = importance
        self.weighted = graph.map(squares if importance == "zou" else lambda values: np.ones(len(values)))

    def distributions(self, frontier: Stack) -> Iterator[sp.csr_array]:
        P = self.weighted.multiply(indicator(frontier.ids, frontier.bounds, self.graph.n))
        if self.importance == "counts":
            P.data **= 2
        yield P


class FastGCN(LayerWise):
    """FastGCN (Chen et al., ICLR 2018): vertices are drawn from one distribution for all layers, Σ_u A[u, v]²
    over all u.

    A drawn vertex need not be a neighbour of the layer above; its column is empty then, and is kept.
    """

    def __init__(
        self,
        graph: Graph,
        fanout: Sequence[int],
        *,
        layers: int | None = None,
        seed: int = 0,
        rescale: bool = True,
    ) -> None:
        super().__init__(graph, fanout, layers=layers, seed=seed, rescale=rescale)
        self.importance = column_norms(graph)

    def distributions(self, frontier: Stack) -> Iterator[sp.csr_array]:
        return repeated(self.importance, len(frontier.bounds) - 1)


def column_norms(graph: Graph) -> sp.csr_array:
    """(1, n): Σ_u A[u, v]² over all u, the product of a row of ones with A∘A."""
    everything = np.arange(graph.n)
    return graph.map(squares).multiply(indicator(everything, np.array([0, graph.n]), graph.n))


def repeated(row: sp.csr_array, times: int) -> Iterator[sp.csr_array]:
    """The row so many times, in pieces of bounded size."""
    most = max(PIECE // max(row.nnz, 1), 1)
    for top in range(0, times, most):
        count = min(most, times - top)
        data, indices = np.tile(row.data, count), np.tile(row.indices, count)
        yield sp.csr_array((data, indices, np.arange(count + 1) * row.nnz), shape=(count, row.shape[1]))

"""Samples of one induced subgraph for all layers: what their samplers share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.backend import Backend
from distgnn.comm.steps import Steps
from distgnn.local import extract
from distgnn.local.csr_rows import owners, row_pointers
from distgnn.local.edges import run_sums
from distgnn.local.stack import Stack
from distgnn.sampling.block import Block, Layer, Sample
from distgnn.sampling.layerwise import Chosen, LayerWise, rounded

Array = Any
PRECISION = 24  # significant bits


class SubgraphSampler(LayerWise):
    """A base class of samplers whose minibatches bring their vertices, which are not drawn layer by layer."""

    rows_first = True

    def distributions(self, frontier: Stack) -> Steps[Iterator[Any]]:
        raise NotImplementedError("a minibatch brings its vertices")


def induced(sampler: LayerWise, vertices: Stack, scale: Array) -> Steps[Layer]:
    """Extract ``Q A Qᵀ`` of vertices in any order, where `extract` takes columns that rise.

    scale: by which the column of each vertex is multiplied, where the sampler rescales.
    """
    order = backend.module(vertices.ids).argsort(vertices.owners * sampler.graph.n + vertices.ids)
    rising = Stack(vertices.ids[order], vertices.bounds, vertices.ends)
    layer = yield from sampler.extract(vertices, Chosen(rising, scale[order]))
    starts = vertices.bounds[vertices.owners[rows_of(layer)]]
    labels = order[layer.indices.ids + starts] - starts
    return Layer(vertices, vertices, layer.indptr, layer.indices._replace(ids=labels), layer.data)


def rows_of(layer: Layer) -> Array:
    """Return the row of each entry, among the rows of all minibatches."""
    return owners(layer.indptr[1:] - layer.indptr[:-1], len(layer.data))


def undo_beside(layer: Layer, scale: Array, kinds: Array | None = None) -> None:
    """Divide entries by the scale of their row, in place, where row and column are of one kind.

    Those columns are drawn whenever the row is. kinds: of each vertex of the graph; default: its number.
    """
    rows = rows_of(layer)
    columns = layer.indices.ids + layer.cols.bounds[layer.rows.owners[rows]]
    of_rows, of_columns = layer.rows.ids[rows], layer.cols.ids[columns]
    if kinds is not None:
        of_rows, of_columns = kinds[of_rows], kinds[of_columns]
    kind = layer.data.dtype
    factors = backend.module(rows).where(of_rows == of_columns, scale[rows].astype(kind), kind.type(1))
    layer.data[...] /= factors


def sizes(values: Array) -> Array:
    """Return absolute values, float64 of the precision of float32, see :func:`layerwise.rounded`."""
    return rounded(abs(values).astype(np.float64), PRECISION)


def keep_sums(layer: Layer, sums: Array) -> None:
    """Multiply every row, in place, so that its :func:`sizes` add up to what they do on the graph.

    Rows whose values are all 0 stay. sums: of each vertex of the graph, float64.
    """
    own = run_sums(sizes(layer.data), layer.indptr)
    own[own == 0] = np.inf
    factors = sums[layer.rows.ids] / own
    layer.data[...] *= factors.astype(layer.data.dtype)[rows_of(layer)]


def some_rows(layer: Layer, counted: Array) -> tuple[Layer, Array]:
    """Return the rows of a layer whose loss counts, and their numbers. A GPU is waited for twice."""
    rows, places = layer.rows, row_pointers(counted)
    to_host = backend.of(places).to_host
    bounds = places[rows.bounds]
    ends = to_host(bounds)
    numbers = extract.compact(places, int(ends[-1]))
    entries, indptr = extract.row_entries(layer.indptr, numbers)
    own = indptr[bounds]
    labels = Stack(layer.indices.ids[entries], own, to_host(own))
    kept = Stack(rows.ids[numbers], bounds, ends)
    return Layer(kept, layer.cols, indptr, labels, layer.data[entries]), numbers


def samples(
    layer: Layer, last: Layer, layers: int, scale: Array | None = None, population: int | None = None
) -> list[Sample]:
    """Make one sample per minibatch: its subgraph in all layers but the last, which has some of its rows.

    scale, population: of the losses of these rows, see :class:`Sample`; None: all count alike.
    """
    blocks: Sequence[tuple[Block, Block]] = list(zip(layer.blocks(), last.blocks(), strict=True))
    weights = [None] * len(blocks) if scale is None else [scale[own] for own in last.rows.slices]
    return [
        Sample(block_of_rows.rows, (*[block] * (layers - 1), block_of_rows), own, population)
        for (block, block_of_rows), own in zip(blocks, weights, strict=True)
    ]


def counted_first(batches: Sequence[Array], counts: Array, on: Backend) -> Stack:
    """Stack the vertices of minibatches, those whose loss counts before the others."""
    lists = [on.asarray(batch, np.int64) for batch in batches]
    return Stack.of([batch[on.xp.argsort(~counts[batch], kind="stable")] for batch in lists], on)

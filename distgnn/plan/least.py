"""Seconds that a way to train takes at least, from what is known before its dry run.

A product leaves nothing under way at its end. So an epoch takes at least as long as its products, each with
what its rank receives, phase by phase, on the busiest level of the network, and with its kernels, as far as
one cannot go on beside the other. Both follow from the sizes of the grid (``shares.py``). Between products
there are passes over the hidden layers. The loss, the optimiser, sums of gradients and passes over edges are
left out, and of sparse features the first layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from distgnn import operators
from distgnn.nn.gat import GAT
from distgnn.nn.gatv2 import GATv2
from distgnn.nn.gcn import GCN
from distgnn.nn.networks import NETWORKS
from distgnn.nn.products import AGGREGATE, TRANSFORM, cheapest
from distgnn.nn.sage import SageMean
from distgnn.plan.cost_model import Network, compute_seconds
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.dry.run import multiplied
from distgnn.plan.machine import Machine
from distgnn.plan.reuse import EVEN, Reuse
from distgnn.plan.shares import SHARES, Cuts, Dense, Moved, Received, Shares, Sparse
from distgnn.train.settings import Settings
from distgnn.train.ways import Sizes, Way

ROUNDED = 0.999  # the share of the seconds that rounding leaves
TOUCHED = 4  # times that the output of a hidden layer is read or written: activation, forward and backward
Phase = tuple[Received, ...]


class Part(NamedTuple):
    """A product of an epoch, at whose end nothing of it is under way: what moves, and what is computed."""

    phases: tuple[Phase, ...]
    dense: tuple[Dense, ...] = ()
    sparse: Sparse | None = None


def least_seconds(
    s: Settings, graph: Graph, way: Way, grids: Iterable[Sizes], machine: Machine, reuse: Reuse = EVEN
) -> list[float] | None:  # fmt: skip
    """Return the seconds that an epoch takes at least, on each of these grids; None where none are known.

    Args:
        s: resolved settings; grids: that of the way, its axes in different orders; reuse: of the graph.
    """
    model = NETWORKS[str(s.model)]
    in_parts = graph.parts is not None and way.algorithm in operators.SPARSITY_AWARE  # which are uneven
    if way.algorithm not in SHARES or in_parts or s.samples or model not in (GCN, SageMean, GAT, GATv2):
        return None
    graph, on, itemsize = multiplied(s, graph), machine.used(s.overlap, s.tf32), np.dtype(s.dtype).itemsize
    sizes = {axis: way.grid.get(axis, 1) for axis in operators.get(way.algorithm).axes}
    sent = 2 if s.wire else itemsize
    cuts = Cuts(graph.n, graph.nnz, sizes, way.sparsity_aware, graph.even, itemsize, sent)
    shares = SHARES[way.algorithm](cuts)
    alike = Counter(_parts(s, graph, shares))
    work = [(part, times, _alone(on, part, itemsize, reuse)) for part, times in alike.items()]
    outputs = (shares.hidden(width, layer) for layer, width in enumerate(s.hidden_widths) if model is GCN)
    passes = TOUCHED * itemsize * sum(outputs) / on.passes.rate("activation").bandwidth
    networks = (Network(on, grid) for grid in grids)
    products = (
        sum(times * beside(on, sum(map(network.least, part.phases)), alone) for part, times, alone in work)
        for network in networks
    )
    return [ROUNDED * (seconds + passes) for seconds in products]


def beside(machine: Machine, comm: float, compute: float) -> float:
    """Return the seconds of messages and of computations that go on beside each other as far as they can."""
    progress, slower = machine.overlap.progress, 1 + machine.overlap.slowdown
    hidden = progress * slower * compute  # of the messages
    if comm <= hidden:
        together = compute + comm * machine.overlap.slowdown / (slower * progress or 1.0)
    else:
        together = compute * slower + comm - hidden
    return min(together, compute + comm)


def _parts(s: Settings, graph: Graph, shares: Shares) -> Iterator[Part]:
    """List the products of an epoch."""
    attends, symmetric = NETWORKS[str(s.model)].attends, graph.source.symmetric
    for layer, (below, above) in enumerate(pairwise((graph.width, *s.hidden_widths, graph.classes))):
        need = s.train_features or layer > 0
        if layer == 0 and graph.feature_nnz is not None:
            continue
        if attends:
            yield _part(shares.product(above, layer, edges=True))
            yield _part(shares.back(above, layer, edges=True))
            continue
        kept = not need and s.keep_aggregate and not s.dropout
        first = aggregates_first(s, shares, (below, above), need, kept)
        width = below if first else above
        forward, back = shares.weights(below, above, layer, need)
        of_times, of_weights, of_input = shares.dense(below, above, layer)
        yield _part([forward], of_times)
        yield _part([back], of_weights, *[of_input] * need)
        if not (first and kept):
            yield _part(shares.product(width, layer), sparse=shares.sparse(width, layer))
        if need or not first:
            moved, own = shares.adjoint(width, layer, symmetric)
            yield _part(moved, sparse=own)


def aggregates_first(s: Settings, shares: Shares, shape: tuple[int, int], need: bool, kept: bool) -> bool:
    """Tell whether a layer multiplies by A before it multiplies by its weights, as its products choose."""
    if s.product_order != "auto" or not shares.associative or NETWORKS[str(s.model)] is SageMean:
        return s.product_order != TRANSFORM
    return cheapest(shape, need, kept) == AGGREGATE  # of equals either: both multiply as many columns


def _part(phases: Moved, *dense: Dense, sparse: Sparse | None = None) -> Part:
    return Part(tuple(tuple(phase) for phase in phases if phase), dense, sparse)


def _alone(machine: Machine, part: Part, itemsize: int, reuse: Reuse) -> float:
    """Return the seconds of the kernels of a part alone."""
    seconds = 0.0
    for m, k, n in part.dense:
        touched = (m * k + k * n + m * n) * itemsize
        step = ProgramStep("gemm", "gemm", "", "", flops=2 * m * k * n, touched=touched)
        seconds += compute_seconds(machine, step, itemsize, reuse)
    if part.sparse is not None:
        own = part.sparse
        seconds += min(_spmm(machine, own._replace(k=(k, k)), itemsize, reuse) for k in {*own.k})
    return seconds


def _spmm(machine: Machine, own: Sparse, itemsize: int, reuse: Reuse) -> float:
    """Return the seconds of a product; of its passes but one those over the rows of the result."""
    m, k, width = own.m, own.k[0], own.width
    steps = {
        ProgramStep("spmm", "spmm", "", "", shape=(m, k, own.nonzeros, width)): 1,
        ProgramStep("spmm", "spmm", "", "", shape=(m, k, 0, width)): own.passes - 1,
        ProgramStep("spmm", "", "", "", touched=own.touched): 1,
    }
    return sum(times * compute_seconds(machine, step, itemsize, reuse) for step, times in steps.items())

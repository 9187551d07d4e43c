"""Seconds that a way to train takes at least, from what is known before its dry run.

A product leaves nothing under way at its end. So an epoch takes at least as long as its products, each with
its messages, by their prices, on the busiest level of the network, and with its kernels, by the shapes of the
rank's blocks, as far as one cannot go on beside the other. Between products there are passes over the hidden
layers. The loss, the optimiser and sums of gradients are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from distgnn import ledger
from distgnn.comm.rows import Rows
from distgnn.nn.gcn import GCN
from distgnn.operators.moves import Moves
from distgnn.operators.row_moves import CoveredMoves, NeededRowMoves
from distgnn.plan.cost_model import FLOAT, Network, compute_seconds
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.dry.run import ReadyRank
from distgnn.plan.formulas import Part, parts
from distgnn.plan.machine import Machine
from distgnn.plan.reuse import EVEN, Reuse
from distgnn.train.settings import Settings
from distgnn.train.ways import Sizes, Way, axis_orders, named_sizes

ROUNDED = 0.999  # the share of the seconds that rounding leaves
INDEX = 8  # bytes of a row's number
TOUCHED = 4  # times that the output of a hidden layer is read or written: activation, forward and backward
Bytes = dict[tuple[str, bool], float]  # by group, and whether they are those of needed rows


def least_seconds(
    settings: Settings, way: Way, machine: Machine, rank: ReadyRank, reuse: Reuse = EVEN
) -> list[float]:  # fmt: skip
    """Return the seconds that an epoch takes at least, by order of the axes; 0 where none are known.

    ``rank``: has the most to do; ``reuse``: of the graph.
    """
    ready, on = rank.ready, machine.used(settings.overlap, settings.tf32)
    with ledger.apart(rank.books):
        every = parts(ready.model, ready.settings.train_features) or []
        alike = Counter((id(part.A), part.layer.shape, *part[3:]) for part in every)  # of equal prices
        some = {(id(part.A), part.layer.shape, *part[3:]): part for part in every}
        work = [
            (times, _nbytes(some[key], bool(settings.wire)), _computing(on, some[key], reuse))
            for key, times in alike.items()
        ]
    passes, bandwidth = _hidden(ready.model) if every else 0, on.passes.rate("activation").bandwidth
    networks = (Network(on, grid) for grid in orders(settings, way))
    products = (
        sum(times * beside(on, network.least(nbytes), alone) for times, nbytes, alone in work)
        for network in networks
    )
    return [ROUNDED * (seconds + TOUCHED * passes / bandwidth) for seconds in products]


def _hidden(model: GCN) -> int:
    """Return the bytes of the outputs of hidden layers, by the products that make fewer of them."""
    nbytes = 0
    for layer, (A, _) in list(zip(model.layers, model.graphs, strict=True))[:-1]:
        shape, layouts = (A.shape[0], layer.shape[1]), (A.output_layout, A.weights.output_layout)
        nbytes += min(math.prod(layout.local_shape(shape)) for layout in layouts) * A.dtype.itemsize
    return nbytes


def orders(settings: Settings, way: Way) -> Iterator[Sizes]:
    """Yield the grid of a way with its axes in every order that makes a difference."""
    return axis_orders(way.grid, list(named_sizes(settings, way.algorithm)))


def beside(machine: Machine, comm: float, compute: float) -> float:
    """Return the seconds of messages and of computations that go on beside each other as far as they can."""
    progress, slower = machine.overlap.progress, 1 + machine.overlap.slowdown
    hidden = progress * slower * compute  # of the messages
    if comm <= hidden:
        together = compute + comm * machine.overlap.slowdown / (slower * progress or 1.0)
    else:
        together = compute * slower + comm - hidden
    return min(together, compute + comm)


def _nbytes(part: Part, wire: bool) -> Bytes:
    """Return the bytes that a part receives. Of panels of A, numbers and indices have 4 at least."""
    itemsize = part.A.dtype.itemsize
    bytes_of: Bytes = {}
    rows = part.A.moves.needed() is not None and part.width is not None
    across = part.A.moves.pairs.comm.name if rows else None
    for (group, matrix), (words, _) in part.price.items():
        if matrix != "gradients":
            size = min(itemsize, FLOAT) if matrix == "A" else 2 if wire else itemsize
            key = group, group == across
            bytes_of[key] = bytes_of.get(key, 0.0) + float(words) * size
    return bytes_of


def _computing(machine: Machine, part: Part, reuse: Reuse) -> float:
    """Return the seconds of the kernels of a part alone."""
    steps = Counter(_dense(part) if part.width is None else _sparse(part, part.width))
    seconds = (compute_seconds(machine, step, part.A.dtype.itemsize, reuse) for step in steps)
    return sum(times * alone for times, alone in zip(steps.values(), seconds, strict=True))


def _dense(part: Part) -> Iterator[ProgramStep]:
    """List the products with weights, by the largest that a rank may make of them."""
    A, layer = part.A, part.layer
    rows, below = A.weights.input_layout.local_shape((A.shape[0], layer.shape[0]))
    above = A.weights.output_layout.local_shape((A.shape[0], layer.shape[1]))[1]
    whole = layer.shape if A.weights.replicated else (below, above)
    shapes = [(rows, whole[0], above)]
    if part.need is not None:
        shapes = [(below, rows, whole[1]), *[(rows, whole[1], below)] * part.need]
    for m, k, n in shapes:
        touched = (m * k + k * n + m * n) * A.dtype.itemsize
        yield ProgramStep("gemm", "gemm", "", "", flops=2 * m * k * n, touched=touched)


def _sparse(part: Part, f: int) -> Iterator[ProgramStep]:
    """List the products of a rank's blocks with f columns, and passes over rows that are packed or added."""
    A, moves, forward = part.A, part.A.moves, not part.adjoint or part.A.T is part.A
    if not forward and A.algorithm.moves_of_transpose is not None:
        moves, forward = A.algorithm.moves_of_transpose, True
    for width in moves.passes(f, not forward)[1]:
        for (m, k, nonzeros), times in Counter(_blocks(moves)).items():
            shape = (m, k, nonzeros, width) if forward else (k, m, nonzeros, width)
            yield from repeat(ProgramStep("spmm", "spmm", "", "", shape=shape), times)
        nbytes = width * A.dtype.itemsize
        packed = _asked(moves) if forward and isinstance(moves, NeededRowMoves) else 0
        added = _asked(moves.others) if forward and isinstance(moves, CoveredMoves) else 0
        touched = packed * (INDEX + 2 * nbytes) + added * (INDEX + 3 * nbytes)
        yield ProgramStep("spmm", "", "", "", touched=touched)


def _blocks(moves: Moves) -> list[tuple[int, int, int]]:
    """List rows, columns and non-zeros of the blocks that come by in a product."""
    if isinstance(moves, CoveredMoves):
        return [*_blocks(moves.fetched), *((m, k, some) for k, m, some in _blocks(moves.others))]
    shapes: Any = [block.shape for block in moves.blocks]
    if len(shapes) < len(moves.sizes):  # those of other ranks, too
        shapes = [(moves.height, last - first) for first, last in moves.ranges()]
    return [(*shape, nonzeros) for shape, nonzeros in zip(shapes, moves.sizes, strict=True)]


def _asked(moves: NeededRowMoves) -> int:
    """Return how many rows other ranks need of this one that are not consecutive."""
    needed = moves.pairs.rows
    if not isinstance(needed, Rows):  # by way of nodes
        return 0
    others = (rows for rank, rows in needed.asked.items() if rank != needed.me)
    return sum(rows.size for rows in others if not isinstance(rows, slice))

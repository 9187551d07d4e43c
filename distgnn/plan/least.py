"""Seconds that a way to train takes at least, from what is known before its dry run.

They are those of the messages of its products, by their prices, on the busiest level of the network, and of
its local products, by the non-zeros of the rank's blocks, as far as one cannot go on beside the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.nn.gcn import GCN
from distgnn.operators.moves import Moves
from distgnn.plan import formulas
from distgnn.plan.cost_model import FLOAT, Network
from distgnn.plan.dry.run import LastRank
from distgnn.plan.machine import Machine, SpmmRates
from distgnn.train.settings import Settings
from distgnn.train.ways import Way, axis_orders, named_sizes

SAFE = 0.9  # the share of the last rank's words that the busiest one has at least


def least_seconds(settings: Settings, way: Way, machine: Machine, last: LastRank | None) -> float:
    """Return the seconds that an epoch takes at least, with axes in any order; 0 where none is known.

    ``last``: the last rank, which has as much to do as any, or nearly.
    """
    if last is None:
        return 0.0
    model, train_features = last.ready.model, last.ready.settings.train_features
    with ledger.apart(last.books):
        price = formulas.epoch(model, train_features)
    words: dict[str, float] = {}
    for (group, _), (count, _) in ({} if price is None else price).items():
        words[group] = words.get(group, 0.0) + float(count)
    nbytes = 2 if settings.wire else np.dtype(settings.dtype).itemsize
    on = machine.used(settings.overlap, settings.tf32)
    orders = axis_orders(way.grid, list(named_sizes(settings, way.algorithm)))
    comm = nbytes * min((Network(on, grid).least(words) for grid in orders), default=0.0)
    return SAFE * beside(on, comm, computing(on, model, train_features))


def beside(machine: Machine, comm: float, compute: float) -> float:
    """Return the seconds of messages and of computations that go on beside each other as far as they can."""
    progress, slower = machine.overlap.progress, 1 + machine.overlap.slowdown
    hidden = progress * slower * compute  # of the messages
    if comm <= hidden:
        return compute + comm * machine.overlap.slowdown / (slower * progress or 1.0)
    return compute * slower + comm - hidden if progress else compute + comm


def computing(machine: Machine, model: GCN, train_features: bool) -> float:
    """Return the seconds of the products of a rank alone, at the rate of the nearer memory."""
    total, n = 0.0, model.A.shape[0]
    for A, layer, times, adjoint, need, _ in formulas.products(model, train_features) or ():
        scale = A.dtype.itemsize / FLOAT
        if times is not None:
            total += _sparse(machine, A.moves, times, scale, True)
        if adjoint is not None:
            total += _sparse(machine, A.moves, adjoint, scale, A.T is A)
        T, W = A.weights.input_layout.local_shape((n, layer.shape[0])), A.weights.output_layout
        below = layer.shape[0] if A.weights.replicated else T[1]
        flops = 2 * T[0] * below * W.local_shape((n, layer.shape[1]))[1]
        total += (2 + need) * flops * scale / machine.gemm.flops
    return total


def _sparse(machine: Machine, moves: Moves, f: int, scale: float, onto_rows: bool) -> float:
    """Return the least seconds of a product with f columns, or of its adjoint, whose rows are not counted."""
    levels = [rates for rates in vars(machine.spmm).values() if isinstance(rates, SpmmRates)]
    at: Any = lambda name, width: min(  # noqa: E731
        getattr(rates, name) + getattr(rates, f"{name}_column") * width for rates in levels
    )
    rows = len(moves.sizes) * moves.height if onto_rows and moves.needed() is None else 0
    widths = [width * scale for width in moves.passes(f)[1]]
    return sum(sum(moves.sizes) * at("nonzero", width) + rows * at("row", width) for width in widths)

"""Price of an epoch, to stand beside a dry run: the sum of the prices of its operations.

Its seconds are those of all messages and words one after the other, on the link that a group of ranks takes
(Plexus section 4.2; of one kind of link, CAGNET section IV).
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distgnn.comm.group import Comm
from distgnn.nn.gcn import GCN
from distgnn.nn.layers import GraphConvolution
from distgnn.nn.products import AGGREGATE
from distgnn.operators.prices import FREE, Price, reduced
from distgnn.operators.registry import TABLE
from distgnn.operators.weights import ReplicatedWeights
from distgnn.plan.dry.run import Costs
from distgnn.plan.machine import Machine

ASCII = str.maketrans({"`": "", "Σ": "sum ", "≠": "!=", "ᵀ": "'", "²": "^2", "·": " "})


@dataclass(frozen=True)
class Formula:
    """The price of an epoch on one rank.

    Attributes:
        section: of which paper; text: the costs of a product; where: the links.
        words: a record for each matrix: the price's, or None, and the dry run's.
        seconds: of all messages and words, one after the other.
    """

    section: str
    text: str
    where: str
    words: list[dict[str, Any]]
    messages: int
    seconds: float


def formula(
    costs: Costs, train_features: bool, aware: bool | str, machine: Machine, grid: Mapping[str, int]
) -> Formula | None:  # fmt: skip
    """Price an epoch of the network of a dry run's rank; None: its operations are not priced.

    ``grid``: sizes by axis, the last the nearest in a node.
    """
    if costs.model is None or (price := epoch(costs.model, train_features)) is None:
        return None
    A: Any = costs.model.A
    seconds, links = 0.0, {}
    for (group, _), (words, messages) in price.items():
        if words or messages:
            links[group] = alpha, bandwidth = link(machine, grid, group)
            seconds += messages * alpha + float(words) * A.dtype.itemsize / bandwidth
    option = "--sparsity-aware" if aware else ""
    row = next(row for row in TABLE if row.name == A.name and option in row.command)
    page = inspect.getdoc(type(A.algorithm)) or ""
    said = [text for text in page.split("\n\n") if text.startswith("Cost")]
    rates = ", ".join(f"{group} {rate / 1e9:.3g}" for group, (_, rate) in links.items())
    priced, own = price.by_matrix(), costs.words
    lines = [
        {"matrix": name or "other", "formula": float(priced[name]) or None, "dry_run": own.get(name, 0)}
        for name in dict.fromkeys([*priced, *own])
    ]
    section = ", ".join(filter(None, (row.paper, row.section)))
    text = " ".join(" ".join(said).translate(ASCII).split())
    return Formula(section, text, f"GB/s into a rank along {rates}", lines, price.messages, seconds)


def epoch(model: GCN, train_features: bool) -> Price | None:
    """Price an epoch: products, those with weights, and sums of biases; None for layers of other kinds.

    Norms, the loss, residual connections and the optimiser are left out.
    """
    total, late, n = FREE, Counter[Comm](), model.A.shape[0]
    for layer, (A, _) in zip(model.layers, model.graphs, strict=True):
        if type(layer) is not GraphConvolution:
            return None
        need = train_features or layer.index > 0
        kept = not need and layer.options.keep_aggregate and not layer.options.dropout
        first = layer.order(A, need, kept) == AGGREGATE
        width = layer.shape[0 if first else 1]
        dense, back = A.weights.prices(n, layer.shape, A.dtype.itemsize, need)
        sparse = FREE if first and kept else A.prices.product(width)
        total += dense + sparse + back
        if need or not first:
            total += A.prices.adjoint(width)
        if layer.index < model.first_kept(len(model.layers)):  # it is gone through again
            on = (layer.index + 1) % model.recompute > 0  # to the next
            total += dense + sparse if on else sparse if first else FREE
        out = A.weights.output_layout
        rows = A.grid.along(*out.row_axes)
        if layer.b is not None:
            total += reduced(rows, "gradients", out.local_shape((n, layer.shape[1]))[1])
        late[rows] += isinstance(A.weights, ReplicatedWeights) + (layer.b is not None)
    for group, sums in late.items():  # which are made together
        total += Price({(group.name, "gradients"): (0, -2 * (group.size - 1) * max(sums - 1, 0))})
    return total


def link(machine: Machine, grid: Mapping[str, int], group: str) -> tuple[float, float]:
    """Return α of the level that a group takes, and bytes per second of a rank in it, Plexus's β.

    Groups of one node share what the node injects: β_inter / min(G_node, groups beside each other).
    """
    axes = list(grid)
    inside = axes if group == "world" else group.split("+")
    spanned = axes[min(map(axes.index, inside)) :]
    beside = math.prod(grid[axis] for axis in spanned if axis not in inside)
    inner = 1
    for level in machine.levels:
        if level.ranks is None or math.prod(grid[axis] for axis in spanned) <= level.ranks:
            break
        inner = level.ranks
    return level.alpha, min(level.bandwidth, level.injection / min(inner, beside))

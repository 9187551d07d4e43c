"""Every way to train a graph on so many ranks of a machine, each with the seconds and the memory it takes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from distgnn import operators
from distgnn.errors import ArgumentError, UserError
from distgnn.nn.gcn import GCN
from distgnn.nn.networks import NETWORKS
from distgnn.nn.sage import SageMean
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.machine import Machine, read
from distgnn.plan.pricing import Choice, Infeasible, amount, bound, least_bytes, orders, priced, widths_of
from distgnn.train import room
from distgnn.train.resolve import resolved
from distgnn.train.settings import AUTO, Settings
from distgnn.train.ways import Sizes, Way, asked, ways

MOST_RANKS = 4096  # that are looked for where memory is short
#: Another order, or no overlap, is advised for an epoch that takes at most this share of the time.
CLEAR = 0.9
#: A plan's error, a share of the time: in 94 % of the cases of benchmarks/results/plan-cluster.md the first
#: choice was within it of the fastest.
ERROR = 0.1
SHOWN = 12  # choices that a table shows at least
FEW = 3  # best shapes of grids that are priced without overlap, too


@dataclass(frozen=True)
class Plan:
    """Ways to train, the fastest first, and the settings that were asked: see :func:`plan`.

    Attributes:
        left_out: of a plan that is not complete, how many shapes of grids are not in it, and how many times
            the seconds of the first they take at least; None where there are none.
    """

    machine: Machine
    ranks: int
    choices: list[Choice]
    infeasible: list[Infeasible]
    settings: Settings
    graphs: Mapping[str | None, Graph]
    left_out: tuple[int, float] | None = None

    @property
    def best(self) -> Choice:
        """The fastest. UserError: there is none; the message says what is short, and what would do."""
        if not self.choices:
            raise UserError(shortage(self))
        return self.choices[0]

    @property
    def alike(self) -> int:
        """The number of choices within the plan's error of the fastest: any of them will do."""
        return sum(choice.seconds <= (1 + ERROR) * self.choices[0].seconds for choice in self.choices)

    @cached_property
    def advice(self) -> list[str]:
        """Advice beside the choices, in lines."""
        return [line for line in (beyond(self.machine, self.ranks), overlapping(self)) if line]

    def record(self) -> dict[str, Any]:
        """Return the record for JSON: the settings asked for, and the choices."""
        return asked_for(self.machine, self.settings, self.graphs) | {
            "ranks": self.ranks,
            "advice": self.advice,
            "choices": [choice.record(self.machine.node) for choice in self.choices],
            "infeasible": [way.record(self.machine.node) for way in self.infeasible],
        }


def plan(
    settings: Settings, graphs: Mapping[str | None, Graph] | Graph, ranks: int,
    machine: Machine | str | os.PathLike[str], complete: bool = True,
) -> Plan:  # fmt: skip
    """Plan all ways to train on so many ranks of a machine. Runs no MPI.

    Args:
        settings: of the network and the training. An algorithm, a grid, a replication or sparsity-awareness
            given here is kept.
        graphs: one, or by the name of the order; None where there is no store.
        machine: itself, or what :func:`machine.read` takes.
        complete: all ways. Else some are left out that are known to take longer than the best dozen, than
            what is as good as the first, and than the best of the same algorithm.

    Raises:
        UserError: of `machine.read`. ArgumentError: no rank, or what no algorithm can do.
    """
    machine, graphs = read(machine), {None: graphs} if isinstance(graphs, Graph) else graphs
    if ranks < 1:
        raise ArgumentError("ranks", ranks, "must be a whole number, at least 1")
    infeasible = list(gridless(settings, ranks, next(iter(graphs), None)))
    shapes = [(graph, way) for order, graph in graphs.items() for way in ways(settings, ranks, order)]
    bounds = [None if complete else bound(settings, *shape, ranks, machine) for shape in shapes]
    floors = [min(least or [0.0]) for least in bounds]
    by_number: dict[int, list[Choice | Infeasible]] = {}
    best, left_out, in_rows = _Best(), list[float](), dict[Any, list[Choice]]()
    for number in sorted(range(len(shapes)), key=floors.__getitem__):
        (graph, way), limit = shapes[number], best.limit(shapes[number][1])
        if floors[number] <= limit:
            key, how = (way.order, way.sparsity_aware), (bounds[number], limit, complete)
            known = as_1d(settings, way, in_rows.get(key, []))
            by_number[number] = known or priced(settings, graph, ranks, machine, way, *how)
            fitting = [result for result in by_number[number] if isinstance(result, Choice)]
            best.add(fitting)
            in_rows |= {key: fitting} if way.algorithm == "1d" else {}
        if not by_number.get(number):
            left_out.append(floors[number])
    results = [result for _, some in sorted(by_number.items()) for result in some]
    choices = sorted((r for r in results if isinstance(r, Choice)), key=lambda choice: choice.seconds)
    infeasible += [result for result in results if isinstance(result, Infeasible)]
    if not choices and not complete:
        return plan(settings, graphs, ranks, machine)  # with the peaks that the least memory is known by
    beyond = (len(left_out), min(left_out) / choices[0].seconds) if left_out else None
    return Plan(machine, ranks, choices, infeasible, settings, graphs, beyond)


def as_1d(settings: Settings, way: Way, of_1d: Sequence[Choice]) -> list[Choice | Infeasible]:
    """Return the choices of 1D as those of a way whose ranks do the same: all stand in rows, and own them.

    Of networks with attention, the edges of `rdm` take memory for columns, of which it has one block.
    """
    in_rows = way.as_1d and way.algorithm in operators.SPARSITY_AWARE
    if not in_rows or NETWORKS.get(settings.model or "gcn") not in (GCN, SageMean):
        return []
    (grid,) = orders(settings, way)
    return [replace(choice, way=replace(way, grid=grid)) for choice in of_1d]


class _Best:
    """Seconds of the choices that are known."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.best: dict[tuple[str, bool | str], float] = {}

    def add(self, choices: Sequence[Choice]) -> None:
        self.seconds = sorted([*self.seconds, *(choice.seconds for choice in choices)])
        for choice in choices:
            key = choice.way.algorithm, choice.way.sparsity_aware
            self.best[key] = min(choice.seconds, self.best.get(key, math.inf))

    def limit(self, way: Way) -> float:
        """Return the seconds above which this way is neither shown, nor as good as the first."""
        own = self.best.get((way.algorithm, way.sparsity_aware), math.inf)
        if len(self.seconds) < SHOWN:
            return math.inf
        return max(own, self.seconds[SHOWN - 1], (1 + ERROR) * self.seconds[0])


def gridless(settings: Settings, ranks: int, order: str | None) -> Iterator[Infeasible]:
    """List the algorithms without a grid of so many ranks that has the sizes asked for, and how many would
    do.

    Raises:
        ArgumentError: no number would.
    """
    sizes_by_name = asked(settings)
    if not sizes_by_name:
        argument = "replication" if settings.grid is None else "grid"
        who = (
            "no algorithm" if settings.algorithm in (None, AUTO) else f"algorithm {settings.algorithm} never"
        )
        problem = f"{who} has such a grid; distgnn algorithms lists the axes"
        raise ArgumentError(argument, getattr(settings, argument), problem)
    for name, sizes in sizes_by_name.items():
        if not has_grid(name, sizes, ranks):
            step = math.prod(sizes.values())
            last = ranks // step * step
            below = (count for count in range(last, max(last - 16 * step, 0), -step))
            above = (count for count in range(last + step, last + 17 * step, step))
            nearest = (
                next((ranks_near for ranks_near in some if has_grid(name, sizes, ranks_near)), 0)
                for some in (below, above)
            )
            would = " or ".join(str(count) for count in nearest if count)
            reason = f"there is no such grid of {ranks} ranks{f'; {would} would do' if would else ''}"
            yield Infeasible(Way(name, sizes, order, settings.sparsity_aware or False), reason)


def has_grid(name: str, sizes: Sizes, ranks: int) -> bool:
    """Tell whether an algorithm has a grid of so many ranks with these sizes."""
    return any(sizes.items() <= grid.items() for grid in operators.grids(name, ranks))


def asked_for(machine: Machine, settings: Settings, graphs: Mapping[str | None, Graph]) -> dict[str, Any]:
    """Return the settings of a plan, for JSON."""
    graph = next(iter(graphs.values()))
    sizes: dict[str, Any] = {"nodes": graph.n, "nnz": graph.nnz}
    sizes |= {"features": graph.width, "classes": graph.classes}
    sizes |= {"multilabel": True} if graph.multilabel else {}
    sizes |= {"loss": "mse"} if graph.loss == "mse" else {}
    given = {name: value for name, value in settings.shared().items() if value is not None}
    return {"machine": machine.name, "graph": sizes, "settings": given}


def beyond(machine: Machine, ranks: int) -> str | None:
    """Warn that a machine was measured with fewer ranks, if it was."""
    with_ranks = machine.measured.ranks if machine.measured else ranks
    if ranks <= with_ranks:
        return None
    return f"{machine.name} was measured with {with_ranks} ranks; memory and rates of a rank are theirs"


def overlapping(planned: Plan) -> str | None:
    """Suggest --no-overlap if the best shapes of grids would be clearly faster without overlap.

    Looks only where the machine slows computing down enough.
    """
    if (
        not planned.settings.overlap
        or not planned.choices
        or 1 / (1 + planned.machine.overlap.slowdown) > CLEAR
    ):
        return None
    shapes: dict[Any, Way] = {}
    for way in (choice.way for choice in planned.choices):
        key = way.algorithm, way.order, way.sparsity_aware, *sorted(way.grid.items())
        shapes.setdefault(key, way)
    settings, best = replace(planned.settings, overlap=False), list[Choice]()
    limit = CLEAR * planned.best.seconds
    for way in list(shapes.values())[:FEW]:
        asked = settings, planned.graphs[way.order]
        floors = bound(*asked, way, planned.ranks, planned.machine)
        if min(floors or [0.0]) > limit:
            continue
        again = priced(*asked, planned.ranks, planned.machine, way, floors, limit)
        best += [option for option in again if isinstance(option, Choice)]
    fastest = min(best, key=lambda option: option.seconds, default=planned.best)
    if fastest.seconds > limit:
        return None
    took = f"{fastest.seconds:.3g} s per epoch, {planned.best.seconds / fastest.seconds:.2g} times as fast"
    return f"with --no-overlap {fastest.way} would take {took}"


def shortage(asked: Plan) -> str:
    """Return why a plan has no choice, in one line: memory, or another number of ranks."""
    full = [way for way in asked.infeasible if way.peak]
    if not full:
        reasons: dict[str, list[str]] = {}
        for refused in asked.infeasible:
            named = reasons.setdefault(refused.reason, [])
            named += [refused.way.algorithm] if refused.way.algorithm not in named else []
        listed = "; ".join(f"{', '.join(named)}: {why}" for why, named in reasons.items())
        return f"no way to train on {asked.ranks} ranks: {listed}"
    least = min(full, key=lambda way: way.peak)
    has = f"the {amount(asked.machine.memory)} that a rank of {asked.machine.name} has"
    needs = f"{least.way} on {asked.ranks} ranks needs the least, {amount(least.peak)}"
    return f"no way to train fits into {has}: {needs}; {_enough(asked, least)}{_smaller(asked, least)}"


def _smaller(asked: Plan, least: Infeasible) -> str:
    """Return which hidden width, or how many layers, may fit in place of those that cannot."""
    graph, s = asked.graphs[least.way.order], resolved(least.way.settings(asked.settings), asked.ranks)
    if least_bytes(s, graph, asked.ranks) <= asked.machine.memory:
        return ""
    needs = room.of_training(s, graph.n, graph.nnz, asked.ranks, graph.feature_nnz)
    return f"; {room.would_fit(needs, widths_of(s, graph), int(asked.ranks * asked.machine.memory))}"


def _enough(asked: Plan, least: Infeasible) -> str:
    """Return the least number of ranks, by doubling, on which a way has room."""
    ranks, before = asked.ranks, least
    most = min(MOST_RANKS, max(graph.n for graph in asked.graphs.values()))
    while 2 * ranks <= most:
        ranks *= 2
        roomiest = _roomiest(asked, ranks, before)
        if isinstance(roomiest, Choice):
            return f"{ranks} of these would do ({roomiest.way}, {amount(max(roomiest.peak_bytes))})"
        if roomiest is None:
            break
        if roomiest.peak > 0.95 * before.peak:
            return (
                f"more ranks do not help, on {ranks} it is {amount(roomiest.peak)}; take ranks with as much"
            )
        before = roomiest
    return f"up to {ranks} ranks need more, take ranks with as much"


def _roomiest(asked: Plan, ranks: int, before: Infeasible) -> Choice | Infeasible | None:
    """Return a way that has room on so many ranks, or the one that needs the least; None if there is none."""
    most: Infeasible | None = None
    for order, graph in asked.graphs.items():
        candidates = sorted(
            ways(asked.settings, ranks, order), key=lambda way: way.algorithm != before.way.algorithm
        )
        for way in candidates:
            for result in priced(asked.settings, graph, ranks, asked.machine, way):
                if isinstance(result, Choice):
                    return result
                if result.peak and (most is None or result.peak < most.peak):
                    most = result
    return most

"""Seconds of an epoch by the number of ranks: of every algorithm's best way, and who overtakes whom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from distgnn import operators
from distgnn.layout import written
from distgnn.plan.choices import ERROR, Plan, plan
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.machine import Machine
from distgnn.plan.pricing import Choice
from distgnn.plan.tables import AS_1D, digits, name, wrap
from distgnn.report.text import aligned
from distgnn.train.settings import Settings
from distgnn.train.ways import Way

Graphs = Mapping[str | None, Graph]
OPTIMUM = "*"


@dataclass(frozen=True)
class PlannedRanks:
    """A number of ranks.

    Attributes:
        best: by algorithm, the best first; ways: all, with their seconds; infeasible: records of the rest.
        node: ranks of a node, or None.
    """

    ranks: int
    best: dict[str, Choice]
    ways: list[tuple[Way, float]]
    infeasible: list[dict[str, Any]]
    node: int | None = None


@dataclass(frozen=True)
class Crossover:
    """From one number of ranks to the next, an algorithm becomes faster than another.

    Attributes:
        at: the number of ranks where straight lines between logarithms cross.
    """

    between: tuple[int, int]
    faster: str
    slower: str
    at: float


@dataclass(frozen=True)
class Curves:
    """Points by number of ranks."""

    points: list[PlannedRanks]

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks, ascending."""
        return [point.ranks for point in self.points]

    @property
    def algorithms(self) -> list[str]:
        """The algorithms that can be on some number of ranks."""
        ways = {algorithm: choice.way for point in self.points for algorithm, choice in point.best.items()}
        order = list(operators.ALGORITHMS)
        return sorted(
            ways, key=lambda name: (order.index(ways[name].algorithm), str(ways[name].sparsity_aware))
        )

    def seconds(self, algorithm: str) -> dict[int, float]:
        """Return the seconds by number of ranks, where the algorithm can be."""
        choices = ((point.ranks, point.best.get(algorithm)) for point in self.points)
        return {ranks: choice.seconds for ranks, choice in choices if choice is not None}

    def crossovers(self) -> list[Crossover]:
        """Find the crossovers of all pairs of algorithms, in the order of ranks."""
        crossings = [
            cross for pair in combinations(self.algorithms, 2) for cross in self._crossings(*pair)
        ]  # fmt: skip
        return sorted(crossings, key=lambda cross: cross.between)

    def _crossings(self, first_name: str, other: str) -> Iterator[Crossover]:
        """Find where the faster one of two algorithms changes, by more than a plan's error on either side."""
        first, second = self.seconds(first_name), self.seconds(other)
        before: tuple[int, float] | None = None
        for count in sorted(first.keys() & second.keys()):
            lead = math.log(second[count] / first[count])
            if abs(lead) < math.log1p(ERROR):
                continue
            if before is not None and lead * before[1] < 0:
                low, was = before
                pair = (first_name, other) if lead > 0 else (other, first_name)
                yield Crossover((low, count), *pair, low * (count / low) ** (was / (was - lead)))
            before = count, lead

    def record(self) -> dict[str, Any]:
        """Return the record for JSON."""
        points = [
            {"ranks": point.ranks, "choices": [choice.record(point.node) for choice in point.best.values()]}
            | {"infeasible": point.infeasible}
            for point in self.points
        ]
        crossovers = [
            {"between": cross.between, "faster": cross.faster, "slower": cross.slower}
            for cross in self.crossovers()
        ]
        return {"points": points, "crossovers": crossovers}


def strong(settings: Settings, graphs: Graphs, ranks: Sequence[int], machine: Machine) -> Curves:
    """Plan the same graph on more and more ranks.

    Raises:
        UserError: no number of them is enough.
    """
    points = []
    for count in ranks:
        planned = plan(settings, graphs, count, machine)
        points.append(_point(planned))
    if not any(point.best for point in points):
        planned.best
    return Curves(points)


def weak(settings: Settings, graphs: Graphs, ranks: Sequence[int], machine: Machine) -> Curves:
    """Plan a graph with as many nodes and non-zeros per rank as at the first number of ranks."""
    points = []
    for count in ranks:
        grown = {order: graph.grown(count / ranks[0]) for order, graph in graphs.items()}
        points.append(_point(plan(settings, grown, count, machine)))
    return Curves(points)


def _point(planned: Plan) -> PlannedRanks:
    best: dict[str, Choice] = {}
    for choice in planned.choices:
        best.setdefault(name(choice.way), choice)
    ways = [(choice.way, choice.seconds) for choice in planned.choices]
    node = planned.machine.node
    return PlannedRanks(planned.ranks, best, ways, [way.record(node) for way in planned.infeasible], node)


def text(curves: Curves) -> str:
    """Write milliseconds of the best of each algorithm, the fastest marked; crossovers; limits."""
    return "\n".join([*aligned(table(curves), left=0), "", *sentences(curves)])


def table(curves: Curves) -> list[list[str]]:
    """Return a line per number of ranks; the grid is that of the fastest."""
    lines = [["ranks", *curves.algorithms, "fastest grid"]]
    for point in curves.points:
        fastest = next(iter(point.best), None)
        limit = (1 + ERROR) * point.best[fastest].seconds if fastest else 0.0
        cells = [_cell(point.best.get(algorithm), limit) for algorithm in curves.algorithms]
        lines.append([str(point.ranks), *cells, written(point.best[fastest].way.grid) if fastest else ""])
    return lines


def _cell(choice: Choice | None, limit: float) -> str:
    return "-" if choice is None else digits(1e3 * choice.seconds) + OPTIMUM * (choice.seconds <= limit)


def sentences(curves: Curves) -> list[str]:
    """Describe the table in words."""
    lines = [f"ms of an epoch, best grids. *: any will do, as a plan errs by {ERROR:.0%}. -: infeasible."]
    places: dict[tuple[int, int], dict[str, list[str]]] = {}
    for cross in curves.crossovers():
        places.setdefault(cross.between, {}).setdefault(cross.faster, []).append(cross.slower)
    for (low, high), overtaken in places.items():
        words = "; ".join(f"{faster} overtakes {', '.join(slower)}" for faster, slower in overtaken.items())
        lines += wrap(f"Between {low} and {high} ranks {words}.")
    stops, in_rows = list[str](), list[str]()
    for algorithm in curves.algorithms:
        seconds = curves.seconds(algorithm)
        fewest = min(seconds, key=seconds.__getitem__)
        if seconds[max(seconds)] > (1 + ERROR) * seconds[fewest]:
            stops.append(f"{algorithm} on {fewest}")
        rows = [str(p.ranks) for p in curves.points if (c := p.best.get(algorithm)) and c.way.as_1d]
        in_rows += [f"{algorithm} on {', '.join(rows)}"] if rows else []
    lines += wrap(f"Scaling stops: {', '.join(stops)}.") if stops else []
    return lines + (wrap(AS_1D.format("; ".join(in_rows))) if in_rows else [])

"""Every way to train a graph on so many ranks of a machine, each with the seconds and the memory it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from distgnn import operators
from distgnn.errors import ArgumentError, UserError
from distgnn.layout import written
from distgnn.plan.cost_model import Estimate, estimate
from distgnn.plan.dry_run import Costs, DryRun, dry_run
from distgnn.plan.graphs import Graph, Histogram
from distgnn.plan.machine import Machine
from distgnn.train.settings import AUTO, Settings, parse_grid

Sizes = dict[str, int]
#: Ranks up to which a dry run of a graph that is known takes all of them, and not the busiest alone.
ALL_RANKS = 16


@dataclass(frozen=True)
class Way:
    """A way to train: what of the settings a plan chooses.

    Attributes:
        grid: sizes by axis, the last the nearest in a node; order: of the nodes, by its name in the store.
    """

    algorithm: str
    grid: Sizes
    order: str | None
    sparsity_aware: bool

    def settings(self, given: Settings) -> Settings:
        """These settings, with this way to train."""
        chosen: Any = {"algorithm": self.algorithm, "grid": self.grid, "order": self.order}
        return replace(given, **chosen, replication=None, sparsity_aware=self.sparsity_aware)

    def record(self) -> dict[str, Any]:
        near = list(self.grid)[::-1]
        found = {"algorithm": self.algorithm, "grid": self.grid, "axes_in_node": near, "order": self.order}
        return found | {"sparsity_aware": self.sparsity_aware}

    def __str__(self) -> str:
        return f"{self.algorithm} {written(self.grid)}{' sparsity-aware' if self.sparsity_aware else ''}"


@dataclass(frozen=True)
class Choice:
    """A way to train that the machine has room for.

    Attributes:
        dry: what each rank is charged; estimate: the seconds of an epoch.
    """

    way: Way
    dry: DryRun
    estimate: Estimate

    @property
    def seconds(self) -> float:
        return self.estimate.seconds

    @property
    def peak_bytes(self) -> list[int]:
        """The most that each rank holds."""
        return [sum(costs.peak.values()) for costs in self.dry.ranks]

    def record(self) -> dict[str, Any]:
        """For JSON: the way, seconds per epoch by phase, and words, messages and bytes by rank."""
        epochs = [costs.epoch for costs in self.dry.ranks]
        return self.way.record() | {
            "seconds": self.seconds,
            "phases": self.estimate.phases,
            "words": [epoch.words for epoch in epochs],
            "messages": [epoch.messages for epoch in epochs],
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class Infeasible:
    """A way to train that is refused, or that the machine has no room for (then ``peak`` bytes of a rank)."""

    way: Way
    reason: str
    peak: int = 0

    def record(self) -> dict[str, Any]:
        return self.way.record() | {"reason": self.reason}


@dataclass(frozen=True)
class Plan:
    """What there is to choose from, the fastest first."""

    machine: Machine
    ranks: int
    choices: list[Choice]
    infeasible: list[Infeasible]

    @property
    def best(self) -> Choice:
        """The fastest. UserError: there is none; the message says what is short, and what would do."""
        if not self.choices:
            raise UserError(self._short())
        return self.choices[0]

    def record(self) -> dict[str, Any]:
        return {
            "choices": [choice.record() for choice in self.choices],
            "infeasible": [way.record() for way in self.infeasible],
        }

    def _short(self) -> str:
        full = [way for way in self.infeasible if way.peak]
        if not full:
            reasons = "; ".join(dict.fromkeys(f"{way.way}: {way.reason}" for way in self.infeasible))
            return f"no way to train on {self.ranks} ranks: {reasons}"
        least = min(full, key=lambda way: way.peak)
        more = -(-least.peak // int(self.machine.memory)) * self.ranks
        room, needed = (f"{size / 2**30:.3g} GiB" for size in (self.machine.memory, least.peak))
        return (
            f"no way to train fits into the {room} that a rank of {self.machine.name} has: {least.way} on "
            f"{self.ranks} ranks needs the least, {needed}; take ranks with as much, or about {more} of these"
        )


def plan(settings: Settings, graphs: Mapping[str | None, Graph], ranks: int, machine: Machine) -> Plan:
    """All ways to train on so many ranks of a machine. Runs no MPI.

    Args:
        settings: of the network and the training. An algorithm, a grid, a replication or sparsity-awareness
            given here is kept.
        graphs: by the name of the order; None where there is no store.
    """
    choices: list[Choice] = []
    infeasible: list[Infeasible] = []
    for order, graph in graphs.items():
        for way in ways(settings, ranks, order):
            found = priced(settings, graph, ranks, machine, way)
            choices += [one for one in found if isinstance(one, Choice)]
            infeasible += [one for one in found if isinstance(one, Infeasible)]
    choices.sort(key=lambda choice: choice.seconds)
    return Plan(machine, ranks, choices, infeasible)


def ways(settings: Settings, ranks: int, order: str | None = None) -> Iterator[Way]:
    """The algorithms and shapes of grids for these settings, each shape once."""
    wanted, told = settings.algorithm, settings.sparsity_aware
    for name in operators.ALGORITHMS if wanted in (None, AUTO) else [wanted]:
        try:
            sizes = dict(parse_grid(settings.grid, name) or {})
        except ArgumentError:
            if wanted not in (None, AUTO):
                raise
            continue  # 2x2, say, has sizes for two axes
        copies = settings.replication
        if copies is not None and sizes.setdefault("reps", copies) != copies:
            continue
        aware = (False, True) if name in operators.SPARSITY_AWARE else (False,)
        for grid in operators.grids(name, ranks):
            if sizes.items() <= grid.items():
                given = {axis: grid[axis] for axis in (*sizes, *(a for a in grid if a not in sizes))}
                yield from (
                    Way(name, given, order, way) for way in aware if told is None or way == bool(told)
                )


def priced(
    settings: Settings, graph: Graph, ranks: int, machine: Machine, way: Way
) -> list[Choice | Infeasible]:
    """A shape of a grid, with its axes in every order that makes a difference."""
    if problem := unsuitable(way, graph):
        return [Infeasible(way, problem)]
    try:
        one = ranks > ALL_RANKS or isinstance(graph.source, Histogram)
        dry = dry_run(way.settings(settings), graph, ranks, False, busiest=one, evaluation=False)
    except UserError as error:
        return [Infeasible(way, str(error))]
    peak = max(sum(costs.peak.values()) for costs in dry.ranks)
    if peak > machine.memory:
        room, needed = (f"{size / 2**30:.3g} GiB" for size in (machine.memory, peak))
        return [Infeasible(way, f"a rank needs {needed} and has {room}", peak)]
    kinds: dict[int, Costs] = {id(costs): costs for costs in dry.ranks}
    programs = [costs.epoch.steps or [] for costs in kinds.values()]
    itemsize = np.dtype(settings.dtype).itemsize
    orders = axis_orders(way.grid, list(parse_grid(settings.grid, way.algorithm) or ()))
    found = [(replace(way, grid=grid), estimate(machine, grid, programs, itemsize)) for grid in orders]
    for costs in kinds.values():
        costs.epoch.steps = None  # of many ways they would fill the memory
    return [Choice(one, dry, seconds) for one, seconds in found]


def unsuitable(way: Way, graph: Graph) -> str | None:
    """Why an order of the nodes is not for this way to train, if it is not: see ``distgnn.load``."""
    if graph.odd is not None and way.algorithm != "3d":
        return f"only algorithm 3d alternates the two permutations of order {way.order}"
    rows, parts = way.grid.get("rows"), 0 if graph.parts is None else len(graph.parts) - 1
    if parts and way.algorithm in operators.SPARSITY_AWARE and parts != rows:
        return f"order {way.order} has {parts} parts, the grid {rows} block rows"
    return None


def axis_orders(grid: Sizes, named: Sequence[str] = ()) -> Iterator[Sizes]:
    """The grid with its axes in every order that leaves those named in theirs; axes of size 1, whose place
    makes no difference, come first.
    """
    single = {axis: size for axis, size in grid.items() if size == 1}
    for order in permutations(axis for axis, size in grid.items() if size > 1):
        if [axis for axis in order if axis in named] == [axis for axis in named if axis in order]:
            yield single | {axis: grid[axis] for axis in order}

"""Price of one way to train: its seconds and the memory of its ranks, by a dry run and the replay of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from distgnn import operators
from distgnn.arrays.backend import Backend
from distgnn.errors import UserError
from distgnn.ledger import BeyondRoom
from distgnn.plan.clock import Estimate, Program, estimate
from distgnn.plan.cost_model import Network
from distgnn.plan.dry.backend import SHAPES
from distgnn.plan.dry.graphs import Graph, Histogram
from distgnn.plan.dry.queued import HOPPER_SHAPES, QUEUED_SHAPES
from distgnn.plan.dry.run import Costs, DryRun, dry_run
from distgnn.plan.least import least_seconds
from distgnn.plan.machine import Machine
from distgnn.plan.reuse import EVEN, Reuse
from distgnn.train import room
from distgnn.train.resolve import resolved, takes_one
from distgnn.train.settings import Settings
from distgnn.train.ways import Sizes, Way, axis_orders, named_sizes

#: Ranks up to which a dry run of a graph that is known takes all of them, and not the busiest alone.
ALL_RANKS = 16
HOPPER = "NVIDIA H100", "NVIDIA H200", "NVIDIA GH200"  #: GPUs that have the tensor cores of our kernels.
COVERED_RANKS = 32  #: The same for covers, which cannot be counted on the busiest alone.


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
        """Predicted seconds of an epoch."""
        return self.estimate.seconds

    @property
    def peak_bytes(self) -> list[int]:
        """The most that each rank holds."""
        return self.by_rank(lambda costs: sum(costs.peak.values()))

    def by_rank(self, of: Callable[[Costs], int]) -> list[int]:
        """Return a number of each rank's costs; ranks of a kind share them."""
        values = {
            key: of(costs)
            for key, costs in {id(costs_of_rank): costs_of_rank for costs_of_rank in self.dry.ranks}.items()
        }
        return [values[id(costs)] for costs in self.dry.ranks]

    def record(self, node: int | None = None) -> dict[str, Any]:
        """Return the record for JSON."""
        return self.way.record(node) | {
            "seconds": self.seconds,
            "phases": self.estimate.phases,
            "words": self.by_rank(lambda costs: costs.epoch.words),
            "messages": self.by_rank(lambda costs: costs.epoch.messages),
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class Infeasible:
    """A way to train that is refused, or that the machine has no room for (then ``peak`` bytes of a rank)."""

    way: Way
    reason: str
    peak: int = 0

    def record(self, node: int | None = None) -> dict[str, Any]:
        """Return the record for JSON."""
        return self.way.record(node) | {"reason": self.reason}


def bound(settings: Settings, graph: Graph, way: Way, ranks: int, machine: Machine) -> list[float] | None:
    """Return the seconds that a way to train takes at least, by order of the axes.

    None where nothing is known, and for a way that is refused, which says why when it is priced.
    """
    if unsuitable(way, graph, settings):
        return None
    try:
        s = resolved(way.settings(settings), ranks)
    except UserError:
        return None
    return least_seconds(s, graph, way, orders(settings, way), machine, reuse_on(machine, graph))


def orders(settings: Settings, way: Way) -> Iterator[Sizes]:
    """Yield the grid of a way with its axes in every order that makes a difference."""
    return axis_orders(way.grid, list(named_sizes(settings, way.algorithm)))


def priced(
    settings: Settings, graph: Graph, ranks: int, machine: Machine, way: Way,
    floors: Sequence[float] | None = None, limit: float = math.inf, complete: bool = True,
) -> list[Choice | Infeasible]:  # fmt: skip
    """Price a shape of a grid, with its axes in every order that makes a difference.

    Args:
        floors: seconds that it takes at least, by order, where that is known; limit: those above which an
            order is left out.
        complete: whether the peak of a way is wanted for which there is no room.
    """
    if problem := unsuitable(way, graph, settings):
        return [Infeasible(way, problem)]
    try:
        s = resolved(way.settings(settings), ranks)
        if (needed := least_bytes(s, graph, ranks)) > max(machine.memory, room.LITTLE):
            problem = f"a rank needs at least {amount(needed)} and has {amount(machine.memory)}"
            return [Infeasible(way, problem, needed)]
        room_of_rank = math.inf if complete else most(machine, way)
        dry = counted(settings, graph, ranks, way, room_of_rank, arrays_of(machine))
    except UserError as error:
        return [Infeasible(way, str(error))]
    except BeyondRoom as error:
        problem = f"a rank needs at least {amount(error.nbytes)} and has {amount(machine.memory)}"
        return [Infeasible(way, problem, error.nbytes)]
    kinds: dict[int, Costs] = {id(costs): costs for costs in dry.ranks}
    programs = [Program(costs.epoch.steps) for costs in kinds.values()]
    for costs in kinds.values():
        costs.epoch.steps, costs.model = [], None  # of many ways they would fill the memory
    on, itemsize = used(machine, settings, dry), np.dtype(settings.dtype).itemsize
    estimates, fit, peaks = dict[Any, Estimate](), list[Choice | Infeasible](), list[int]()
    slow = False
    steps = (step for program in programs for step in program.kinds)
    transfers = {(step[1], step[2], not step[-1]): step for step in steps if step[0] == "comm"}.values()
    for grid, floor in zip(orders(settings, way), floors or repeat(0.0), strict=floors is not None):
        held = held_once(dry, machine, replace(way, grid=grid))
        peaks.append(max(sum(costs.peak.values()) for costs in held.ranks))
        if peaks[-1] > machine.memory:
            continue
        if floor > limit:
            slow = True
            continue
        network = Network(on, grid)
        routes = tuple(network.route(step) for step in transfers)
        if routes not in estimates:  # axes of equal sizes may change places, and so may those across nodes
            estimates[routes] = estimate(on, grid, programs, itemsize, reuse_on(machine, graph))
        fit.append(Choice(replace(way, grid=grid), held, estimates[routes]))
    problem = f"a rank needs {amount(min(peaks))} and has {amount(machine.memory)}"
    return fit if fit or slow else [Infeasible(way, problem, min(peaks))]


def most(machine: Machine, way: Way) -> float:
    """Return bytes beyond which a rank has no room, by a dry run, in which each has a copy of A."""
    shared = machine.shared_memory and operators.get(way.algorithm).column_axis  # see held_once
    return math.inf if shared else machine.memory


def used(machine: Machine, settings: Settings, dry: DryRun) -> Machine:
    """Return the machine as a run of these settings uses it."""
    on = machine.used(settings.overlap, settings.tf32)
    return on.graphed() if all(costs.captured for costs in dry.ranks) else on


def reuse_on(machine: Machine, graph: Graph) -> Reuse:
    """Return how soon a graph reads rows of B again, where the machine's rates were fitted to such matrices.

    Others were fitted to even ones, and hold for these.
    """
    return graph.reuse if machine.spmm.in_core else EVEN


def widths_of(settings: Settings, graph: Graph) -> list[int]:
    """Return the widths of features, hidden layers and classes."""
    return [graph.width, *settings.hidden_widths, graph.classes]


def least_bytes(s: Settings, graph: Graph, ranks: int) -> int:
    """Return what the fullest rank must hold, by the widths alone: enormous networks are not dry-run."""
    needs = room.of_training(s, graph.n, graph.nnz, ranks, graph.feature_nnz)
    return -(-needs.bytes(widths_of(s, graph)) // ranks)


def held_once(dry: DryRun, machine: Machine, way: Way) -> DryRun:
    """Divide A among the ranks of a node that hold it once: in `rdm`, those of a process row.

    A dry run gives each rank a copy, as it knows no nodes.
    """
    axis = operators.get(way.algorithm).column_axis
    if axis is None or not machine.shared_memory:
        return dry
    holders = Network(machine, way.grid).together(axis)[max(len(machine.levels) - 2, 0)]
    kinds = {id(costs): costs for costs in dry.ranks}
    divided = {key: _divided(costs, holders) for key, costs in kinds.items()}
    return replace(dry, ranks=[divided[id(costs)] for costs in dry.ranks])


def _divided(costs: Costs, holders: int) -> Costs:
    return replace(costs, peak=costs.peak | {"adjacency": costs.peak["adjacency"] // holders})


def counted(
    settings: Settings, graph: Graph, ranks: int, way: Way, most: float = math.inf, on: Backend = SHAPES
) -> DryRun:  # fmt: skip
    """Return the dry run of a way to train, with its steps. ``most``, ``on``: as of :func:`dry_run`."""
    all_ranks = COVERED_RANKS if way.sparsity_aware == "cover" else ALL_RANKS
    busiest = ranks > all_ranks or isinstance(graph.source, Histogram)
    given = way.settings(settings)
    return dry_run(given, graph, ranks, busiest, evaluation=False, most=most, on=on)


def arrays_of(machine: Machine) -> Backend:
    """Return what stands for the arrays of a machine's ranks: of hosts, or of GPUs whose hosts queue."""
    if not (machine.device or machine.launch):
        return SHAPES
    return HOPPER_SHAPES if machine.device.startswith(HOPPER) else QUEUED_SHAPES


def unsuitable(way: Way, graph: Graph, settings: Settings) -> str | None:
    """Return why a graph, or its order, is not for this way to train, or None: see ``distgnn.load``."""
    ranks = math.prod(way.grid.values())
    if way.sparsity_aware == "cover" and ranks > COVERED_RANKS and not isinstance(graph.source, Histogram):
        return f"covers of a graph that is known are counted on up to {COVERED_RANKS} ranks"
    if ranks > graph.n and (ranks > ALL_RANKS or isinstance(graph.source, Histogram)):
        return f"{ranks} ranks are more than the graph has nodes, {graph.n}"
    if graph.odd is not None and way.algorithm != "3d":
        return f"only algorithm 3d alternates the two permutations of order {way.order}"
    if graph.odd is not None and takes_one(way.settings(settings)):
        model = f"model={settings.model} can't use"
        return f"order {way.order} orders rows and columns apart, which {model}"
    rows, parts = way.grid.get("rows"), 0 if graph.parts is None else len(graph.parts) - 1
    if parts and way.algorithm in operators.SPARSITY_AWARE and rows not in (1, parts):
        return f"order {way.order} has {parts} parts, and not as many block rows as the grid"
    return None


def amount(size: float) -> str:
    """Write bytes as people read them."""
    if size > room.MUCH:
        return room.written(int(size))
    power, unit = next(
        (unit_of for unit_of in ((30, "GiB"), (20, "MiB")) if size >= 2 ** unit_of[0]), (10, "KiB")
    )
    number = size / 2**power
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"

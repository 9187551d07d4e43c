"""The machine that this job runs on, measured: rates of kernels, links of every level, and what overlaps.

In full for a file, or within a second for a plan of this job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from distgnn.arrays.backend import Backend
from distgnn.comm import launch
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError, UserError
from distgnn.operators import ALGORITHMS, grids
from distgnn.plan import collectives, fit, measure
from distgnn.plan.clock import Clock
from distgnn.plan.collectives import Collective
from distgnn.plan.cost_model import Network, compute_seconds
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.fit import Fit, Measurement
from distgnn.plan.machine import KINDS, Level, Machine, Measured, Overlap, Spmm, SpmmRates
from distgnn.plan.measure import Budget, Timed

#: Sizes of caches that are tried, in bytes, where a device does not say its own; and of caches of cores.
CACHES = [float(1 << size) for size in range(17, 29)]
CORES = [float(1 << size) for size in range(15, 19)]
SHORT = 20.0  # seconds below which kernels are measured on small operands
WIDTHS, EPOCHS = (64, 16, 8), (64, 512, 4096)  # of a network whose epochs are measured; nodes per rank
DEEP = (64, 16, 16, 16, 16, 8)  # of one with more steps, each of which a host queues for its device
IN_TURNS = "ranks are dealt to the nodes in turns; plans take those of a node to have consecutive numbers"
POOR = 0.8  # an R² below which a fit explains little,
NEAR = 0.1  # unless all it says is as near as this, as of samples that take about as long as each other
ALONE = "one rank: no message was measured, and the level has the rates of a copy in memory"
#: Of products in which messages travel while ranks compute: width, seconds, and the largest graph.
OVERLAP_WIDTH, OVERLAP_SECONDS, MOST_NODES, MOST_NONZEROS = 64, 0.02, 1 << 18, 1 << 22
_WHOLE = ("far", "near"), ("outer", "inner")


@dataclass(frozen=True)
class Calibration:
    """A machine, how well it explains what was measured, and what there was nothing to measure of.

    Attributes:
        warnings: why plans by this machine may be wrong, a line each.
    """

    machine: Machine
    fits: list[Fit]
    notes: list[str]
    warnings: Sequence[str] = ()

    def record(self) -> dict[str, Any]:
        """Return the record for JSON."""
        fits = [fitted.record() for fitted in self.fits]
        notes = {"notes": self.notes, "warnings": [*self.warnings]}
        return {"machine": self.machine.toml(), "fits": fits} | notes


def calibrate(
    comm: MPI.Intracomm | None = None, seconds: float = 100.0, name: str = "measured", title: str = "",
    backend: Backend | str | None = None,
) -> Calibration:  # fmt: skip
    """Measure the machine of these ranks, in about so many seconds. Collective.

    Raises:
        ArgumentError: seconds that are not positive, or a backend that is not there. UserError: nodes have
            unequal numbers of ranks. On every rank.
    """
    if not 0 < seconds < float("inf"):
        raise ArgumentError("seconds", seconds, "must be a positive number")
    grid, notes = by_nodes(MPI.COMM_WORLD if comm is None else comm, backend)
    budget = Budget(grid.world, seconds)
    machine = replace(fit.free(levels(grid)), name=name, title=title or "measured", memory=memory(grid))
    machine = replace(machine, shared_memory=grid.shares_memory, device=grid.backend.device_name())
    share = 0.35 if grid.size > 1 else 0.75
    machine, fits = _kernels(machine, budget.part(share), _scale(grid.backend, seconds))
    if grid.size > 1:
        machine, more = network(machine, budget.part(0.7), grid)
        machine, overlap = _overlap(machine, budget.part(0.5))
        fits += [*more, overlap]
    else:
        machine = _alone(machine)
        notes.append(ALONE)
    if seconds < SHORT:
        notes.append(f"{seconds:g} s: kernels were measured on small operands only, all of which fit a cache")
    machine, whole = _update(machine, budget)
    fits += whole
    fits, warnings = grid.world.share((fits, [*_crowded(grid), *_poor(fits)]))
    r2 = {f"{fitted.kind} {fitted.level}".rstrip(): fitted.r2 for fitted in fits if _tells(fitted)}
    measured = grid.world.share(Measured(grid.size, date.today().isoformat(), r2))
    grid.free()
    return Calibration(replace(machine, measured=measured), fits, notes, warnings)


def _tells(fitted: Fit) -> bool:
    """Tell whether a fit's R² says something of parameters: it has more samples than two."""
    return bool(fitted.values) and len(fitted.samples) > 2


def _poor(fits: Sequence[Fit]) -> Iterator[str]:
    """Return a line for each kind of which a fit explains little."""
    kinds: dict[str, list[str]] = {}
    for fitted in fits:
        if _tells(fitted) and fitted.r2 < POOR and np.abs(fitted.residuals).max() > NEAR:
            kinds.setdefault(fitted.kind, []).append(
                f"{fitted.r2:.2f}{f' ({fitted.level})' * bool(fitted.level)}"
            )
    for kind, texts in kinds.items():
        yield f"{kind}: R² {', '.join(texts)}: the fit explains little of what was measured; don't rely on it"


def _crowded(grid: Grid) -> list[str]:
    """Return a line if ranks share cores. Collective."""
    places = grid.world.gather_objects((grid.node, launch.cores()))
    nodes = {node: set[int]().union(*(own for at, own in places if at == node)) for node, _ in places}
    counts = {node: (sum(at == node for at, _ in places), len(own)) for node, own in nodes.items()}
    worst, least = max(counts.values(), key=lambda pair: pair[0] / pair[1])
    return [f"{worst} ranks on {least} cores: they waited for each other"] if worst > least else []


def by_nodes(comm: MPI.Intracomm, backend: Backend | str | None) -> tuple[Grid, list[str]]:
    """Order the ranks with those of a node next to each other.

    Axes "far" and "near" lead from node to node, "outer" and "inner" from rank to rank of a node. Collective.
    Raise UserError for nodes with unequal numbers.
    """
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    node, ranks = here.bcast(comm.Get_rank()), here.Get_size()
    here.Free()
    sizes = comm.allgather(ranks)
    if len(set(sizes)) > 1:
        listed = ", ".join(map(str, sorted(set(sizes))))
        raise UserError(f"nodes have {listed} ranks; calibrate with as many on each")
    sorted_ranks: Any = comm.Split(0, node * len(sizes) + comm.Get_rank())
    nodes = comm.allgather(node)
    notes = [] if nodes == sorted(nodes) else [IN_TURNS]
    far, near = _factors(len(sizes) // ranks)
    outer, inner = _factors(ranks)
    return Grid(sorted_ranks, backend=backend, far=far, near=near, outer=outer, inner=inner), notes


def _factors(number: int) -> tuple[int, int]:
    """Return two factors, the second the smallest prime.

    Groups of that size can be measured, and all together.
    """
    prime = next((divisor for divisor in range(2, number) if number % divisor == 0), number)
    return number // prime, prime


def levels(grid: Grid) -> list[Level]:
    """Return the levels of the network that these ranks use, free of charge."""
    ranks, nodes = grid.count("outer", "inner"), grid.count("far", "near")
    levels = [Level("node", ranks if nodes > 1 else None, 0.0, fit.FREE)] if ranks > 1 or nodes == 1 else []
    return levels + ([Level("network", None, 0.0, fit.FREE)] if nodes > 1 else [])


def memory(grid: Grid) -> float:
    """Return bytes that a rank may fill: its share of the device, or of what the system gives the node."""
    return float(min(grid.world.gather_objects(grid.share_of_memory())))


def _scale(on: Backend, seconds: float) -> measure.Scale:
    return measure.TINY if seconds < SHORT else measure.DEVICE if on.on_device else measure.HOST


def _kernels(machine: Machine, budget: Budget, scale: measure.Scale) -> tuple[Machine, list[Fit]]:
    """Return the rates of a rank while all others compute, too."""
    on = budget.world.backend
    sparse = measure.sparse_products(budget.part(0.5), scale)
    narrow = measure.sparse_products(budget.part(0.3), scale, rounded=True)
    dense = measure.dense_products(budget.part(0.5), scale)
    rounded = measure.rounded_products(budget.part(0.2), scale)
    edges = measure.edge_passes(budget.part(0.3), scale)
    passes = measure.dense_passes(budget, scale)
    caches = [float(on.cache_bytes())] if on.cache_bytes() else CACHES
    measured = replace(
        machine, spmm=fit.spmm(sparse, caches, CORES), gemm=fit.gemm(dense),
        passes=fit.passes(passes, one_call=on.on_device), edges=fit.edges(edges),
    )  # fmt: skip
    if rounded:
        measured = replace(measured, tf32=fit.gemm(rounded))
    if narrow:
        measured = replace(measured, rounded=fit.spmm(narrow, caches, CORES))
    measured = budget.world.share(measured)
    fits = [
        _of_sparse("spmm", measured.spmm, sparse, measured),
        *([_of_sparse("spmm, 16 bits", measured.rounded, narrow, measured)] if measured.rounded else []),
        _of_dense("gemm", dense, measured),
        *([_of_dense("gemm, TF32", rounded, measured.used(True, tf32=True))] if rounded else []),
        *(_of_passes(phase, passes, measured) for phase in ("spmm", *measured.passes.kinds)),
        *(_of_edges(kind, edges, measured) for kind in measured.edges),
    ]
    return measured, fits


def _of_sparse(kind: str, fitted: Spmm, samples: Sequence[Measurement], machine: Machine) -> Fit:
    levels = {name: value for name, value in vars(fitted).items() if isinstance(value, SpmmRates)}
    rates = {f"{where} {name}": value for where in levels for name, value in vars(levels[where]).items()}
    sizes = {name: value for name, value in vars(fitted).items() if name not in levels and value}
    return fit.of(kind, "", sizes | rates, samples, machine)


def _of_dense(kind: str, samples: Sequence[Measurement], machine: Machine) -> Fit:
    return fit.of(kind, "", vars(machine.gemm), samples, machine)


def _of_passes(phase: str, samples: Sequence[Measurement], machine: Machine) -> Fit:
    rate, some = machine.passes.rate(phase), [sample for sample in samples if sample.steps[0].phase == phase]
    values = {"call": rate.call, "bandwidth": rate.bandwidth}
    return fit.of("rows" if phase == "spmm" else phase, "", values, some, machine)


def _of_edges(kind: str, samples: Sequence[Measurement], machine: Machine) -> Fit:
    some = [sample for sample in samples if fit.edge_pass(sample) == kind]
    return fit.of(kind.replace("_", " "), "", vars(machine.edges[kind]), some, machine)


class Scope(NamedTuple):
    """Messages to measure: their kinds, and whether also of groups of some ranks of a level."""

    collectives: Sequence[Collective] = collectives.COLLECTIVES
    parts: bool = True


Alone = dict[tuple[int, str], list[Measurement]]  # samples by level and kind
ALL, BRIEF = Scope(), Scope(collectives.FEW, False)


def network(machine: Machine, budget: Budget, grid: Grid, scope: Scope = ALL) -> tuple[Machine, list[Fit]]:
    """Return the links of every level and kind of message, and what a node gets out of it in all."""
    alone, crowded = _series(machine, budget, grid, scope)
    with grid.world.together():  # one rank fits: where ranks share cores, all would take many times as long
        fitted: Any = _links(machine, alone, crowded) if grid.rank == 0 else None
    made: tuple[Machine, list[Fit]] = grid.world.share(fitted)
    return made


def _links(
    machine: Machine, alone: Alone, crowded: Sequence[Measurement]
) -> tuple[Machine, list[Fit]]:  # fmt: skip
    """Fit the links of :func:`network`."""
    levels: list[Level] = []
    for number, level in enumerate(machine.levels):
        samples = {kind: some for (at, kind), some in alone.items() if at == number and kind in KINDS}
        links = {kind: fit.link(series, machine.levels, number, kind) for kind, series in samples.items()}
        measured = [sample for series in samples.values() for sample in series]
        links = {kind: fit.no_faster(series, measured) for kind, series in links.items()}
        every = [
            replace(sample, steps=[s._replace(operation="alltoallv", matrix="") for s in sample.steps])
            for sample in measured
        ]
        usual = fit.no_faster(fit.link(every, machine.levels, number, "alltoallv"), measured)
        levels.append(replace(level, **vars(usual), kinds=links))
    series = replace(machine, levels=levels)
    fits = [_of_link(kind, levels[number], samples, series) for (number, kind), samples in alone.items()]
    if crowded:
        rate = fit.injection(crowded, series, len(levels) - 1)
        series = replace(series, levels=[*series.levels[:-1], replace(series.levels[-1], injection=rate)])
        fits.append(fit.of("injection", levels[-1].name, {"injection": rate}, crowded, series))
    return series, sorted(fits, key=lambda sample: sample.level)


def _of_link(kind: str, level: Level, samples: Sequence[Measurement], machine: Machine) -> Fit:
    if kind not in KINDS:
        return fit.of(f"{kind}, not fitted", level.name, {}, samples, machine)
    return fit.of(kind, level.name, vars(level.kinds[kind]), samples, machine)


def _series(machine: Machine, budget: Budget, grid: Grid, scope: Scope) -> tuple[Alone, list[Measurement]]:
    """Return samples by level and kind, of groups that have their links to themselves.

    And of groups of which each rank of a node is in another, at once.
    """
    alone: Alone = {}
    crowded: list[Measurement] = []
    plans = list(_plans(machine, grid, scope))
    for number, (level, axes, collective, at_once) in enumerate(plans):
        active = at_once or level == 0 or grid.index("outer", "inner") == 0
        least = 1 << 16 if at_once else collectives.SMALLEST
        part = budget.part(1 / (len(plans) - number))
        samples = collectives.series(part, grid, axes, collective, active, least)
        (crowded if at_once else alone.setdefault((level, collective.kind), [])).extend(samples)
    return alone, crowded


def _plans(
    machine: Machine, grid: Grid, scope: Scope
) -> Iterator[tuple[int, Sequence[str], Collective, bool]]:
    """List level, axes of the groups, collective, and whether all ranks of a node send at once."""
    across, inside = _WHOLE
    ranks, last = grid.count(*inside), len(machine.levels) - 1
    groups = [
        (level, axes[start:])
        for level, axes in ((0, inside), (last, across))
        for start in (0, 1)[: 1 + scope.parts]
        if grid.count(*axes[start:]) > 1 and (start == 0 or grid.shape[axes[0]] > 1)
    ]
    for collective in scope.collectives:
        for level, axes in groups:
            yield level, axes, collective, False
        if grid.count(*across) > 1 and ranks > 1 and collective.kind in KINDS and collective.most > 1 << 16:
            yield last, across, collective, True


def _overlap(machine: Machine, budget: Budget) -> tuple[Machine, Fit]:
    """Return the parameters that explain a product in which messages take about as long as computing, and one
    where they take less.
    """
    world, cases, samples = budget.world, list[Timed](), list[Measurement]()
    for number, share in enumerate((1.0, 0.4)):
        n, degree = _balanced(machine, world.size, min(OVERLAP_SECONDS, max(budget.left() / 50, 1e-3)), share)
        cases.append(measure.overlapping(budget.part(1 / (2 - number)), n, degree, OVERLAP_WIDTH))
        what = f"{n} nodes, {degree} non-zeros per row; {cases[-1].computing:.3g} s of computing, "
        what += f"{cases[-1].apart:.3g} s without overlap"
        samples.append(Measurement(what, cases[-1].together, cases[-1].steps, {"rows": world.size}))
    slowdown = max(sum(case.slowed for case in cases) / sum(case.computing for case in cases) - 1, 0.0)
    tried = [Overlap(progress, min(slowdown, 10.0)) for progress in np.linspace(1, 0, 21).tolist()]
    explained = [[_product(case, world.size, trial) for case in cases] for trial in tried]
    measured = np.array([case.together for case in cases])
    best = world.share(int(np.argmin([((np.array(trial) / measured - 1) ** 2).sum() for trial in explained])))
    overlap_fit = Fit("overlap", "", vars(tried[best]), samples, explained[best])
    return replace(machine, overlap=tried[best]), overlap_fit


def _balanced(machine: Machine, ranks: int, seconds: float, share: float) -> tuple[int, int]:
    """Return rows and non-zeros per row of a matrix that a 1D product computes with for about so many
    seconds, of which its messages take this share, or more where the matrix would be too dense.
    """
    network, width, rows = Network(machine, {"rows": ranks}), OVERLAP_WIDTH, 256

    def messages(rows: int) -> float:
        panel = ProgramStep("comm", "bcast", "rows", "H", rows * width * 4.0, 1)
        return (ranks - 1) * network.seconds(panel)[1]

    def degree(rows: int) -> int:
        n, degree_found = rows * ranks, 2
        more = lambda: ProgramStep("spmm", "spmm", "", "", shape=(rows, n, rows * 2 * degree_found, width))  # noqa: E731
        while compute_seconds(machine, more()) < seconds and n * degree_found < MOST_NONZEROS:
            degree_found *= 2
        return degree_found

    while messages(2 * rows) < share * seconds or rows * ranks < 2 * degree(rows):
        if rows * ranks >= MOST_NODES:
            break
        rows *= 2
    return rows * ranks, degree(rows)


def _product(case: Timed, ranks: int, overlap: Overlap) -> float:
    """Return seconds of a product with this overlap, by the cost model, with rates that are those of this
    case.
    """
    nonzeros = sum(step.shape[2] for step in case.steps if step.operation == "spmm")
    nbytes = sum(step.nbytes for step in case.steps if step.phase == "comm")
    messages = max(case.apart - case.computing, 1e-9)
    nothing = fit.free([Level("machine", None, 0.0, nbytes / messages)])
    level = replace(nothing.levels[0], bandwidth=nbytes / messages)
    rates = SpmmRates(case.computing / max(nonzeros, 1), 0.0, 0.0, 0.0)
    spmm = replace(nothing.spmm, cached=rates, uncached=rates)
    machine = replace(nothing, levels=[level], spmm=spmm, overlap=overlap)
    clock = Clock(Network(machine, {"rows": ranks})).run(case.steps)
    return sum(sum(stretch.values()) for stretch in clock.stretches)


def _alone(machine: Machine) -> Machine:
    """Return a machine for a lone rank: a level that no message was sent over, with the rates of a copy."""
    copying = machine.passes
    return replace(machine, levels=[Level("node", None, copying.call, copying.bandwidth / 2)])


def _update(machine: Machine, budget: Budget) -> tuple[Machine, list[Fit]]:
    """Fit the seconds of small epochs beyond their steps.

    Of each epoch, and wherever ranks wait for each other; of a device also of each step that its host queues,
    and of epochs that are CUDA graphs. Epochs of all algorithms with whole blocks on all grids, in a random
    order, as many as the budget allows.
    """
    world, samples = budget.world, list[Measurement]()
    on_device = world.backend.on_device
    graphs = on_device and world.size == 1
    queued = budget.part(0.7 if graphs else 1.0)
    names = list(ALGORITHMS) if world.size > 1 else ["1d"]
    ways = [(name, sizes) for name in names for sizes in grids(name, world.size)]
    cases = list(product(ways, EPOCHS, (WIDTHS, DEEP) if on_device else (WIDTHS,)))
    for number, place in enumerate(np.random.default_rng(0).permutation(len(cases)).tolist()):
        if number >= measure.LEAST and queued.left() < 0:
            break
        (name, sizes), rows, widths = cases[place]
        part = queued.part(1 / (len(cases) - number))
        samples.append(measure.epoch(part, name, sizes, rows * world.size, 8, widths))
    if on_device:
        update, skew, launch = world.share(fit.launched(samples, machine))
    else:
        (update, skew), launch = world.share(fit.beyond(samples, machine)), 0.0
    updated = replace(machine, update=update, skew=skew, launch=launch)
    values = {"update": update, "skew": skew} | ({"launch": launch} if on_device else {})
    fits = [Fit("epochs", "", values, samples, [sample.epoch(updated) for sample in samples])]
    if graphs:
        updated, whole = _graphs(updated, budget)
        fits += whole
    return updated, fits


def _graphs(machine: Machine, budget: Budget) -> tuple[Machine, list[Fit]]:
    """Fit the seconds of epochs that are CUDA graphs beyond their steps, and between their kernels; none are
    where no epoch is faster for it, as where a capture fails.
    """
    samples = list[Measurement]()
    cases = list(product(EPOCHS, (WIDTHS, DEEP)))
    for number, (rows, widths) in enumerate(cases):
        part = budget.part(1 / (len(cases) - number))
        usual, graphed = (measure.epoch(part.part(0.5), "1d", {"rows": 1}, rows, 8, widths, cuda_graph=how)
                          for how in (False, True))  # fmt: skip
        samples += [replace(usual, what=graphed.what, seconds=graphed.seconds)] * (
            graphed.seconds < usual.seconds
        )
    if not samples:
        return machine, []
    captured, gap = fit.captured(samples, machine)
    updated = replace(machine, captured=captured, gap=gap)
    predicted = [sample.epoch(updated.graphed()) for sample in samples]
    return updated, [Fit("CUDA graphs", "", {"captured": captured, "gap": gap}, samples, predicted)]

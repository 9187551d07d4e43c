"""One choice of a plan, collective by collective and kernel by kernel, beside its paper's formula."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from distgnn.plan.choices import Plan
from distgnn.plan.clock import OTHER, Clock
from distgnn.plan.cost_model import Network, compute_seconds
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.dry.run import Costs
from distgnn.plan.formulas import Formula, formula
from distgnn.plan.pricing import Choice, arrays_of, counted, held_once, reuse_on, used
from distgnn.train.resolve import resolved


@dataclass(frozen=True)
class Explanation:
    """An epoch of one rank in all its parts: the rank that takes longest.

    Attributes:
        phases: a record per phase of seconds that add up: "alone", of kernels or of waiting; "slowdown", by
            which computing takes longer while messages travel; "others", by which slower ranks hold it up.
        collectives: a record per operation, group and matrix: "calls", "messages", "words", "bytes", the
            "level" of the network that they take, seconds "under_way", alone, and "exposed", of waiting.
        kernels: a record per operation and shape, "calls", "flops", bytes "touched", "seconds" alone.
        memory: bytes by purpose of the fullest rank, when they are most.
        formula: the price of the epoch, or None where its operations are not priced.
        node: ranks of a node, or None: see :meth:`Way.record`.
    """

    choice: Choice
    phases: list[dict[str, Any]]
    collectives: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
    memory: dict[str, int]
    formula: Formula | None
    node: int | None = None

    def record(self) -> dict[str, Any]:
        """Return the record for JSON."""
        record: dict[str, Any] = {"choice": self.choice.record(self.node)}
        record |= {name: getattr(self, name) for name in ("phases", "collectives", "kernels", "memory")}
        return record | {"formula": self.formula and asdict(self.formula)}


def explain(plan: Plan, choice: Choice) -> Explanation:
    """Take the seconds, words and bytes of a choice apart."""
    settings, graph = plan.settings, plan.graphs[choice.way.order]
    itemsize = np.dtype(settings.dtype).itemsize
    arrays = arrays_of(plan.machine)
    dry = counted(settings, graph, plan.ranks, choice.way, on=arrays)  # a plan does not keep the steps
    ranks = held_once(dry, plan.machine, choice.way).ranks
    kinds = {id(costs): costs for costs in ranks}
    network = Network(used(plan.machine, settings, dry), choice.way.grid)
    reuse = reuse_on(plan.machine, graph)
    run = lambda costs: Clock(network, itemsize, True, reuse).run(costs.epoch.steps)  # noqa: E731
    clocks = {key: run(costs) for key, costs in kinds.items()}
    longest = max(clocks, key=lambda key: sum(sum(some.values()) for some in clocks[key].stretches))
    costs = kinds[longest]
    way, train_features = choice.way, resolved(choice.way.settings(settings), plan.ranks).train_features
    fullest = max(ranks, key=lambda rank_costs: sum(rank_costs.peak.values()))
    computed, sparse = kernels(costs.epoch.steps, clocks[longest]), graph.feature_nnz is not None
    return Explanation(
        choice,
        phases(choice, clocks[longest], computed),
        collectives(costs, clocks[longest]),
        computed,
        {purpose: size for purpose, size in fullest.peak.items() if size},
        None if sparse else formula(costs, train_features, way.sparsity_aware, plan.machine, way.grid),
        plan.machine.node,
    )


def phases(choice: Choice, clock: Clock, computed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add up the seconds of each phase of the estimate, as far as this rank and its kernels say."""
    rows = []
    for phase, seconds in choice.estimate.phases.items():
        own = sum(stretch.get(phase, 0.0) for stretch in clock.stretches)
        alone = sum(row["seconds"] for row in computed if row["phase"] == phase)
        if phase in ("comm", OTHER):
            own = alone = seconds if phase == OTHER else own
        parts = {"alone": alone, "slowdown": own - alone, "others": seconds - own}
        rows.append({"phase": phase} | parts | {"seconds": seconds})
    return rows


def collectives(costs: Costs, clock: Clock) -> list[dict[str, Any]]:
    """List the messages that a rank sends and gets, the slowest first."""
    rows = []
    for entry in costs.epoch.entries():
        key = entry["operation"], entry["group"], entry["matrix"]
        if entry["phase"] == "comm" and (entry["messages"] or clock.flight.get(key)):
            record = dict(zip(("operation", "group", "matrix"), key, strict=True))
            record |= {name: entry[name] for name in ("calls", "messages", "words", "bytes")}
            level = clock.places.get(key)
            record["level"] = None if level is None else clock.machine.levels[level].name
            rows.append(record | {"under_way": clock.flight[key], "exposed": clock.exposed[key]})
    return sorted(rows, key=lambda record: -record["under_way"])


def kernels(steps: list[ProgramStep], clock: Clock) -> list[dict[str, Any]]:
    """List the kernels of a rank, the slowest first."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(
        lambda: {"calls": 0, "nonzeros": 0, "flops": 0, "touched": 0, "seconds": 0.0}
    )
    for step in steps:
        if step.phase not in ("comm", "sent", "wait"):
            sparse = step.operation == "spmm"
            shape = (*step.shape[:2], step.shape[3]) if sparse else step.shape
            record = rows[step.phase, step.operation, shape]
            record["calls"] += 1
            record["nonzeros"] += step.shape[2] if sparse else 0
            record["flops"] += step.flops
            record["touched"] += step.touched
            record["seconds"] += compute_seconds(clock.machine, step, clock.itemsize, clock.reuse)
    named = (
        {"phase": phase, "operation": operation, "shape": shape} | record
        for (phase, operation, shape), record in rows.items()
    )
    return sorted(named, key=lambda record: -record["seconds"])

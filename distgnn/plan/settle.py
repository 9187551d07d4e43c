"""Choices that settings leave open, filled in by a plan: the algorithm, the grid, the order of the nodes.

A run takes what it is given. Here is chosen what it is given, and what is said stays as it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from distgnn import records
from distgnn.comm.agree import agree, together
from distgnn.comm.session import joined, task
from distgnn.errors import ArgumentError
from distgnn.layout import partition
from distgnn.partition import METHODS
from distgnn.partition.orders import KNOWN
from distgnn.plan.choices import CLEAR, Plan, plan
from distgnn.plan.dry.graphs import Graph, Histogram
from distgnn.plan.machine import Machine, read
from distgnn.plan.minibatches import plan_minibatches
from distgnn.plan.pricing import Choice, Infeasible, priced
from distgnn.plan.probe import Probe, probe
from distgnn.plan.subgraphs import plan_subgraphs
from distgnn.store.read.distributed import StoreOrPath
from distgnn.store.read.store import Store
from distgnn.train.resolve import (
    LeftOpen,
    check_content,
    check_outputs,
    from_files,
    left_open,
    resumed_order,
    to_plan,
)  # fmt: skip
from distgnn.train.settings import AUTO, Settings
from distgnn.train.ways import Way, ways

T = TypeVar("T")
Graphs = dict[str | None, Graph]
#: The order in which ways are priced by where non-zeros are, as what one takes decides about the next.
TURNS: dict[bool | str, int] = {True: 0, False: 1, "cover": 2}
#: The share of the seconds in which needed rows travel that covers may save: they send 0.47 to 0.97 of them.
SAVED = 0.6
#: Non-zeros of a store up to which a plan goes by where they are; else by how many each shard has.
EXACT = 4_000_000


@dataclass(frozen=True)
class Settled:
    """Settings for a run, and why.

    Attributes:
        settings: with an algorithm and a grid, where these were open; else as they were given.
        machine: planned for, by name; None where nothing was open, and nothing was planned.
        way: chosen; seconds: predicted, of an epoch; phases: of these.
        advice: a line for each order that ``prepare`` would have to make for a better way, and those of
            :attr:`Plan.advice`.
        probe: where no machine was given, the measured one; None elsewhere.
    """

    settings: Settings
    machine: str | None = None
    way: Way | None = None
    seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    advice: Sequence[str] = ()
    probe: Probe | None = None

    def record(self) -> records.Planned:
        """Return the plan for the log of the run."""
        return {
            "machine": self.machine, "seconds": self.seconds, "phases": dict(self.phases),
            "advice": list(self.advice), "measured": dict(self.probe.figures) if self.probe else {},
        }  # fmt: skip

    def __str__(self) -> str:
        """Write the way in a line, then the advice."""
        if self.way is None:
            return "nothing was left to plan"
        bulk = f", {self.settings.bulk} minibatches at a time" if self.settings.bulk else ""
        way = f"{self.way} on order {self.way.order}{bulk}, {self.seconds:.3g} s per epoch"
        lines = [f"planned for {self.machine}: {way}", *([self.probe.line] if self.probe else [])]
        return "\n".join([*lines, *self.advice])


def settle(
    settings: Settings, store: StoreOrPath, ranks: int, machine: Machine | str | os.PathLike[str]
) -> Settled:
    """Settle settings for a run on so many ranks of a machine.

    A plan decides the choices that they leave open. Runs no MPI: call it on one rank, and give all the same
    (or see :func:`settle_together`).

    Open are an algorithm "auto", with it an order of the nodes that is not given, and an order "auto". So is
    the grid of an algorithm that could have another one, or its axes in another order, where it is None,
    "auto" or given in part. Other settings are kept. Of minibatches a replication and a bulk "auto" are open,
    and with an algorithm or a grid "auto" the replication.

    Args:
        store: opened, or its path; machine: itself, or what :func:`machine.read` takes.

    Raises:
        UserError: settings that a run would refuse; no rank; no such machine; a store without features or
            labels; no way to train that fits into the machine's memory (the message says what would do).
    """
    machine, settings = read(machine), from_files(settings, store)
    if ranks < 1:
        raise ArgumentError("ranks", ranks, "must be a whole number, at least 1")
    return _settled(LeftOpen(settings, to_plan(settings, ranks)), store, ranks, machine)


def _settled(left: LeftOpen, store: StoreOrPath, ranks: int, machine: Machine) -> Settled:
    settings, asked = left
    if asked is None:
        return Settled(settings)
    store = store if isinstance(store, Store) else Store(store)
    check_content(store)
    if settings.samples:
        of_kind = _of_subgraphs if settings.together else _of_minibatches
        return of_kind(left, asked, store, ranks, machine)
    planned = _planned(asked, _orders(settings, store), store, ranks, machine)
    given = AUTO not in (settings.algorithm, settings.order)
    if given and not planned.choices and not any(way.peak for way in planned.infeasible):
        return Settled(replace(settings, grid=asked.grid))  # refused: the run says it better
    best = planned.best
    aware = AUTO if settings.sparsity_aware == AUTO else best.way.sparsity_aware  # planned as needed rows
    copies = None if settings.replication == AUTO else settings.replication
    chosen = replace(best.way.settings(settings), replication=copies, sparsity_aware=aware)
    orders = _advice(asked, store, planned) if settings.order in (None, AUTO) else ()
    advice = *orders, *planned.advice
    return Settled(chosen, machine.name, best.way, best.seconds, best.estimate.phases, advice)


def _of_minibatches(left: LeftOpen, asked: Settings, store: Store, ranks: int, machine: Machine) -> Settled:
    """Settle the grid and the bulk of minibatches."""
    best = plan_minibatches(asked, store, ranks, machine).choices[0]
    chosen = replace(best.way.settings(left.settings), bulk=best.bulk)
    return Settled(chosen, machine.name, best.way, best.seconds, best.phases)


def _of_subgraphs(left: LeftOpen, asked: Settings, store: Store, ranks: int, machine: Machine) -> Settled:
    """Settle the algorithm and the grid of subgraphs of drawn vertices."""
    planned = plan_subgraphs(asked, store, ranks, machine, complete=store.nnz <= EXACT)
    best = planned.step.best
    chosen = replace(best.way.settings(left.settings), sparsity_aware=left.settings.sparsity_aware)
    phases = planned.phases(best)
    return Settled(chosen, machine.name, best.way, sum(phases.values()), phases)


def settle_together(
    comm: MPI.Intracomm, settings: Settings, store: StoreOrPath,
    machine: Machine | str | os.PathLike[str] | None = None,
) -> Settled:  # fmt: skip
    """Call :func:`settle` on the first rank for all of ``comm``, which get the same. Collective.

    Args:
        store, machine: as of :func:`settle`; machine by default: :func:`~distgnn.plan.probe.probe`.

    Raises:
        UserError: of `settle` and `machine.read`, or ranks that disagree; on every rank.
    """
    with task(comm) as ours:
        return settle_open(ours, left_open(ours, settings, store), store, machine)


def settle_open(
    comm: MPI.Intracomm, left: LeftOpen, store: StoreOrPath, machine: Machine | str | os.PathLike[str] | None
) -> Settled:
    """Settle what is left open, see :func:`settle_together`, inside a task of the ranks. Collective."""
    settings = left.settings
    agree(comm, {"machine": getattr(machine, "name", machine)})
    with together(comm):
        on = None if machine is None else read(machine)
        if left.asked is not None and comm.Get_rank() == 0:
            check_outputs(settings)  # before a plan takes its time
    if left.asked is None:
        return Settled(settings)
    probed: Probe | None = None
    if on is None:
        probed = probe(comm, settings.backend)
        on = probed.machine
    return on_first_rank(comm, lambda: replace(_settled(left, store, comm.Get_size(), on), probe=probed))


def on_first_rank(comm: MPI.Intracomm, make: Callable[[], T]) -> T:
    """Return on all ranks what the first one makes; the others leave it the cores meanwhile. Collective.

    Raises:
        The errors of `make`, on every rank: see :func:`~distgnn.comm.agree.together`.
    """
    made, comm = None, joined(comm)
    with together(comm):
        made = make() if comm.Get_rank() == 0 else None
    return comm.bcast(made)


def _orders(s: Settings, store: Store) -> list[str]:
    """List the orders to choose from: of a checkpoint with trained features the one that these are in; else
    all where the algorithm or the order is "auto", and the first where neither is.
    """
    order = resumed_order(s) if s.order in (None, AUTO) else s.order
    if order is not None or AUTO not in (s.algorithm, s.order):
        return [store.order(order).name]
    return list(store.orders)


def _planned(s: Settings, orders: Sequence[str], store: Store, ranks: int, machine: Machine) -> Plan:
    """Plan all ways by how many non-zeros the shards have, and those that might be the best of a small graph
    again by where its non-zeros are. Only then is known what sparsity-aware ways send; others seldom take
    less than where all blocks are as full. Covers are counted where they may save enough of needed rows.
    """
    large = store.nnz > EXACT  # then nothing but the best is wanted
    planned = plan(s, _graphs(s, orders, store, exact=False), ranks, machine, complete=not large)
    if large or not planned.choices:
        return planned
    itself = _graphs(s, orders, store, exact=True)
    choices, full, best = list[Choice](), planned.infeasible, math.inf
    least: dict[Any, float] = {}  # seconds that a shape takes at least, by what it sends
    turn = lambda option: (TURNS[option.way.sparsity_aware], option.seconds)  # noqa: E731
    for choice in sorted(planned.choices, key=turn):
        way = choice.way
        shape = way.algorithm, way.order, *sorted(way.grid.items())
        known = {True: 0.0, False: choice.seconds, "cover": least.get((True, shape), 0.0)}[way.sparsity_aware]
        if (way.sparsity_aware, shape) not in least and known < best:
            again = priced(s, itself[way.order], ranks, machine, way)
            options = [option for option in again if isinstance(option, Choice)]
            full += [option for option in again if isinstance(option, Infeasible)]
            choices += options
            best = min([best, *(option.seconds for option in options)])
            covered = (option.seconds - SAVED * option.estimate.phases.get("comm", 0.0) for option in options)
            least[way.sparsity_aware, shape] = min(covered, default=0.0)
    choices.sort(key=lambda option: option.seconds)
    return replace(planned, choices=choices, infeasible=full, graphs=itself)


def _graphs(s: Settings, orders: Sequence[str], store: Store, exact: bool) -> Graphs:
    layers = len(s.hidden_widths) + 1
    return {name: Graph.of_store(store, name, s.dtype, layers, exact, s.loss) for name in orders}


def _advice(s: Settings, store: Store, planned: Plan) -> Iterator[str]:
    """Return the orders that are worth making."""
    even = _even(s, store, 1)
    makeable = {"double": replace(even, odd=even.source), "random": even}
    missing: Graphs = {name: graph for name, graph in makeable.items() if name not in store.orders}
    better = plan(s, missing, planned.ranks, planned.machine, complete=False).choices
    if better and better[0].seconds < CLEAR * planned.best.seconds:
        yield _line(store, better[0], planned.best, [str(better[0].way.order)])
    if s.sparsity_aware is not False:
        yield from _of_parts(s, store, planned)


def _of_parts(s: Settings, store: Store, planned: Plan) -> Iterator[str]:
    """Suggest a partition if it would help with no communication at all, its best case.

    The real gain is known when it is made.
    """
    aware = [way.grid["rows"] for way in ways(replace(s, sparsity_aware=True), planned.ranks)]
    parts = max(aware, default=1)
    vectors = [store.order(name).partition for name in store.orders]
    there = {len(vector) - 1 for vector in vectors if vector is not None}
    if parts == 1 or parts in there or parts > store.n:
        return
    apart: Graphs = {f"volume-{parts}": _even(s, store, parts)}
    least = plan(replace(s, sparsity_aware=True), apart, planned.ranks, planned.machine).choices
    if least and least[0].seconds < CLEAR * planned.best.seconds:
        yield _line(store, least[0], planned.best, [], [f"volume:{parts}"], at_least=True)


def _even(s: Settings, store: Store, parts: int) -> Graph:
    """Spread as many nodes and non-zeros as the store has evenly; or, in parts, only within these."""
    ends = partition(store.n, parts)
    nnz = np.diff(partition(store.nnz, parts))
    source = Histogram(ends, ends, np.diag(nnz), np.dtype(s.dtype), store.symmetric)
    like = Graph.of_store(store, dtype=s.dtype, exact=False, loss=s.loss)
    return replace(like, source=source, odd=None, parts=ends if parts > 1 else None)


def _line(
    store: Store, better: Choice, best: Choice, orders: list[str], parts: Sequence[str] = (),
    at_least: bool = False,
) -> str:  # fmt: skip
    made = [name.rpartition("-") for name in store.orders if name not in KNOWN]
    orders = [*(name for name in store.orders if name in KNOWN), *orders]
    parts = [*(f"{method}:{k}" for method, _, k in made if method in METHODS), *parts]
    flags = f"--order {','.join(orders)}" + (f" --partition {','.join(parts)}" if parts else "")
    took = f"{better.seconds:.3g} s per epoch, {best.seconds / better.seconds:.2g} times as fast"
    would = "may take less: at the very least" if at_least else "would take"
    return f"{better.way} on order {better.way.order} {would} {took}: distgnn prepare with {flags}"

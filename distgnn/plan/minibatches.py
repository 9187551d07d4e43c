"""Minibatches planned: the copies c of the features, and how many k a rank samples at a time.

For each c that a grid has the largest k is taken for which there is memory, and of these choices the fastest
is the first (matrix-sampling paper, sections 7.3 and 8.2). Where the next bulk is sampled behind training,
it is at most a quarter of an epoch, whose first bulk is waited for. Words are those of
``sampling/prices.py``, in the mean of all ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.layout import as_partition, nested
from distgnn.operators.prices import FREE, Price
from distgnn.plan.choices import MOST_RANKS, asked_for
from distgnn.plan.cost_model import Network, compute_seconds
from distgnn.plan.dry.batches import Batches, batches, scored
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.machine import Machine
from distgnn.plan.pricing import Infeasible, amount, unsuitable
from distgnn.sampling import prices
from distgnn.split import TRAIN
from distgnn.store.read.order import Order
from distgnn.store.read.store import Store
from distgnn.train import settings as defaults
from distgnn.train.data import of_batches
from distgnn.train.minibatch import STEPS
from distgnn.train.minibatches import bulk_at_most, turns
from distgnn.train.parts import part_vector
from distgnn.train.resolve import closed, of_store, resolved
from distgnn.train.room import most
from distgnn.train.settings import Settings
from distgnn.train.stored import stored_matrix
from distgnn.train.ways import Way, arrangements

#: Non-zeros of a sparse product with one column, of 0.3 ns, that take as long as an edge which is drawn, and
#: as an entry of a product of sampling: 65 and 21 ns on a core of an AMD EPYC.
EDGE, ENTRY = 220.0, 70.0
#: Samplers that are not planned here; `subgraphs.py` plans the second.
UNPLANNED = (defaults.SHADOW, defaults.VERTICES)
INDEXED = 12  # bytes of an entry of a sparse matrix at most
#: Bytes of a vertex whose features are asked for: its place, its row here, and its row where it is held.
WANTED = 24
#: Bulks of an epoch at least, where those after the first are sampled behind training.
BULKS = 4
#: The operation by which each matrix travels, and bytes of a word, where these are not the values' own.
TRAVELS = {
    "columns": "allgather", "rows": "alltoallv", "adjacency": "alltoallv", "sums": "alltoallv",
    "features": "alltoallv", "gradients": "allreduce",
}  # fmt: skip
NUMBERS = {"rows": 6.0}


class Memory(NamedTuple):
    """Bytes of the fullest rank, by what they are for.

    Attributes:
        network: with features, targets, and the matrix by which the whole graph is scored.
        graph: to sample from; bulk: minibatches that are held at a time, of two bulks; rows: while they are
            sampled.
        training: of a minibatch, with the features of the next; scores: while the whole graph is scored.
    """

    network: int
    graph: int
    bulk: int
    rows: int
    training: int
    scores: int

    @property
    def peak(self) -> int:
        """Bytes of what is held at a time: scores are made when no bulk is there."""
        return self.network + self.graph + max(self.bulk + self.rows + self.training, self.scores)


@dataclass(frozen=True)
class BatchChoice:
    """Grid and bulk for minibatches.

    Attributes:
        price: words and messages of an epoch on a rank, in the mean; phases: seconds of an epoch by step.
    """

    way: Way
    bulk: int
    price: Price
    memory: Memory
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Predicted seconds of an epoch."""
        return sum(self.phases.values())

    def record(self, node: int | None = None) -> dict[str, Any]:
        """Return the record for JSON."""
        return self.way.record(node) | {
            "bulk": self.bulk, "seconds": self.seconds, "phases": dict(self.phases),
            "words": {matrix: float(words) for matrix, words in self.price.by_matrix().items()},
            "messages": round(self.price.messages), "memory": self.memory._asdict(),
            "peak_bytes": self.memory.peak,
        }  # fmt: skip


@dataclass(frozen=True)
class BatchPlan:
    """Choices for minibatches, the fastest first."""

    machine: Machine
    ranks: int
    settings: Settings
    graph: Graph
    choices: list[BatchChoice]
    infeasible: list[Infeasible]

    def record(self) -> dict[str, Any]:
        """Return the record for JSON."""
        return asked_for(self.machine, self.settings, {None: self.graph}) | {
            "ranks": self.ranks,
            "choices": [choice.record(self.machine.node) for choice in self.choices],
            "infeasible": [way.record(self.machine.node) for way in self.infeasible],
        }


def plan_minibatches(settings: Settings, store: Store, ranks: int, machine: Machine) -> BatchPlan:
    """Plan the copies, and the bulk, that settings for minibatches leave open. Runs no MPI.

    Args:
        settings: replication and bulk may be "auto", and the grid open.

    Raises:
        ArgumentError: a sampler of :data:`UNPLANNED`.
        UserError: settings that a run would refuse, or nothing that fits (the message says what would).
    """
    if settings.sampler in UNPLANNED:
        problem = "is not planned; give numbers for bulk and replication"
        raise ArgumentError("sampler", settings.sampler, problem)
    settings, order = of_store(settings, store)
    s, itemsize = resolved(closed(settings), ranks), np.dtype(settings.dtype).itemsize
    needed, there = store.nnz * (itemsize + 4), machine.memory * (machine.node or 1)
    if needed > there:
        problem = f"a plan reads the graph on one rank, {amount(needed)}, and a node has {amount(there)}"
        raise UserError(f"minibatches are not planned: {problem}; give numbers for bulk and replication")
    copies = settings.replication if isinstance(settings.replication, int) else None
    asked = replace(closed(settings), algorithm="1.5d", replication=copies, sparsity_aware=s.sparsity_aware)
    ways = [replace(way, order=order.name) for way in arrangements(asked, ranks)]
    if not ways:
        name = "replication" if s.grid is None else "grid"
        raise ArgumentError(name, getattr(settings, name), f"1.5d has no such grid of {ranks} ranks")
    named = order.name, s.dtype, len(s.hidden_widths) + 1
    known, even = (Graph.of_store(store, *named, exact, s.loss) for exact in (True, False))
    drawn = _drawn(s, store, order, known, even, ranks)
    if isinstance(settings.bulk, int):
        number = len(turns(drawn.count, s.batches_per_update or 1, ranks))
        settings = replace(settings, bulk=bulk_at_most(settings.bulk, number, True))
    planned, choices, full = dict[int, Planned](), list[BatchChoice](), list[Infeasible]()
    for way in ways:
        c, refused = way.grid["reps"], unsuitable(way, even, settings)
        if c not in planned and not refused:
            grid = replace(s, grid=dict(way.grid), replication=None)
            planned[c] = Planned(grid, even, ranks, machine, drawn)
        made = Infeasible(way, refused) if refused else planned[c].made(way, settings.bulk)
        choices += [made] if isinstance(made, BatchChoice) else []
        full += [made] if isinstance(made, Infeasible) else []
    if not choices:
        raise _shortage(settings, full, planned)
    choices.sort(key=lambda choice: (choice.seconds, -choice.way.grid["reps"]))
    return BatchPlan(machine, ranks, settings, known, choices, full)


def _drawn(s: Settings, store: Store, order: Order, known: Graph, even: Graph, ranks: int) -> Batches:
    """Draw minibatches of the size, and of the parts, that a run has."""
    default, most, _ = of_batches(s, store, known.counts[TRAIN])
    s = replace(s, batch_size=min(s.batch_size or default, most))
    parts = partial(part_vector, s, order, lambda: stored_matrix(store, order, s.dtype))
    return batches(s, known, even, ranks, parts)


class Planned:
    """Minibatches on grids with so many copies: memory, words and seconds by bulk.

    Args:
        s: resolved, with the grid.
    """

    def __init__(self, s: Settings, even: Graph, ranks: int, machine: Machine, drawn: Batches) -> None:
        self.s, self.ranks, self.machine, self.drawn = s, ranks, machine, drawn
        self.rows, self.c = (dict(s.grid)[axis] for axis in ("rows", "reps"))  # type: ignore[arg-type]
        self.cut, self.width, self.even = bool(s.partition_graph), even.width, even
        self.turns = turns(drawn.count, s.batches_per_update or 1, ranks)
        self.updates = sum(turn.updates for turn in self.turns)
        self.travels = ranks > 1 and self.rows > 1  # the features do
        self.ahead = bool(s.overlap) and ranks > 1 and (self.cut or self.travels)
        held, peak = scored(s, even, ranks)
        self.held, self.scores = sum(held.values()), sum(peak.values()) - sum(held.values())

    @property
    def most_at_a_time(self) -> int:
        """The largest bulk for which there is memory, at most an epoch; 0: none."""
        return most(lambda k: self.memory(k).peak <= self.machine.memory, len(self.turns))

    def made(self, way: Way, bulk: int | str | None) -> BatchChoice | Infeasible:
        """Return the choice of this bulk on a grid, or of the largest that fits; or why none does."""
        fits = self.most_at_a_time
        most = max(len(self.turns) // BULKS, 1) if self.ahead else len(self.turns)
        k = bulk if isinstance(bulk, int) else min(fits, most)
        if 0 < min(k, len(self.turns)) <= fits:
            return self.choice(way, k)
        peak, has = self.memory(max(k, 1)).peak, amount(self.machine.memory)
        problem = f"with bulk={max(k, 1)} a rank needs {amount(peak)} and has {has}"
        return Infeasible(way, problem + (f"; bulk={fits} would do" if fits else ""), peak)

    def memory(self, k: int) -> Memory:
        """Count the bytes of a rank that samples k minibatches at a time.

        The last minibatch of a bulk, which holds the arrays of all, is trained when the next bulk has been
        sampled, and where it is sampled behind training the first of the one after that is begun.
        """
        k, held = (min(of, len(self.turns)) for of in (k, 2 * k + self.ahead))
        rows = max(self._row_bytes(call.of(k)) for call in self.drawn.calls)
        bulk = self.drawn.together(held) + int(WANTED * self.drawn.inputs * held) * self.travels
        return Memory(self.held, self._graph(), bulk, rows, self.drawn.held + self._coming(), self.scores)

    def _coming(self) -> int:
        """Return bytes of the features of the next minibatch, which travel while one is trained."""
        return int(self.drawn.inputs * self._words() * np.dtype(self.s.dtype).itemsize) * self.travels

    def _graph(self) -> int:
        """Return bytes of the graph to sample from: whole, once a node on hosts, or the fullest share."""
        if not self.cut:
            mates = min(self.machine.node or 1, self.ranks) if self.machine.shared_memory else 1
            return self.drawn.graph // mates
        ends = nested(as_partition(self.even.parts, self.even.n, self.rows), self.c)
        nonzeros = np.diff(self.drawn.pointers[ends])
        return int(self.drawn.graph * nonzeros.max() / max(self.drawn.pointers[-1], 1))

    def _row_bytes(self, asked: prices.Asked) -> int:
        """Return bytes of what is sent and received in a call, and of its sums."""
        moved = 2 * asked.entries * self.cut + (asked.partial)
        return int(INDEXED * moved)

    def choice(self, way: Way, k: int) -> BatchChoice:
        """Price an epoch with this bulk on a grid."""
        network, number = Network(self.machine.used(self.s.overlap, self.s.tf32), way.grid), len(self.turns)
        sampling, fetching, update = self._sampling(k), self._fetching(), self._update()
        bulks, kinds = -(-number // k), [call.kind for call in self.drawn.calls]
        sums = kinds.count(prices.SUMS)
        per_bulk = {"rows": 3 * len(kinds) - sums, "adjacency": 2 * (len(kinds) - sums), "sums": 3 * sums}
        per_bulk["columns"] = 2 * kinds.count(prices.EDGES)
        per_bulk = {matrix: bulks * calls for matrix, calls in per_bulk.items()}
        itemsize = np.dtype(self.s.dtype).itemsize
        steps = (step for step in self.drawn.steps if step.phase not in ("comm", "sent", "wait"))
        trained = sum(compute_seconds(self.machine, step, itemsize) for step in steps) / self.drawn.drawn
        seconds = (
            self._travels(network, sampling, per_bulk) + self._drawing(),
            self._travels(network, fetching, {"rows": number, "features": number}),
            trained * number,
            self._travels(network, update, {"gradients": self.updates}) + self.machine.update * self.updates,
        )
        price = sampling + fetching + update
        return BatchChoice(way, k, price, self.memory(k), dict(zip(STEPS, seconds, strict=True)))

    def _sampling(self, k: int) -> Price:
        """Price the sampling of an epoch: of each bulk, and each rank, as many as there are."""
        there = np.array([[number is not None for number in turn.numbers] for turn in self.turns])
        sizes = np.add.reduceat(there.astype(int), range(0, len(there), k)) if self.cut else np.zeros(0, int)
        return sum(
            (_times(prices.answered(call.of(m), self.ranks), times / self.ranks)
             for m, times in Counter(sizes.ravel().tolist()).items() if m for call in self.drawn.calls), FREE,
        )  # fmt: skip

    def _fetching(self) -> Price:
        sparse, share = self.even.feature_nnz is not None, self.drawn.count / self.ranks
        return _times(prices.fetched(self.drawn.inputs, self._words(), self.rows, sparse), share)

    def _words(self) -> float:
        """Return the words of a row of features, in the mean."""
        sparse = self.even.feature_nnz
        return self.width if sparse is None else 2 * sparse / self.even.n

    def _update(self) -> Price:
        words = 2 * (self.ranks - 1) / self.ranks * self.drawn.gradients
        return _times(Price({("world", "gradients"): (words, 2 * (self.ranks - 1))}), self.updates)

    def _drawing(self) -> float:
        """Estimate the seconds of an epoch in which a rank draws and multiplies."""
        entries = sum(call.of(1).entries for call in self.drawn.calls if call.kind != prices.DRAWS)
        rate = self.machine.spmm.uncached.nonzero + self.machine.spmm.uncached.nonzero_column
        return len(self.turns) * rate * (EDGE * self.drawn.edges + ENTRY * entries)

    def _travels(self, network: Network, price: Price, calls: Mapping[str, int]) -> float:
        """Return the seconds of messages, one after another."""
        seconds, itemsize = 0.0, np.dtype(self.s.dtype).itemsize
        for (group, matrix), (words, messages) in price.items():
            if messages:
                times, nbytes = calls[matrix], float(words) * NUMBERS.get(matrix, itemsize)
                counts = nbytes / times, int(-(-messages // times))
                seconds += (
                    times * network.seconds(ProgramStep("comm", TRAVELS[matrix], group, matrix, *counts))[1]
                )
        return seconds


def _times(price: Price, factor: float) -> Price:
    """Return a price so many times over; messages may be fractions, in the mean of ranks."""
    scaled: Any = {key: (float(words) * factor, count * factor) for key, (words, count) in price.items()}
    return Price(scaled)


def _shortage(settings: Settings, full: list[Infeasible], planned: Mapping[int, Planned]) -> UserError:
    """Return the error of a plan without a choice: what is short, and what would do."""
    least = min(full, key=lambda way: way.peak or math.inf)
    said = f"{least.way}: {least.reason}"
    if any(some.most_at_a_time for some in planned.values()):
        return ArgumentError("bulk", settings.bulk, said)
    would = next(_would(planned[least.way.grid["reps"]]), SMALLER) if least.peak else "take another order"
    return UserError(f"no minibatch fits: {said}; {would}")


SMALLER = "a smaller batch_size or fanout, or ranks with more memory, would do"


def _would(planned: Planned) -> Iterator[str]:
    """List changes with which minibatches would fit: a cut graph, or more ranks, by doubling."""
    s, ranks, known = planned.s, planned.ranks, (planned.machine, planned.drawn)
    cut = replace(s, partition_graph=True)
    if not planned.cut and Planned(cut, planned.even, ranks, *known).most_at_a_time:
        yield "partition_graph=True would do"
    while planned.c == 1 and (ranks := 2 * ranks) <= min(MOST_RANKS, planned.even.n):
        grid = {axis: ranks if axis == "rows" else 1 for axis in planned.s.grid or {}}
        more = replace(cut, grid=grid, batches_per_update=max(s.batches_per_update or 1, ranks))
        if Planned(more, planned.even, ranks, *known).most_at_a_time:
            yield f"{ranks} ranks would do with partition_graph=True"

"""Training on the subgraphs of drawn vertices planned, by that of a whole graph as large as a step's.

A step is planned on the graph that its vertices induce in the mean, on every algorithm and grid. To it come
the draws and the extraction, and in the memory the whole graph, of which all blocks are extracted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.plan.choices import Plan, plan
from distgnn.plan.dry.batches import scored
from distgnn.plan.dry.graphs import Graph, Histogram
from distgnn.plan.machine import Machine
from distgnn.plan.minibatches import ENTRY
from distgnn.plan.pricing import Choice, Infeasible, amount
from distgnn.split import TEST, TRAIN
from distgnn.store.read.store import Store
from distgnn.train.data import of_batches
from distgnn.train.minibatches import even_groups
from distgnn.train.resolve import of_store, resolved
from distgnn.train.settings import FOR_MINIBATCHES, NONE, Settings

#: Non-zeros of a sparse product with one column that take as long as a node that is put in its place in an
#: epoch: 110 ns on a core of an AMD EPYC.
PLACED = 370.0


@dataclass(frozen=True)
class SubgraphPlan:
    """Ways to train on subgraphs of drawn vertices.

    Attributes:
        step: of the largest step, with choices by its seconds for which a rank has memory; size: its nodes;
            steps: of an epoch; drawing: seconds of an epoch in which a rank draws and extracts, of one copy.
    """

    step: Plan
    size: int
    steps: int
    drawing: float

    def phases(self, choice: Choice) -> dict[str, float]:
        """Return the seconds of an epoch without scores by phase."""
        spent = {phase: self.steps * seconds for phase, seconds in choice.estimate.phases.items()}
        return spent | {"sampling": self.drawing * choice.way.grid.get("reps", 1)}

    def record(self) -> dict[str, Any]:
        """Return the record for JSON: that of a step, and the seconds of an epoch of each choice."""
        epochs = [sum(self.phases(choice).values()) for choice in self.step.choices]
        sizes = {"nodes_of_step": self.size, "steps": self.steps, "epoch_seconds": epochs}
        return self.step.record() | sizes


def plan_subgraphs(
    settings: Settings, store: Store, ranks: int, machine: Machine, complete: bool = True
) -> SubgraphPlan:
    """Plan what settings for `vertices` leave open: the algorithm, the grid. Runs no MPI.

    Args:
        settings: as of :func:`distgnn.train.resolve.to_plan`; complete: as of :func:`~distgnn.plan.plan`.

    Raises:
        UserError: settings that a run would refuse, or nothing that fits into the memory.
    """
    settings, order = of_store(settings, store)
    layers = len(settings.hidden_widths) + 1
    whole = Graph.of_store(store, order.name, settings.dtype, layers, exact=False, loss=settings.loss)
    rescale = resolved(replace(settings, algorithm="1d", grid=None, replication=None), ranks).rescale
    default, most, _ = of_batches(settings, store, 0)
    sizes = np.diff(even_groups(store.n, min(settings.batch_size or default, most), bool(rescale)))
    step = drawn(whole, min(max(int(sizes.max()), ranks), store.n))  # a node a rank, at least
    planned = plan(_of_step(settings), {order.name: step}, ranks, machine, complete)
    fits, full = list[Choice](), planned.infeasible
    for choice in planned.choices:
        s = resolved(choice.way.settings(settings), ranks)
        held, scores = (sum(books.values()) for books in scored(s, whole, ranks))
        peak = max(held + max(choice.peak_bytes), scores)
        if peak <= machine.memory:
            fits.append(choice)
        else:
            problem = f"a rank needs {amount(peak)} beside the whole graph and has {amount(machine.memory)}"
            full.append(Infeasible(choice.way, problem, peak))
    if not fits:
        least = min(full, key=lambda way: way.peak or math.inf)
        would = "; more ranks, or memory, would do" if least.peak else ""
        raise UserError(f"no subgraph fits: {least.way}: {least.reason}{would}")
    rate = machine.spmm.uncached.nonzero + machine.spmm.uncached.nonzero_column
    drawing = rate * (PLACED * store.n + ENTRY * whole.nnz / ranks)
    return SubgraphPlan(replace(planned, choices=fits), int(sizes.max()), len(sizes), drawing)


def _of_step(settings: Settings) -> Settings:
    """Return settings of a training of the whole graph whose epochs cost what steps do."""
    off: Any = dict.fromkeys([*FOR_MINIBATCHES, "order", "patience", "schedule"])
    off |= {"sampler": NONE, "keep_best": NONE, "eval_every": 0, "cuda_graph": False}
    return replace(settings, **off, keep_aggregate=False, sparsity_aware=False)


def drawn(graph: Graph, size: int) -> Graph:
    """Return the graph that so many of the nodes induce in the mean, of a graph known by its histogram."""
    share = size / max(graph.n, 1)
    scaled = partial(_induced, graph, share, share * (size - 1) / max(graph.n - 1, 1))
    assert isinstance(graph.source, Histogram)
    counts = [0] * (TEST + 1)
    counts[TRAIN] = max(round(graph.counts[TRAIN] * share), 1)
    entries = None if graph.feature_nnz is None else round(graph.feature_nnz * share)
    made: Any = {"source": scaled(graph.source), "counts": counts, "loops": round(graph.loops * share)}
    return replace(graph, **made, feature_nnz=entries, labels=None, odd=None, parts=None, entries=None)


def _induced(graph: Graph, share: float, pairs: float, source: Histogram) -> Histogram:
    """Keep this share of the diagonal and of the nodes, and `pairs` of the entries off it."""
    between = source.off_diagonal(graph.loops, not graph.directed)
    kept = np.rint(between.nnz * pairs + (source.nnz - between.nnz) * share).astype(np.int64)
    rows, cols = (np.rint(vector * share).astype(np.int64) for vector in (source.rows, source.cols))
    return Histogram(rows, cols, kept, source.dtype, source.symmetric)

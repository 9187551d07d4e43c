"""The program of a run, counted: the same code for ranks of MPI and for ranks that are not there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from distgnn import ledger, operators
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout
from distgnn.ledger import Ledger
from distgnn.nn import optim
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import Targets
from distgnn.nn.networks import NETWORKS
from distgnn.operators.dense import DistDense
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features
from distgnn.plan.dry.absent import OneOfMany
from distgnn.plan.dry.backend import SHAPES
from distgnn.plan.dry.busiest import busiest_of
from distgnn.plan.dry.graphs import Graph, Histogram, Spread
from distgnn.plan.dry.ranks import run_all
from distgnn.plan.dry.recorder import Recorder
from distgnn.plan.dry.repeats import repeats
from distgnn.sampling.spgemm import Partitioned, Replicated
from distgnn.split import TRAIN
from distgnn.train import epoch_graph
from distgnn.train.data import as_taken, must_be_dense, owned
from distgnn.train.full_graph import train
from distgnn.train.minibatch import MinibatchTraining
from distgnn.train.minibatches import sampler_on, training_nodes
from distgnn.train.resolve import make_grid, network, resolved, set_mixed
from distgnn.train.settings import BATCH_SIZE, CLUSTER, Settings

SAMPLE = 8  # ranks of which the busiest is looked for where non-zeros are not spread evenly


@dataclass
class Costs:
    """Charges of one rank.

    Attributes:
        setup: operator, network and targets, but not what is read from files; first: the first epoch, which
            also makes what is kept; epoch: any later one, with its steps, and evaluation: of the whole graph,
            empty where it was left out.
        peak: bytes by purpose when those held were most.
        model: the network of this rank, where it trains on the whole graph.
        captured: whether a GPU would run its epochs as CUDA graphs.
    """

    setup: Ledger
    first: Ledger
    epoch: Recorder
    evaluation: Ledger
    peak: dict[str, int]
    model: GCN | None
    captured: bool = False

    @property
    def words(self) -> dict[str, int]:
        """The words received in an epoch, by matrix."""
        received: dict[str, int] = {}
        for entry in self.epoch.entries():
            received[entry["matrix"]] = received.get(entry["matrix"], 0) + entry["words"]
        return {matrix: words for matrix, words in received.items() if words}


@dataclass(frozen=True)
class DryRun:
    """Charges of all ranks.

    Attributes:
        grid: sizes by axis; ranks: by rank; ranks that are taken to be alike share one object.
    """

    grid: dict[str, int]
    ranks: list[Costs]


def dry_run(
    settings: Settings, graph: Graph, ranks: int, busiest: bool | None = None, *, evaluation: bool = True,
    node: int | None = None, most: float = math.inf, on: Backend = SHAPES,
) -> DryRun:  # fmt: skip
    """Count the cost of a run with these settings on so many ranks. Runs no MPI and computes nothing.

    Args:
        busiest: run only a rank that has the most to do, and take all others, and what they tell it, to be
            like it; default: for more than 64.
        evaluation: also count an evaluation of the whole graph.
        node: ranks of a node, which are consecutive; default: all.
        most: bytes beyond which a busiest rank need not be run to its end.
        on: what the arrays stand for: a GPU's, whose work the host queues, of `dry/queued.py`, or a host's.

    Raises:
        ArgumentError: what a run would refuse, another dtype than the graph's, a choice that goes by measured
            seconds, or minibatches without the graph itself. ledger.BeyondRoom: the rank holds more than
            ``most``.
    """
    s = resolved(settings, ranks)
    graph = multiplied(s, graph)
    busiest = ranks > 64 if busiest is None else busiest
    _check(s, graph, busiest, node)
    if busiest:
        with ready_rank(s, graph, ranks, node, most, on) as ready, repeats(ready.model):
            costs, grid = _counted(ready, evaluation)
            return DryRun(grid, [costs] * ranks)
    results = run_all(ranks, lambda comm: _counted(_prepared(comm, on, s, graph), evaluation), node)
    return DryRun(results[0][1], [costs for costs, _ in results])


def count(comm: Any, backend: Backend | str | None, settings: Settings, graph: Graph) -> Costs:
    """Count the charges of this rank, on the ranks of ``comm`` and arrays of any backend. Collective.

    Features are zeros. Of a real backend it is what the dry run has to give.
    """
    s = resolved(settings, comm.Get_size())
    return _counted(_prepared(comm, backend, s, multiplied(s, graph)))[0]


def multiplied(settings: Settings, graph: Graph) -> Graph:
    """Return the graph as a run of these resolved settings loads it: without its diagonal where the network
    wants neighbours alone.
    """
    return graph.neighbours if NETWORKS[str(settings.model)].neighbours else graph


def _check(s: Settings, graph: Graph, busiest: bool, node: int | None) -> None:
    if s.sparsity_aware == "auto":
        raise ArgumentError("sparsity_aware", "auto", "goes by measured seconds; plan with True and False")
    if s.sparsity_aware == "cover" and busiest and not isinstance(graph.source, Histogram):
        problem = "covers of the graph itself are counted on all ranks, not on the busiest"
        raise ArgumentError("sparsity_aware", "cover", problem)
    if node and s.sparsity_aware and (busiest or isinstance(graph.source, Histogram)):
        problem = "rows that come to a node once are counted on all ranks, and of the graph itself"
        raise ArgumentError("sparsity_aware", s.sparsity_aware, problem)
    if graph.source.dtype != np.dtype(s.dtype):
        raise ArgumentError("dtype", s.dtype, f"the graph is planned with values of {graph.source.dtype}")
    if s.together or s.sampler == CLUSTER:
        raise ArgumentError("sampler", s.sampler, "subgraphs of drawn vertices, or of parts, are not planned")
    if s.samples and (busiest or isinstance(graph.source, Histogram)):
        problem = "minibatches are drawn: a dry run needs the graph itself, and all ranks"
        raise ArgumentError("sampler", s.sampler, problem)


class _Prepared(NamedTuple):
    """A rank that is ready to train, and what it was charged for that."""

    settings: Settings
    model: GCN
    X: Features
    targets: Targets
    training: MinibatchTraining | None
    setup: Ledger


@contextmanager
def ready_rank(
    s: Settings, graph: Graph, ranks: int, node: int | None = None, most: float = math.inf,
    on: Backend = SHAPES,
) -> Iterator[_Prepared]:  # fmt: skip
    """Prepare the busiest rank, whose books are kept inside.

    Even cuts give the last rank the largest blocks, so that it is asked first. If non-zeros are not spread
    evenly, it is the one of a sample of ranks that holds the most.

    Args:
        s, graph: as a run resolves and loads them; node, most: as of :func:`dry_run`; on: the backend.
    """
    with ledger.apart() as books:
        last = _prepared(OneOfMany(ranks, ranks - 1, node), on, s, graph)
        rank, held = busiest_of(last.model, last.model.grid), _held(last)
        if rank == ranks - 1 and graph.even:
            books.most = most
            yield last
            return
    sample = [] if graph.even else np.linspace(0, ranks - 1, SAMPLE + 1, dtype=int)[:-1].tolist()
    for other in sample:
        with ledger.apart():
            own = _held(_prepared(OneOfMany(ranks, other, node), on, s, graph))
            rank, held = (other, own) if own > held else (rank, held)
    with ledger.apart() as books:
        books.most = most
        yield _prepared(OneOfMany(ranks, rank, node), on, s, graph)


def _held(ready: _Prepared) -> int:
    """Return bytes that a rank holds before it trains."""
    return sum(ready.setup.peak.values())


def _prepared(comm: Any, backend: Backend | str | None, s: Settings, graph: Graph) -> _Prepared:
    with Ledger() as setup:
        grid = make_grid(comm, s, backend)
        set_mixed(grid, s.mixed_precision)
        made = network_of(s, graph, grid)
        training = _minibatches(s, graph, *made) if s.samples else None
    return _Prepared(s, *made, training, setup)


def _counted(ready: _Prepared, evaluation: bool = True) -> tuple[Costs, dict[str, int]]:
    """Return the costs of this rank, and the sizes of the grid."""
    s, model, X, targets, training, setup = ready
    optimizer = optim.make(s.optimizer, s.lr, s.decays, s.momentum, s.clip)
    due = 0 if model.draws or s.samples else s.eval_every  # else evaluation is a product of its own
    if training is None:
        options: Any = {"eval_every": due, "train_features": s.train_features}
        epochs = train(model, X, targets, optimizer, 2, **options)
    else:
        epochs = training.train(optimizer, 2, eval_every=due)
    with Ledger() as first:
        next(epochs)
    with Recorder() as later:
        next(epochs)
    with Ledger() as whole_graph:
        if evaluation and training is not None:
            training.evaluate()
        elif evaluation:
            model.evaluate(X, targets, s.train_features)
    books: tuple[Ledger, ...] = setup, first, later, whole_graph
    peak = max((book.peak for book in books), key=lambda peak: sum(peak.values()))
    model.grid.workspace.clear()
    trained = model if training is None else None
    captured = training is None and epoch_graph.wanted(s.cuda_graph, model, X, optimizer, planned=True)
    return Costs(setup, first, later, whole_graph, dict(peak), trained, captured), dict(model.grid.shape)


def _minibatches(s: Settings, graph: Graph, model: GCN, X: Features, targets: Any) -> MinibatchTraining:
    cut: Any = s.partition_graph
    A: Any = Partitioned(model.grid, graph.source, graph.parts) if cut else Replicated(graph.source)
    drawn = sampler_on(s, A, lambda: training_nodes(targets)[0], lambda: np.empty(0, int))
    size = min(s.batch_size or BATCH_SIZE, targets.counts[TRAIN])
    return MinibatchTraining(
        model, X, targets, drawn, size, s.batches_per_update or 1, int(s.bulk or 1), s.seed
    )


def _features(graph: Graph, model: GCN) -> Features:
    """Make features of zeros: of sparse ones as many are stored as there are, evenly spread."""
    layout, shape, on, dtype = model.input_layout, (graph.n, graph.width), model.grid.backend, model.A.dtype
    height, width = layout.local_shape(shape)
    if graph.feature_nnz is None:
        return DistDense(on.zeros((height, width), dtype), layout, shape)
    nnz = round(graph.feature_nnz * height * width / (graph.n * graph.width))
    block = CSR.empty((height, width), nnz, dtype, on, "features")
    block.data[...] = 0
    block.indices[...] = on.xp.arange(nnz) % max(width, 1)
    block.indptr[...] = on.xp.arange(height + 1) * nnz // max(height, 1)
    block.cached["share"] = graph.feature_nnz / (graph.n * graph.width)  # absent ranks have no entries
    return SparseFeatures(block, layout, shape)


def network_of(s: Settings, graph: Graph, grid: Grid) -> tuple[GCN, Features, Targets]:
    """Return network, features and targets, as a run makes them."""
    name = str(s.algorithm)
    partitions: dict[str, Any] = {}
    if graph.odd is not None:
        partitions["odd"] = graph.odd
    if graph.parts is not None and name in operators.SPARSITY_AWARE and grid.shape["rows"] > 1:
        partitions = {"row_parts": graph.parts, "col_parts": graph.parts}
    A = operators.distribute(graph.source, grid, name, s.sparsity_aware or False, **partitions)
    if s.loss not in (None, graph.loss):
        raise ArgumentError("loss", s.loss, f"the graph to plan for has labels of the loss {graph.loss}")
    model = network(s, A, [graph.width, *s.hidden_widths, graph.classes])
    X = owned(as_taken(_features(graph, model), model, must_be_dense(s), said=False), s)
    rows = Layout(grid, model.output_layout.rows, Cut())
    if graph.labels is None:
        spread = model.output_layout, graph.classes, graph.counts, graph.loss, s.metric
        return model, X, Spread(*spread)
    given = [x if x.ndim == 2 else x[:, None] for x in graph.labels(*rows.row_range)]
    labels, split = (DistDense(grid.backend.asarray(x), rows, (graph.n, x.shape[1])) for x in given)
    targets = model.targets(labels, split, s.metric)
    targets.counts, targets.count = list(graph.counts), max(graph.counts[TRAIN], 1)  # sums over ranks
    return model, X, targets

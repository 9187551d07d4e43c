"""A few minibatches of an epoch, really drawn on one rank, and trained on arrays without numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distgnn import ledger
from distgnn.ledger import Ledger
from distgnn.plan.dry.absent import OneOfMany
from distgnn.plan.dry.backend import SHAPES
from distgnn.plan.dry.busiest import busiest_of
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.dry.recorder import ProgramStep, Recorder
from distgnn.plan.dry.run import multiplied, network_of
from distgnn.sampling.block import Sample
from distgnn.sampling.prices import Expected, Watched
from distgnn.train.minibatch import GradientSums, MinibatchTraining
from distgnn.train.minibatches import sampler_on, training_nodes
from distgnn.train.resolve import make_grid
from distgnn.train.settings import Settings

DRAWN = 32  # minibatches of an epoch, at most


@dataclass(frozen=True)
class Batches:
    """Minibatches of the first epoch.

    Attributes:
        count: of an epoch; drawn: of them here.
        calls: of the sampler, one after another; inputs: vertices whose features a minibatch reads, and
            edges: of its blocks, in the mean.
        nbytes: of the blocks of each that was drawn, falling; held: bytes while the largest is trained.
        steps: of the training of all that were drawn; gradients: numbers that an update sums.
        graph: bytes of the matrices to sample from; pointers: row pointers of A.
    """

    count: int
    drawn: int
    calls: Sequence[Expected]
    inputs: float
    edges: float
    nbytes: Sequence[int]
    held: int
    steps: Sequence[ProgramStep]
    gradients: int
    graph: int
    pointers: np.ndarray

    def together(self, k: int) -> int:
        """Return the bytes of the k largest; beyond those that were drawn, of k of the mean size."""
        return sum(self.nbytes[:k]) * k // min(k, self.drawn)


def batches(
    s: Settings, known: Graph, even: Graph, ranks: int, parts: Callable[[], np.ndarray], most: int = DRAWN
) -> Batches:
    """Draw minibatches of the first epoch as a run on so many ranks does, at most so many, and train on them.

    Args:
        s: resolved, with a batch size. known: the graph itself; even: the same by its numbers of non-zeros.
        parts: gives the part of each node, where they are needed.
    """
    cut, s = bool(s.partition_graph), replace(s, grid=None, replication=1, partition_graph=False)
    known, even = multiplied(s, known), multiplied(s, even)
    with ledger.apart() as books:
        model, X, targets = network_of(s, replace(known, source=even.source), make_grid(_one(1), s, SHAPES))
        before = books.held["adjacency"]
        watched = Watched(known.source, ranks)
        drawn = sampler_on(s, watched, lambda: training_nodes(targets)[0], parts)
        graph = books.held["adjacency"] - before
        training = MinibatchTraining(model, X, targets, drawn, int(s.batch_size or 0), 1, 1, s.seed)
        watched.asked.clear()
        with Recorder() as steps:
            pairs = list(_trained(training, watched, most))
        samples, held = [sample for sample, _ in pairs], max(nbytes for _, nbytes in pairs)
        asked = list(watched.asked)
        each = len(asked) // len(samples)
        calls = [Expected(asked[i::each], watched.n, watched.A.nnz) for i in range(each)]
        sums = GradientSums(model).values.size
        training.grid.workspace.clear()
    inputs, edges = (
        float(np.mean(of)) for of in zip(*((len(x.inputs), x.edges) for x in samples), strict=True)
    )
    nbytes = sorted((nbytes_of(sample, cut) for sample in samples), reverse=True)
    counts = len(training.minibatches), len(samples)
    return Batches(*counts, calls, inputs, edges, nbytes, held, steps.steps, sums, graph, watched.indptr)


def _trained(training: MinibatchTraining, watched: Watched, most: int) -> Iterator[tuple[Sample, int]]:
    """Give the first minibatches, and the bytes that each takes while it is trained."""
    sums, before = GradientSums(training.model), sum(ledger.books().held.values())
    for number, batch in enumerate(training.minibatches.epoch(1)[:most]):
        sample = training.sampler.sample_at([batch], epoch=1, first=number)[0]
        with Ledger() as book:
            H = training.features.borrow(sample.inputs)
            training.propagate(sample, H, number + 1, sums)
        yield sample, sum(book.peak.values()) - before


def nbytes_of(sample: Sample, cut: bool = False) -> int:
    """Count the bytes of a minibatch's blocks, in which the rows of one are the columns of the next.

    ``cut``: of a partitioned graph, whose samples have wide indices.
    """
    arrays = (array for b in sample.blocks for array in (b.cols, b.indptr, b.data))
    indices = sum(b.nnz * (8 if cut else b.indices.itemsize) for b in sample.blocks)
    return sample.batch.nbytes + indices + sum(array.nbytes for array in arrays)


def scored(s: Settings, even: Graph, ranks: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return bytes by purpose that the busiest rank holds before it trains, and those of scoring the whole
    graph, most of all.
    """
    even = multiplied(s, even)
    rank = ranks - 1
    for _ in range(2):
        with ledger.apart():
            model, X, targets = network_of(s, even, make_grid(_one(ranks, rank), s, SHAPES))
            held = dict(ledger.books().held)
            with Ledger() as scoring:
                model.evaluate(X, targets, False)
            peak = dict(scoring.peak)
            busiest = busiest_of(model, model.grid)
        if busiest == rank:
            break
        rank = busiest
    return held, peak


def _one(ranks: int, rank: int = 0) -> OneOfMany:
    return OneOfMany(ranks, rank)

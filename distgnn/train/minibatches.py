"""Training nodes in minibatches: the minibatches of an epoch, their turns on the ranks, and their sampler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgnn import rng
from distgnn.arrays import backend
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.layout import partition
from distgnn.nn.loss import Targets
from distgnn.nn.networks import NETWORKS
from distgnn.operators.sources import BlockSource
from distgnn.sampling.cluster import Cluster
from distgnn.sampling.graph import Graph
from distgnn.sampling.layerwise import FastGCN, Ladies
from distgnn.sampling.sage import GraphSage
from distgnn.sampling.saint import Saint
from distgnn.sampling.sampler import Sampler
from distgnn.sampling.shadow import Shadow
from distgnn.sampling.spgemm import Partitioned, Replicated
from distgnn.store.read.neighbours import neighbours_of
from distgnn.store.read.root import RootOrder
from distgnn.store.read.store import Store
from distgnn.train.parts import shared_parts
from distgnn.train.settings import BULK, CLUSTER, SHADOW, Settings
from distgnn.train.stored import stored_matrix

log = logging.getLogger(__name__)


class Minibatches:
    """The minibatches of every epoch: training nodes in an order by (seed, epoch, node id), cut into batches.

    Args:
        training: distinct global ids, in any order, on the host or int64 on a GPU.
        batch_size: nodes per minibatch; the last one has what is left, and is the only one of too few nodes.

    Raises:
        ArgumentError: no training nodes, or a batch size below 1.
    """

    def __init__(self, training: Any, batch_size: int, seed: int = 0) -> None:
        training = backend.as_array(training).astype(np.int64, copy=False)
        self.training, self.size, self.seed = backend.module(training).sort(training), batch_size, seed
        check_batch_size(batch_size, len(self.training))

    def __len__(self) -> int:
        """Count the minibatches of an epoch."""
        return -(-len(self.training) // self.size)

    def epoch(self, epoch: int) -> list[Any]:
        """Give the minibatches of an epoch, int64 global ids, where the training nodes are."""
        hashes = rng.hashes(rng.key(self.seed, rng.MINIBATCH, epoch), self.training)
        order = self.training[backend.module(hashes).argsort(hashes, kind="stable")]
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]


def check_batch_size(size: int, nodes: int) -> None:
    """Raise ArgumentError unless minibatches of this size can be made of so many training nodes."""
    if nodes == 0:
        problem = "the graph has no training nodes to make minibatches of; give it a split with some"
        raise ArgumentError("batch_size", size, problem)
    if size < 1:
        raise ArgumentError("batch_size", size, "expected a whole number of at least 1")


def at_most(name: str, numbers: Sequence[int], most: int, what: str, said: bool) -> list[int]:
    """Return the numbers of a setting, none above `most`; where one was, the log says so if it is `said`.

    what: there are so many of.
    """
    taken = [min(number, most) for number in numbers]
    if said and taken != [*numbers]:
        asked, had = (",".join(map(str, some)) for some in (numbers, taken))
        log.warning("%s=%s: taken as %s, all %s", name, asked, had, what)
    return taken


def bulk_at_most(bulk: int, turns: int, said: bool) -> int:
    """Return a bulk of no more turns than an epoch has; by default, of a few, nothing is said."""
    what = "minibatches of a rank in an epoch"
    return bulk if bulk <= BULK else at_most("bulk", [bulk], turns, what, said)[0]


def even_groups(count: int, size: int, rescale: bool) -> np.ndarray:
    """Return where groups of so many things begin and end, cut evenly: int64, groups + 1.

    There are as few groups as sizes up to `size` allow. Rescaled, a group has two or more, if need be one
    more than `size`: values between two things are divided by the chance that both are drawn, which is 0 of
    a group of one.

    Raises:
        ArgumentError: a size below 1, or of 1 where values are rescaled.
    """
    if size < 1:
        raise ArgumentError("batch_size", size, "expected a whole number of at least 1")
    if rescale and size == 1 < count:
        problem = "rescale=True needs two to be drawn together; take 2 or more, or rescale=False"
        raise ArgumentError("batch_size", size, problem)
    return partition(count, max(min(-(-count // size), count // 2 if rescale else count), 1))


class Turn(NamedTuple):
    """A step that all ranks take at once, with one minibatch each."""

    numbers: tuple[int | None, ...]  # by rank, that of its minibatch in the epoch
    updates: bool  # whether an update of the weights follows


def turns(minibatches: int, per_update: int, ranks: int) -> list[Turn]:
    """Deal the minibatches of an epoch out to the ranks, in groups of `per_update`.

    The last group has what is left. Updates do not depend on the number of ranks.
    """
    dealt_out = []
    for first in range(0, minibatches, per_update):
        group = range(first, min(first + per_update, minibatches))
        for start in range(0, len(group), ranks):
            dealt = group[start : start + ranks]
            numbers = (*dealt, *[None] * (ranks - len(dealt)))
            dealt_out.append(Turn(numbers, start + ranks >= len(group)))
    return dealt_out


def after(all_turns: list[Turn], updates: int) -> list[Turn]:
    """Return the turns that follow after so many updates."""
    ends = [number for number, turn in enumerate(all_turns, 1) if turn.updates]
    return all_turns[ends[updates - 1] if updates else 0 :]


def bulks(all_turns: list[Turn], size: int) -> Iterator[list[Turn]]:
    """Yield the turns in bulks of `size`: a rank samples the minibatches of a bulk together."""
    for first in range(0, len(all_turns), size):
        yield all_turns[first : first + size]


def training_nodes(targets: Targets) -> tuple[np.ndarray, np.ndarray]:
    """Gather positions (int64, ascending) and labels of all training nodes of the graph: int64; numbers as
    floats (rows, columns); or of several classes as rows of bits (``numpy.packbits``). Collective."""
    grid, first = targets.layout.grid, targets.layout.row_range[0]
    to_host = grid.backend.to_host
    labels = to_host(targets.train_labels)
    labels = np.packbits(labels, axis=1) if targets.loss == "binary" else labels
    own = to_host(targets.train_rows).astype(np.int64) + first, labels
    everybody = grid.along(*targets.layout.row_axes).gather_objects(own)
    nodes, counts = zip(*everybody, strict=True)
    return np.concatenate(nodes), np.concatenate(counts)


def make_sampler(settings: Settings, store: Store, order: str, grid: Grid, targets: Targets) -> Sampler:
    """Make a sampler for resolved settings. Collective."""
    whole = store.order(order)
    matrix = lambda: stored_matrix(store, whole, settings.dtype)  # noqa: E731
    parts = lambda: shared_parts(settings, whole, grid, matrix)  # noqa: E731
    graph = _graph(settings, store, order, grid)
    return sampler_on(settings, graph, lambda: training_nodes(targets)[0], parts)


def sampler_on(
    settings: Settings, graph: Graph, training: Callable[[], np.ndarray], parts: Callable[[], np.ndarray]
) -> Sampler:
    """Make the sampler on this graph.

    `training` gives the positions of the training nodes, `parts` the part of each node, where they are
    needed. Collective where one of them is.
    """
    fanout = settings.fanout or ()
    options: Any = {"seed": settings.seed, "rescale": bool(settings.rescale)}
    if settings.sampler == "sage":
        return GraphSage(graph, fanout, **options)
    if settings.sampler == "ladies":
        return Ladies(graph, fanout, importance=settings.importance or "zou", **options)
    if settings.sampler == "fastgcn":
        return FastGCN(graph, fanout, **options)
    layers = len(settings.hidden_widths) + 1
    if settings.sampler == SHADOW:
        return Shadow(graph, fanout, layers, seed=settings.seed)
    if settings.sampler == CLUSTER:
        made = Cluster(graph, layers, parts(), renormalize=bool(settings.renormalize), **options)
        made.count(training())
        return made
    saint = Saint(graph, fanout[0], layers, **options)
    saint.count(training())
    return saint


def _graph(settings: Settings, store: Store, name: str, grid: Grid) -> Graph:
    """Return the matrix to sample from: on every rank, or partitioned over the grid. Collective."""
    order = store.order(name)
    order.dtype = np.dtype(settings.dtype)
    neighbours = NETWORKS[str(settings.model)].neighbours
    given: BlockSource = neighbours_of(order, store.manifest) if neighbours else order
    if isinstance(given, RootOrder):
        if settings.partition_graph:
            problem = "a graph in memory is sampled whole on every rank; to cut it, write a store with "
            raise ArgumentError("partition_graph", True, problem + "dg.prepare")
        given = given.whole()
    if settings.partition_graph:
        return Partitioned(grid, given, order.partition, backend=grid.backend)
    if not grid.backend.on_device:
        return Replicated(given, grid=grid)
    with grid.world.together():
        return Replicated(given, backend=grid.backend)
    raise AssertionError("unreachable: together() raises")

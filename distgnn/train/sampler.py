"""The sampler that a run's settings ask for, on a stored graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError
from distgnn.nn.loss import Targets
from distgnn.nn.networks import NETWORKS
from distgnn.operators.sources import BlockSource
from distgnn.sampling.graph import Graph
from distgnn.sampling.layerwise import FastGCN, Ladies
from distgnn.sampling.sage import GraphSage
from distgnn.sampling.saint import Saint
from distgnn.sampling.sampler import Sampler
from distgnn.sampling.spgemm import Partitioned, Replicated
from distgnn.store.read.neighbours import neighbours_of
from distgnn.store.read.order import Order
from distgnn.store.read.root import RootOrder
from distgnn.store.read.store import Store
from distgnn.train.minibatch import training_nodes
from distgnn.train.settings import Settings


def make(settings: Settings, store: Store, order: str, grid: Grid, targets: Targets) -> Sampler:
    """Make a sampler for resolved settings. Collective."""
    return of(settings, _graph(settings, store, order, grid), lambda: training_nodes(targets)[0])


def of(settings: Settings, graph: Graph, training: Callable[[], np.ndarray]) -> Sampler:
    """Make the sampler on this graph.

    `training` gives the positions of the training nodes where they are needed. Collective where one of them
    is.
    """
    fanout = settings.fanout or ()
    options: Any = {"seed": settings.seed, "rescale": bool(settings.rescale)}
    if settings.sampler == "sage":
        return GraphSage(graph, fanout, **options)
    if settings.sampler == "ladies":
        return Ladies(graph, fanout, importance=settings.importance or "zou", **options)
    if settings.sampler == "fastgcn":
        return FastGCN(graph, fanout, **options)
    saint = Saint(graph, fanout[0], len(settings.hidden_widths) + 1, **options)
    saint.count(training())
    return saint


def _graph(settings: Settings, store: Store, name: str, grid: Grid) -> Graph:
    """Return the matrix to sample from: on every rank, or partitioned over the grid. Collective."""
    order = store.order(name)
    given = source(settings, store, order)
    if isinstance(given, RootOrder):
        given = _on_every_rank(given, settings)
    if settings.partition_graph:
        return Partitioned(grid, given, order.partition)
    with grid.world.together():
        return Replicated(given, backend=grid.backend)
    raise AssertionError("unreachable: together() raises")


def _on_every_rank(order: RootOrder, settings: Settings) -> BlockSource:
    """Send a graph in the memory of rank 0 to all. Collective. ArgumentError: the graph shall be cut."""
    if settings.partition_graph:
        problem = "a graph in memory is sampled whole on every rank; to cut it, write a store with dg.prepare"
        raise ArgumentError("partition_graph", True, problem)
    return order.whole()


def source(settings: Settings, store: Store, order: Order) -> BlockSource:
    """Return the source of samples, in an order that takes its dtype from the settings."""
    order.dtype = np.dtype(settings.dtype)
    neighbours = NETWORKS[str(settings.model)].neighbours
    return neighbours_of(order, store.manifest) if neighbours else order

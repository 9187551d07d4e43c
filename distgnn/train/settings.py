"""What ``train``'s flags say of minibatches: checked, with defaults resolved, and made into a sampler on a
stored graph.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from distgnn.comm.grid import Grid
from distgnn.errors import UserError
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import TRAIN, Targets
from distgnn.operators.dense import DistDense
from distgnn.operators.sources import BlockSource
from distgnn.sampling.graph import Graph
from distgnn.sampling.layerwise import FastGCN, Ladies
from distgnn.sampling.sage import GraphSage
from distgnn.sampling.saint import Saint
from distgnn.sampling.sampler import Sampler, check_fanout
from distgnn.sampling.spgemm import Partitioned, Replicated
from distgnn.store.read.neighbours import Neighbours
from distgnn.store.read.order import Order
from distgnn.store.read.store import Store
from distgnn.train.minibatch import MinibatchTraining, training_nodes
from distgnn.train.minibatches import check_batch_size

#: Minibatches per update, unless there are more ranks: up to so many ranks, training is the same on any
#: number of them.
PER_UPDATE = 8
BATCH_SIZE, BULK = 1024, 4
FANOUT = {"sage": 10, "ladies": 512, "fastgcn": 512, "saint": 512}

#: Flags that mean something for minibatches only.
FLAGS = ("fanout", "batch_size", "bulk", "batches_per_update", "partition_graph", "importance", "rescale")


class Settings:
    """Of a run with ``--sampler``.

    Args:
        args: of ``cli/train.py``. What is left to a default is filled in, so that the log says it.
        layers: of the network; ranks: of the run; training: nodes of the training split, labelled or not.

    Raises:
        UserError: flags that exclude each other, or a number that does not fit.
    """

    def __init__(self, args: argparse.Namespace, layers: int, ranks: int, training: int) -> None:
        self.args, self.layers = args, layers
        args.fanout = list(self._fanout(args.fanout))
        if args.batch_size is not None:
            check_batch_size(args.batch_size, training)
        args.bulk = args.bulk or BULK
        args.batches_per_update = args.batches_per_update or max(PER_UPDATE, ranks)
        if args.rescale is not None and args.model == "sage":
            raise UserError(
                "--rescale: is for --model gcn; the mean over sampled neighbours of --model sage is what it is"
            )
        args.rescale = None if args.model == "sage" else args.rescale is not False
        args.importance = (args.importance or "zou") if args.sampler == "ladies" else args.importance
        if args.importance and args.sampler != "ladies":
            raise UserError(f"--importance {args.importance}: is for --sampler ladies, not {args.sampler}")

    def _fanout(self, fanout: list[int] | None) -> tuple[int, ...]:
        kind = self.args.sampler
        if kind == "saint":
            if fanout is not None and len(fanout) != 1:
                shown = ",".join(map(str, fanout))
                raise UserError(
                    f"--fanout {shown}: --sampler saint draws one subgraph for all layers; give its number of nodes"
                )
            return check_fanout(fanout or [FANOUT[kind]], 1)
        return check_fanout([FANOUT[kind]] * self.layers if fanout is None else fanout, self.layers)

    def graph(self, store: Store, order: Order, grid: Grid) -> Graph:
        """The matrix of a store to sample from: on every rank, or partitioned over the grid. Collective."""
        order = store.order(order.name)
        order.dtype = np.dtype(self.args.dtype)
        source: BlockSource = (
            Neighbours(order, not store.manifest["directed"]) if self.args.model == "sage" else order
        )
        if self.args.partition_graph:
            return Partitioned(grid, source, order.partition)
        with grid.world.together():
            return Replicated(source)
        raise AssertionError("unreachable: together() raises")

    def sampler(self, graph: Graph, targets: Targets) -> Sampler:
        """Collective, where the graph is partitioned."""
        args = self.args
        if args.sampler == "sage":
            return GraphSage(graph, args.fanout, seed=args.seed, rescale=bool(args.rescale))
        if args.sampler == "ladies":
            return Ladies(
                graph, args.fanout, seed=args.seed, rescale=args.rescale, importance=args.importance
            )
        if args.sampler == "fastgcn":
            return FastGCN(graph, args.fanout, seed=args.seed, rescale=args.rescale)
        nodes = training_nodes(targets)[0]
        return Saint(graph, args.fanout[0], self.layers, seed=args.seed, rescale=args.rescale, training=nodes)

    def training(self, graph: Graph, model: GCN, X: DistDense, targets: Targets) -> MinibatchTraining:
        """Collective."""
        args, sampler = self.args, self.sampler(graph, targets)
        if args.batch_size is None:
            args.batch_size = min(BATCH_SIZE, targets.counts[TRAIN])
        return MinibatchTraining(
            model, X, targets, sampler, args.batch_size, args.batches_per_update, args.bulk, args.seed
        )

    def identity(self) -> dict[str, Any]:
        """What a run that goes on from a checkpoint must share: all but what only says who does what, and
        when.
        """
        names = ("sampler", "fanout", "batch_size", "batches_per_update", "importance", "rescale")
        return {f"--{name.replace('_', '-')}": getattr(self.args, name) for name in names}

    def describe(self) -> str:
        """In a few words."""
        args = self.args
        drawn = f"{args.sampler} {','.join(map(str, args.fanout))}"
        batches = f"minibatches of {args.batch_size}, {args.batches_per_update} per update, {args.bulk} sampled at a time"
        return f"{args.model} on {batches} by {drawn}, graph {'partitioned' if args.partition_graph else 'on every rank'}"


def resolve(args: argparse.Namespace) -> None:
    """Fill in `model` and `algorithm`, and refuse what does not go together.

    Raises:
        UserError: in one line.
    """
    if args.sampler == "none":  # which undoes what a file or the environment says
        for name in ("sampler", *FLAGS):
            setattr(args, name, None)
    kind = args.sampler
    args.model = args.model or ("sage" if kind == "sage" else "gcn")
    if args.model == "sage" and args.check:
        raise UserError(
            "--check: the serial reference is a full-graph GCN; leave it out, or train --model gcn without --sampler"
        )
    if kind is None:
        args.algorithm = args.algorithm or "1d"
        for name in FLAGS:
            if getattr(args, name) is not None and (name != "partition_graph" or args.partition_graph):
                raise UserError(
                    f"--{name.replace('_', '-')}: is for minibatches; say with --sampler how to make them"
                )
        return
    args.algorithm = args.algorithm or "1.5d"
    if args.grid is None and args.replication is None:
        args.replication = 1
    if args.algorithm != "1.5d":
        raise UserError(
            f"--algorithm {args.algorithm}: excludes --sampler {kind}; minibatches take features from block rows of 1.5d, which "
            "with --replication 1 is 1d"
        )
    if args.check:
        raise UserError(
            f"--sampler {kind}: excludes --check, whose serial reference trains on the whole graph"
        )
    if args.train_features:
        raise UserError(
            f"--sampler {kind}: excludes --train-features; minibatches read features and do not change them"
        )
    if args.model == "sage" and kind != "sage":
        raise UserError(
            f"--model sage: needs every vertex's own features, which only --sampler sage keeps, not {kind}"
        )

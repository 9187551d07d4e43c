"""Training on induced subgraphs of drawn vertices, by any distributed algorithm.

All ranks work on one subgraph at a time, as they do on the whole graph (ScaleGNN, Wei et al., arXiv
2604.02651). Each draws its vertices alone, from the seed and the number of the step, and extracts what it
holds of them: adjacency, features and labels stay where they are.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from distgnn import rng
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError, check_type
from distgnn.layout import Layout
from distgnn.nn.buffers import LayerGraph
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import LossRows, Targets
from distgnn.nn.optim import Optimizer
from distgnn.operators.dense import DistDense
from distgnn.operators.induced import Subgraphs, dissolve
from distgnn.operators.moves import told
from distgnn.operators.operator import DistSparse
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.operators.weights import Features
from distgnn.sampling.fetch import picked
from distgnn.sampling.ids import Ids
from distgnn.split import TRAIN
from distgnn.train.full_graph import update
from distgnn.train.minibatch import MinibatchTraining, StepClock
from distgnn.train.minibatches import Turn, even_groups, training_nodes
from distgnn.train.settings import Settings

Array = Any


class Vertices:
    """The vertices of every step: all nodes in an order by (seed, epoch, node id), cut evenly.

    Each node is in one step of an epoch; how many a step has, :func:`even_groups` says. The vertices of a
    step are a uniform draw without replacement, whatever the order of the graph and the ranks.

    Args:
        ids: of the nodes by position; size: vertices of a step; rescale: whether values are rescaled, for
            which a step has several.

    Memory: 24 bytes per node while an epoch is drawn; 4 between epochs where the graph has an order.

    Raises:
        ArgumentError: a size below 1, or of 1 where values are rescaled.
    """

    def __init__(self, ids: Ids, size: int, seed: int = 0, rescale: bool = False) -> None:
        self.ids, self.seed, self.bounds = ids, seed, even_groups(ids.n, size, rescale)

    def __len__(self) -> int:
        """Count the steps of an epoch."""
        return len(self.bounds) - 1

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Draw the vertices of each step of an epoch: positions in the graph's order, rising, int64."""
        nodes = self.ids.at(np.arange(self.ids.n))
        hashes = rng.hashes(rng.key(self.seed, rng.MINIBATCH, epoch), nodes)
        return [np.sort(part) for part in np.split(np.argsort(hashes, kind="stable"), self.bounds[1:-1])]


class VertexTraining(MinibatchTraining):
    """A network, its features and labels, and the vertices on whose induced subgraphs it is trained.

    Collective, as all its methods are. Of n nodes s are drawn in a step, of which the same operator, features
    and labels remain. With ``rescale``, entry (u, v) off the diagonal is divided by (s - 1) / (n - 1), the
    inclusion of v given u, and the loss of u by s / n, that of u. The expected value of Σ_u loss weight_u
    (A H)_u over a step is then that over the graph, for one layer, and the loss stands for the mean over all
    training nodes. Without, it is the mean over those that were drawn.

    Args:
        model: on any algorithm that sends whole blocks.
        X: features in `model.input_layout`, dense or sparse; targets: made by `model`.
        size: vertices of a step at most; see :class:`Vertices`.
        seed: of the vertices.

    Attributes:
        losses: of each step of the last epoch, before its update.

    Cost of a step, in words: that of the network's products on the subgraph; operators of the subgraph are
    made with a few collectives of counts.

    Raises:
        ArgumentError: no training nodes, a size that :class:`Vertices` refuses, or a matrix that sends needed
            rows; or ranks disagree in numbers (on every rank).
        ValueError: features or targets whose nodes are in another order than the network's.
    """

    def __init__(
        self, model: GCN, X: Features, targets: Targets, size: int, seed: int = 0, rescale: bool = True
    ) -> None:
        check_type("model", model.adjacency, DistSparse, "a network on a distributed matrix")
        order = model.input_layout.rows.order
        for what, given in {"features": X.layout.rows.order, "targets": targets.layout.rows.order}.items():
            if given != order:
                raise ValueError(f"the nodes of {what} are in another order than the network's")
        self.model, self.X, self.targets, self.rescale = model, X, targets, rescale
        self.grid: Grid = model.grid
        self.n = model.A.shape[0]
        self.grid.world.agree({"batch_size": size, "seed": seed, "rescale": rescale})
        if targets.counts[TRAIN] == 0:
            problem = "the graph has no training nodes; give it a split with some"
            raise ArgumentError("batch_size", size, problem)
        with self.grid.world.together():
            self.vertices = Vertices(Ids(self.n, order), size, seed, rescale)
        self.training = np.zeros(self.n, bool)
        self.training[training_nodes(targets)[0]] = True
        self.subgraphs = Subgraphs(model.adjacency, len(model.layers))  # type: ignore[arg-type]
        self.turns = [Turn((), True)] * len(self.vertices)
        self.clock, self.losses = StepClock(self.grid.backend), list[float]()
        to_host = self.grid.backend.to_host
        self.train_rows, self.train_labels = to_host(targets.train_rows), targets.train_labels

    @classmethod
    def of(cls, s: Settings, model: GCN, X: Features, targets: Targets) -> VertexTraining:
        """Make the training of settings whose batch size is known. Collective."""
        return cls(model, X, targets, int(s.batch_size or 0), s.seed, bool(s.rescale))

    def updates(self, optimizer: Optimizer, epoch: int, made: int = 0) -> Generator[list[float], None, None]:
        step, drawn = self.clock.step, self.vertices.epoch(epoch)
        self.clock.spans.clear()
        for number, nodes in enumerate(drawn[made:], made):
            counted = self.targets.counts[TRAIN] if self.rescale else int(self.training[nodes].sum())
            loss = 0.0
            if counted:
                key = (epoch - 1) * len(drawn) + number + 1
                loss, gradients = self.gradients(nodes, key)
                if not np.isfinite(loss):
                    raise self.model.not_finite(self.X, f"the loss is {loss}")
                with step("update"):
                    update(optimizer, self.model.parameters, gradients)
            yield [loss * counted, counted]

    def gradients(self, nodes: np.ndarray, key: int) -> tuple[float, list[Array]]:
        """Compute the loss on the subgraph of these positions, and its gradients by `model.parameters`.

        Collective. `key`: number of the step in the whole run, on which dropout's masks depend.
        """
        step, A = self.clock.step, None
        graphs: list[LayerGraph] = []
        try:
            with step("sampling"):
                A = self.subgraphs.of(nodes, self.inclusion(nodes.size))
                graphs = self._graphs(A, nodes)
            with step("fetching"), told(self.grid):
                X = self._features(graphs[0].A.input_layout, nodes)
                targets = self._targets(nodes)
            with step("propagation"):
                return self.model.minibatch_gradients(graphs, X, targets, key)
        finally:
            dissolve([A, *(graph.A for graph in graphs)])

    def inclusion(self, size: int) -> float:
        """Return the probability of a vertex beside another one among so many; 1 without rescaling."""
        return (size - 1) / (self.n - 1) if self.rescale and 1 < size < self.n else 1.0

    def _graphs(self, A: DistSparse, nodes: np.ndarray) -> list[LayerGraph]:
        """Make the operator of each layer. Collective."""
        model, made = self.model, []
        whole = model.operator(A, model.layers[0].options.product_order)
        for layer, graph in enumerate(model.graphs):
            own = whole.layer(layer)
            own.weights.forms = graph.A.weights.forms
            rows = self._own(graph.A.input_layout, nodes)
            made.append(LayerGraph(own, graph.nodes[self.grid.backend.asarray(rows)]))
        return made

    def _own(self, layout: Layout, nodes: np.ndarray) -> np.ndarray:
        """Return which of this rank's rows are drawn: local numbers, rising."""
        first, last = layout.rows.range(self.grid, self.n)
        return nodes[slice(*np.searchsorted(nodes, (first, last)))] - first

    def _features(self, layout: Layout, nodes: np.ndarray) -> Features:
        """Take the drawn rows of the features, into memory of the workspace where they are dense."""
        X = self.X
        block = picked(X.block, self._own(X.layout, nodes), self.grid)
        kind = SparseFeatures if isinstance(X, SparseFeatures) else DistDense
        return kind(block, layout, (nodes.size, X.shape[1]))

    def _targets(self, nodes: np.ndarray) -> LossRows:
        """Take the labels of the drawn training nodes."""
        on, own = self.grid.backend, self._own(self.targets.layout, nodes)
        rows = np.flatnonzero(np.isin(own, self.train_rows, assume_unique=True))
        labels = self.train_labels[on.asarray(np.searchsorted(self.train_rows, own[rows]))]
        if not self.rescale:
            return LossRows(on.asarray(rows), labels, int(self.training[nodes].sum()))
        weights = on.xp.full(rows.size, self.n / nodes.size, self.model.A.dtype)
        return LossRows(on.asarray(rows), labels, self.targets.counts[TRAIN], weights)

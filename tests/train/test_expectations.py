"""Expected gradients: over all minibatches, each update of an epoch has that of the full graph.

One layer with weights of 0: the gradient of the loss by the logits does not depend on the sample then, and
that by the weights, (A H)ᵀ G, is linear in A, so that no bias is allowed, however few nodes, parts or
minibatches the last batch and the last update have.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.errors import ArgumentError
from distgnn.nn import GCN, SGD
from distgnn.operators import make_grid
from distgnn.sampling import Cluster, FastGCN, GraphSage, Ladies, Partitioned, Replicated, Saint, Shadow
from distgnn.sampling.ids import Ids
from distgnn.train import MinibatchTraining, VertexTraining
from distgnn.train.minibatch import GradientSums
from distgnn.train.minibatches import even_groups
from distgnn.train.part_batches import PartBatches
from distgnn.train.vertices import Vertices
from loops import each
from sampling.exact import assert_mean

N, WIDTH, CLASSES, EPOCHS = 9, 2, 3, 400
r = np.random.default_rng(12)
DENSE = np.where(r.random((N, N)) < 0.5, r.uniform(0.3, 1, (N, N)), 0) + np.eye(N)
A, X = sp.csr_array(DENSE), r.uniform(0.5, 1.5, (N, WIDTH))
PART = np.array([0, 1, 2, 3, 4, 4, 2, 0, 1])
SPLIT = np.array([1, 1, 2, 1, 1, 3, 1, 1, 1], np.uint8)
TRAINING = np.flatnonzero(SPLIT == 1)  # 7: minibatches of 3, 3, 1
LABELS: dict[str, np.ndarray] = {
    "softmax": r.integers(0, CLASSES, N).astype(np.int32),
    "binary": r.integers(0, 2, (N, CLASSES)).astype(np.int32),
    "mse": r.standard_normal((N, CLASSES)),
}
SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "sage": lambda G: GraphSage(G, [2], rescale=True),
    "ladies": lambda G: Ladies(G, [3]),
    "fastgcn": lambda G: FastGCN(G, [4]),
    "saint": lambda G: Saint(G, 6, 1, training=TRAINING),
    "cluster": lambda G: Cluster(G, 1, PART, training=TRAINING, rescale=True),
    "shadow of all": lambda G: Shadow(G, [N], 1),
}


def expected(loss: str) -> np.ndarray:
    """Return the gradient of the mean loss by the weights and, below, the bias, where both are 0."""
    labels = LABELS[loss]
    G = {
        "softmax": lambda: 1 / CLASSES - np.eye(CLASSES)[labels],
        "binary": lambda: (0.5 - labels) / CLASSES,
        "mse": lambda: -2 * labels / CLASSES,
    }[loss]()
    G = G * (SPLIT == 1)[:, None] / len(TRAINING)
    return np.vstack(((DENSE @ X).T @ G, G.sum(axis=0)))


def network(grid: Any, loss: str, algorithm: str = "1.5d") -> tuple[GCN, Any, Any]:
    model = GCN(dg.distribute(A, grid, algorithm), [WIDTH, CLASSES], bias=True)
    cleared(model)
    return model, dg.scatter(X, model.input_layout), model.targets(LABELS[loss], SPLIT)


def cleared(model: GCN) -> None:
    for parameter in model.parameters:
        parameter.block[...] = 0


def updates(comm: Any, name: str, loss: str, epochs: int) -> np.ndarray:
    """Return the gradients of two updates of every epoch: (epochs, 2, WIDTH + 1, CLASSES).

    Minibatches of 3, 3 and 1 nodes, two of them an update, or of 3 and 2 parts; on several ranks the graph
    is cut.
    """
    grid, rows = make_grid(comm, "1.5d"), list[list[np.ndarray]]()
    sampler = SAMPLERS[name](Partitioned(grid, A) if comm.size > 1 else Replicated(A))
    size, per_update = (2, 1) if name == "cluster" else (3, 2)
    training = MinibatchTraining(*network(grid, loss), sampler, size, per_update)
    for epoch in range(1, epochs + 1):
        rows.append([])
        for _ in training.updates(SGD(1.0), epoch):
            rows[-1].append(-np.vstack((training.model.get_weights()[0], training.model.get_biases()[0])))
            cleared(training.model)
    grid.free()
    return np.array(rows)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.slow
def test_both_updates_of_an_epoch_are_expected_to_be_that_of_the_graph(comm: Any, name: str) -> None:
    loss = [*LABELS][[*SAMPLERS].index(name) % 3]
    gradients = updates(comm, name, loss, EPOCHS)
    assert gradients.shape == (EPOCHS, 2, WIDTH + 1, CLASSES)
    for update in (0, 1):
        assert_mean(gradients[:, update], expected(loss))


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", SAMPLERS)
def test_updates_do_not_depend_on_ranks(comm: Any, name: str) -> None:
    """With uneven minibatches and updates, and more ranks than minibatches of an update."""
    alone = comm.bcast(updates(MPI.COMM_SELF, name, "binary", 2) if comm.rank == 0 else None)
    np.testing.assert_allclose(updates(comm, name, "binary", 2), alone, rtol=1e-9, atol=1e-12)


# -- exactly, over all that may be drawn --


@each("loss", LABELS)
def test_all_choices_of_parts_of_every_size_of_an_epoch(loss: str) -> None:
    """The mean over them is the gradient of the graph, for every number of parts that a minibatch has."""
    grid = make_grid(MPI.COMM_SELF, "1.5d")
    model, features, targets = network(grid, loss)
    sampler = SAMPLERS["cluster"](Replicated(A))
    for size in (2, 3, 4, 5, 6):
        training = MinibatchTraining(model, features, targets, sampler, size, 1)
        for count in np.unique(np.diff(training.minibatches.bounds)):
            sums = GradientSums(model)
            for parts in combinations(range(5), count):
                (sample,) = sampler.sample_at([np.flatnonzero(np.isin(PART, parts))])
                training.propagate(sample, training.features.borrow(sample.inputs), 1, sums)
            of_mean = np.vstack([np.atleast_2d(gradient) for gradient in sums.gradients]) / sums.nodes
            np.testing.assert_allclose(of_mean, expected(loss), rtol=1e-9, atol=1e-12)
    grid.free()


@pytest.mark.ranks(1, 4)
def test_all_choices_of_vertices_of_every_size_of_an_epoch(comm: Any) -> None:
    """The mean over them is the gradient of the graph, for every number of vertices that a step has."""
    grid = wide_grid(comm, "2d")
    for loss, size, sizes in (("softmax", 2, {2, 3}), ("mse", 3, {3}), ("binary", 8, {4, 5})):
        model, features, targets = network(grid, loss, "2d")
        training = VertexTraining(model, features, targets, size)
        assert set(np.diff(training.vertices.bounds)) == sizes
        for count in sizes:
            all_of_them = [np.array(nodes) for nodes in combinations(range(N), count)]
            drawn = [training.gradients(nodes, 1)[1] for nodes in all_of_them]
            for parameter, gradient in zip(model.parameters, map(sum, zip(*drawn, strict=True)), strict=True):
                parameter.block[...] = gradient / len(drawn)
            of_mean = np.vstack((model.get_weights()[0], model.get_biases()[0]))
            np.testing.assert_allclose(of_mean, expected(loss), rtol=1e-9, atol=1e-12)
            cleared(model)
    grid.free()


@each("count", range(41))
@each("size", [1, 2, 3, 7, 40, 50])
def test_groups_are_even_and_none_is_alone_where_values_are_rescaled(count: int, size: int) -> None:
    plain = np.diff(even_groups(count, size, False))
    assert plain.sum() == count and len(plain) == max(-(-count // size), 1) and np.ptp(plain) <= 1
    if size == 1 < count:
        with pytest.raises(ArgumentError, match="^batch_size=1: rescale=True needs two .*; take 2 or more"):
            even_groups(count, size, True)
        return
    groups = np.diff(even_groups(count, size, True))
    assert groups.sum() == count and np.ptp(groups) <= 1 and groups.min() >= min(count, 2)
    assert groups.max() <= max(size, 3 if count % 2 else 2) and abs(len(groups) - len(plain)) <= 1


def test_one_at_a_time_is_refused_where_values_are_rescaled() -> None:
    for make in (
        lambda rescale: PartBatches(PART, TRAINING, 1, rescale=rescale),
        lambda rescale: Vertices(Ids(N, None), 1, rescale=rescale),
        lambda rescale: Saint(Replicated(A), 1, 2, rescale=rescale),
    ):
        make(False)
        with pytest.raises(ArgumentError, match="=1: rescale=True needs two to be drawn together"):
            make(True)
    assert len(Vertices(Ids(1, None), 1, rescale=True)) == 1  # of one node all is there

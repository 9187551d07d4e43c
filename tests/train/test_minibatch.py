"""Minibatch training: with samples that leave nothing out it is full-graph training, and it does not depend
on ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.errors import DisagreementError
from distgnn.nn import GCN, SGD, Adam, SageMean
from distgnn.operators import grids, make_grid
from distgnn.sampling import FastGCN, GraphSage, Ladies, Partitioned, Replicated, Saint
from distgnn.train import Minibatches, MinibatchTraining, train
from distgnn.train.minibatch import STEPS
from oracle import GCNReference

N, WIDTH, CLASSES = 41, 6, 3
SAMPLERS = ("sage", "sage-mean", "ladies", "fastgcn", "saint")


def problem() -> tuple[sp.csr_array, np.ndarray, np.ndarray, np.ndarray]:
    """Make a directed graph whose vertices all have a loop and in-edges, and its features, labels and split.

    One training node has no label.
    """
    r = np.random.default_rng(3)
    A = sp.csr_array(np.where(r.random((N, N)) < 0.15, r.uniform(0.1, 1, (N, N)), 0) + np.eye(N))
    labels, split = r.integers(0, CLASSES, N).astype(np.int32), r.integers(0, 4, N).astype(np.uint8)
    labels[np.flatnonzero(split == 1)[1]] = -1
    return A, r.standard_normal((N, WIDTH)), labels, split


A, X, LABELS, SPLIT = problem()
TRAINING = np.flatnonzero((SPLIT == 1) & (LABELS >= 0))
PATTERN = sp.csr_array((A.toarray() != 0) & ~np.eye(N, dtype=bool)).astype(np.float64)


def network(grid: dg.Grid, sampler: str, **options: Any) -> tuple[GCN, Any, Any]:
    mean = sampler == "sage-mean"
    operator = dg.distribute(PATTERN if mean else A, grid, "1.5d")
    model = (SageMean if mean else GCN)(operator, [WIDTH, 5, CLASSES], **options)
    targets = model.targets(LABELS, SPLIT)
    return model, dg.scatter(X, model.input_layout), targets


def make_sampler(grid: dg.Grid, name: str, partitioned: bool, sizes: list[int]) -> Any:
    matrix = PATTERN if name == "sage-mean" else A
    on = {"backend": grid.backend}
    graph = Partitioned(grid, matrix, entries=50, **on) if partitioned else Replicated(matrix, **on)
    if name.startswith("sage"):
        return GraphSage(graph, sizes, rescale=name == "sage")
    if name == "saint":
        return Saint(graph, sizes[0], len(sizes), training=TRAINING)
    return {"ladies": Ladies, "fastgcn": FastGCN}[name](graph, sizes)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.slow
def test_samples_of_everything_give_full_graph_training(
    comm: MPI.Intracomm, name: str, partitioned: bool, backend: Any
) -> None:
    """One minibatch of all nodes and all neighbours: the same losses, with dropout and biases."""
    grid = wide_grid(comm, "1.5d", backend)
    options = {"dropout": 0.3, "bias": True, "seed": 4}
    model, features, targets = network(grid, name, **options)
    expected = [record["loss"] for record in train(model, features, targets, Adam(0.05), 3)]
    model, features, targets = network(grid, name, **options)
    sampler = make_sampler(grid, name, partitioned, [N, N])
    training = MinibatchTraining(model, features, targets, sampler, len(TRAINING), 1)
    records = list(training.train(Adam(0.05), 3))
    np.testing.assert_allclose([record["loss"] for record in records], expected, rtol=1e-9)
    assert expected[2] != expected[0] and {"train_acc", "val_acc", "test_acc"} < set(records[0])
    assert set(records[0]["steps"]) == set(STEPS)
    grid.free()


@pytest.mark.ranks(1, 3)
def test_every_update_is_a_step_with_its_own_minibatches(comm: MPI.Intracomm, backend: Any) -> None:
    """Against the serial reference's gradients over the nodes of two minibatches at a time, in the order of
    each epoch.
    """
    grid = wide_grid(comm, "1.5d", backend)
    model, features, targets = network(grid, "sage")
    sampler = make_sampler(grid, "sage", False, [N, N])
    training = MinibatchTraining(model, features, targets, sampler, 2, 2, bulk=2, seed=6)
    found = [record["loss"] for record in training.train(SGD(0.3), 3, eval_every=0)]
    reference = GCNReference(A, [WIDTH, 5, CLASSES], dtype=np.float64)
    for epoch, loss in enumerate(found, 1):
        batches, total = Minibatches(TRAINING, 2, seed=6).epoch(epoch), 0.0
        assert len(batches) > 4
        for first in range(0, len(batches), 2):
            nodes = np.concatenate(batches[first : first + 2])
            mean, gradients, _, _ = reference.gradients(X, LABELS, nodes, features=False)
            total += mean * len(nodes)
            for W, gradient in zip(reference.weights, gradients, strict=True):
                W -= 0.3 * gradient
        assert loss == pytest.approx(total / len(TRAINING), rel=1e-9)
    for ours, theirs in zip(model.get_weights(), reference.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    grid.free()


@pytest.mark.ranks(2)
def test_minibatches_that_disagree(comm: MPI.Intracomm, backend: Any) -> None:
    grid = wide_grid(comm, "1.5d", backend)
    given = network(grid, "sage")
    for named, seed, size in (("the sampler's seed", comm.rank, 2), ("batch_size", 0, 2 + comm.rank)):
        sampler = GraphSage(Replicated(PATTERN), [4, 3], seed=seed)
        with pytest.raises(DisagreementError, match=f"ranks disagree: {named} is "):
            MinibatchTraining(*given, sampler, size, 2)
    grid.free()


def losses(
    comm: MPI.Intracomm, backend: Any, name: str, partitioned: bool, bulk: int, sizes: Any = None
) -> list[float]:
    grid = make_grid(comm, "1.5d", sizes, backend=backend)
    model, features, targets = network(grid, name, dropout=0.2)
    training = MinibatchTraining(
        model, features, targets, make_sampler(grid, name, partitioned, [4, 3]), 3, 3, bulk
    )
    found = [record["loss"] for record in training.train(Adam(0.05), 3, eval_every=0)]
    weights = model.get_weights()
    grid.free()
    return [*found, *(float(np.abs(W).sum()) for W in weights)]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.slow
def test_training_does_not_depend_on_ranks_bulks_or_where_the_graph_is(
    comm: MPI.Intracomm, name: str, backend: Any
) -> None:
    """Losses and weights of one rank, with fewer minibatches per update than ranks, or none that divides
    them.
    """
    alone = comm.bcast(losses(MPI.COMM_SELF, backend, name, False, 1) if comm.rank == 0 else None)
    for number, sizes in enumerate(grids("1.5d", comm.size)):
        found = losses(comm, backend, name, number % 2 == 0, 1 + 2 * number, sizes)
        np.testing.assert_allclose(found, alone, rtol=1e-9)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", ["sage", "ladies"])
def test_training_on_a_graph_in_parts_where_the_network_is(
    comm: MPI.Intracomm, name: str, backend: Any
) -> None:
    """The losses and weights of the graph as a whole on the host."""
    found = losses(comm, backend, name, True, 2)
    np.testing.assert_allclose(found, losses(comm, "numpy", name, False, 1), rtol=1e-9)


@pytest.mark.ranks(4)
@pytest.mark.slow
def test_process_rows_need_not_be_of_consecutive_ranks(comm: MPI.Intracomm, backend: Any) -> None:
    """Block rows of the graph and of the features follow from the places of ranks in the grid."""
    near, far = (
        losses(comm, backend, "ladies", True, 2, dict.fromkeys(axes, 2))
        for axes in (("rows", "reps"), ("reps", "rows"))
    )
    np.testing.assert_allclose(near, far, rtol=1e-9)


@pytest.mark.ranks(1, 3)
def test_words_of_an_update_are_those_of_its_all_reduce(comm: MPI.Intracomm, backend: Any) -> None:
    """Without communication for features and graph, which one copy of everything per rank has none of."""
    sizes = {"rows": 1, "reps": 1} if comm.size == 1 else None
    grid = make_grid(comm, "1.5d", sizes, backend=backend)
    model, features, targets = network(grid, "sage-mean")
    training = MinibatchTraining(
        model, features, targets, make_sampler(grid, "sage-mean", False, [3, 3]), 4, 2
    )
    with dg.Ledger() as counted:
        list(training.train(Adam(0.05), 1, eval_every=0))
    updates = sum(turn.updates for turn in training.turns)
    numbers = sum(W.block.size for W in (layer.W for layer in model.layers)) + 2
    summed = sum(entry["words"] for entry in counted.entries() if entry["operation"] == "allreduce")
    assert summed == round(updates * 2 * (comm.size - 1) / comm.size * numbers)
    grid.free()


@pytest.mark.ranks(2)
def test_graph_sage_needs_its_own_features_first(comm: MPI.Intracomm, backend: Any) -> None:
    grid = wide_grid(comm, "1.5d", backend)
    model, features, targets = network(grid, "sage-mean")
    with pytest.raises(ValueError, match="where Ladies has others"):
        MinibatchTraining(model, features, targets, Ladies(Replicated(PATTERN), [4, 3]), 4, 2)
    grid.free()


def test_losses_of_saint_leave_out_whom_nobody_gathers_from() -> None:
    """Vertex 2 has no out-edge and no loop: it cannot be drawn, so it does not count."""
    A = sp.csr_array(np.array([[1.0, 1, 0], [1, 1, 0], [1, 0, 0]]))
    (sample,) = Saint(Replicated(A), 3, 1, training=np.array([1, 2])).sample([np.array([1])])
    assert sample.batch.tolist() == [1] and sample.population == 1
    assert Saint(Replicated(A), 3, 1, rescale=False).sample([np.array([1])])[0].population is None


@pytest.mark.ranks(1, 2)
def test_minibatches_leave_the_kept_aggregate_alone(comm: MPI.Intracomm, backend: Any) -> None:
    """Evaluation multiplies A by the features once; blocks of minibatches are never kept."""
    grid = wide_grid(comm, "1.5d", backend)
    model, features, targets = network(grid, "sage-mean")
    sampler = make_sampler(grid, "sage-mean", False, [3, 3])
    epochs = MinibatchTraining(model, features, targets, sampler, 4, 2).train(Adam(0.05), 3)
    next(epochs)
    kept = model.layers[0].fixed.kept
    assert kept is not None and kept[1]() is features.block
    list(epochs)
    assert model.layers[0].fixed.kept is kept
    grid.free()


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("name", ["sage-mean", "saint"])
def test_minibatches_give_back_all_that_they_borrow(comm: MPI.Intracomm, name: str, backend: Any) -> None:
    """Layer 0 drops in the memory that features were fetched into: later epochs ask for no more."""
    grid = wide_grid(comm, "1.5d", backend)
    model, features, targets = network(grid, name, dropout=0.3, bias=True)
    sampler = make_sampler(grid, name, False, [4, 3])
    for _ in MinibatchTraining(model, features, targets, sampler, 4, 2).train(Adam(0.05), 3):
        assert not grid.workspace._lent
    grid.free()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)
def test_a_graph_on_a_gpu_needs_a_network_there(comm: MPI.Intracomm, stand_in: Any) -> None:
    model, features, targets = network(make_grid(comm, "1.5d", backend="numpy"), "ladies")
    sampler = Ladies(Replicated(A, backend="cupy"), [3, 3])
    with pytest.raises(ValueError, match="the sampler's graph is on a GPU and the network is not"):
        MinibatchTraining(model, features, targets, sampler, 4, 1)

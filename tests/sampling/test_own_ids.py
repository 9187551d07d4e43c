"""Samplers and fetched features of a stored order take and give node ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from chosen_grids import wide_grid
from distgnn.nn import GCN
from distgnn.operators import grids, make_grid
from distgnn.sampling import FastGCN, Features, GraphSage, Ladies, Partitioned, Replicated, Saint
from distgnn.train import MinibatchTraining

from ..operators.orders import Permuted

N = 40
R = np.random.default_rng(0)
A = sp.csr_array(np.where(R.random((N, N)) < 0.15, R.uniform(0.1, 1, (N, N)), 0) + np.eye(N))
X, ORDER = R.standard_normal((N, 3)), R.permutation(N)
BATCHES = [[3, 14, 15], np.array([9, 2, 6], np.int32), []]
TRAINING = np.arange(0, N, 3)


def samplers(graph: Any) -> list[Any]:
    """Make samplers that leave no vertex out and change no value."""
    kept = {"rescale": False}
    few = Saint(graph, N, 2, training=TRAINING, **kept)
    return [GraphSage(graph, [N, N]), Ladies(graph, [N, N], **kept), FastGCN(graph, [N, N], **kept), few]


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_blocks_and_features_are_by_node(comm: Any, backend: Any) -> None:
    for sizes in grids("1.5d", comm.size):
        grid = make_grid(comm, "1.5d", sizes, backend=backend)
        H = dg.scatter(X, dg.distribute(Permuted(A, ORDER), grid, "1.5d").input_layout)
        features = Features(H)
        for graph in (Replicated(Permuted(A, ORDER)), Partitioned(grid, Permuted(A, ORDER))):
            for sampler in samplers(graph):
                saint = isinstance(sampler, Saint)
                for batch, sample in zip(BATCHES, sampler.sample(BATCHES, epoch=1), strict=True):
                    assert sorted(sample.batch) == (TRAINING.tolist() if saint else sorted(batch))
                    for block in sample.blocks:
                        expected = A.toarray()[block.rows][:, block.cols]
                        np.testing.assert_allclose(block.A.toarray(), expected)
                    H0 = backend.to_host(features.fetch(sample.inputs))
                    np.testing.assert_array_equal(H0, X[sample.inputs])
                    np.testing.assert_allclose(sample.blocks[0].A @ H0, (A @ X)[sample.blocks[0].rows])
        grid.free()


def test_positions_give_the_same_samples() -> None:
    """Loops over minibatches draw positions, without a look at the order."""
    for by_id, by_position in zip(
        samplers(Replicated(Permuted(A, ORDER))), samplers(Replicated(A[ORDER][:, ORDER])), strict=True
    ):
        ids = [ORDER[:4], ORDER[7:9]]
        if isinstance(by_position, Saint):
            by_position.count(np.flatnonzero(np.isin(ORDER, TRAINING)))
        for one, other in zip(by_id.sample(ids), by_position.sample([range(4), [7, 8]]), strict=True):
            np.testing.assert_array_equal(one.batch, ORDER[other.batch])
            np.testing.assert_array_equal(one.inputs, ORDER[other.inputs])
            for a, b in zip(one.blocks, other.blocks, strict=True):
                np.testing.assert_array_equal(a.A.toarray(), b.A.toarray())


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    ("batch", "complaint"),
    [([N], f"no node {N}: there are {N}"), ([0.5], "list of integers"), (1, "are a list of such lists")],
)
def test_ids_that_are_none_are_refused_on_all_ranks(comm: Any, batch: Any, complaint: str) -> None:
    grid = wide_grid(comm, "1.5d", "numpy")
    for graph in (Replicated(A), Partitioned(grid, Permuted(A, ORDER))):
        sampler = GraphSage(graph, [2])
        bad = comm.rank == comm.size - 1 or not graph.collective
        with pytest.raises((ValueError, RuntimeError), match=complaint):
            sampler.sample([batch if bad else [1]])
        assert len(sampler.sample([[1]])) == 1  # still in step
    grid.free()


def test_two_orders_are_refused() -> None:
    with pytest.raises(
        ValueError, match="rows and columns of a graph to sample from must be in the same order"
    ):
        Replicated(Permuted(A, ORDER, ORDER[::-1]))


@pytest.mark.ranks(1, 2)
def test_minibatches_of_another_order_are_refused(comm: Any) -> None:
    grid = make_grid(comm, "1.5d", {"reps": 1}, backend="numpy")
    operators = [dg.distribute(matrix, grid, "1.5d") for matrix in (Permuted(A, ORDER), A)]
    model, other = (GCN(operator, [3, 2]) for operator in operators)
    H, targets = dg.scatter(X, model.input_layout), model.targets(np.arange(N) % 2, np.ones(N, np.uint8))
    ours, theirs = (GraphSage(Replicated(matrix), [2]) for matrix in (Permuted(A, ORDER), A))
    MinibatchTraining(model, H, targets, ours, 4, 2)
    for what, *given in (
        ("the sampler's graph", H, targets, theirs),
        ("features", dg.scatter(X, other.input_layout), targets, ours),
        ("targets", H, other.targets(np.arange(N) % 2, np.ones(N, np.uint8)), ours),
    ):
        with pytest.raises(ValueError, match=f"the nodes of {what} are in another order than the network's"):
            MinibatchTraining(model, *given, 4, 2)
    grid.free()

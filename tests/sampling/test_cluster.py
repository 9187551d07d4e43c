"""Cluster-GCN: the subgraphs of parts, exact expectations, and which parts an epoch has."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import UserError
from distgnn.sampling import Cluster, Replicated
from distgnn.train.part_batches import PartBatches
from sampling.exact import LEVEL, p_value

N = 40
r = np.random.default_rng(4)
DENSE = np.where(r.random((N, N)) < 0.2, r.uniform(0.1, 2, (N, N)), 0) + np.eye(N)
A = sp.csr_array(DENSE)
PART = r.integers(0, 6, N)
PART[PART == 2] = 3  # part 2 is empty
TRAINING = r.choice(N, 15, replace=False)


def vertices(*parts: int) -> np.ndarray:
    return np.flatnonzero(np.isin(PART, parts))


def test_a_block_has_all_edges_between_its_parts_and_training_nodes_first() -> None:
    sampler = Cluster(Replicated(A), 3, PART, training=TRAINING, renormalize=False)
    batches = [vertices(0, 4), vertices(1), vertices(0, 1, 3, 4, 5), np.empty(0, np.int64)]
    for sample, batch in zip(sampler.sample(batches), batches, strict=True):
        assert np.array_equal(np.sort(sample.inputs), batch) and len(sample.blocks) == 3
        assert np.array_equal(np.sort(sample.batch), np.intersect1d(batch, TRAINING))
        for block in sample.blocks:
            assert np.array_equal(block.cols[: len(block.rows)], block.rows)
            assert np.array_equal(block.A.toarray(), A.toarray()[np.ix_(block.rows, block.cols)])
        assert all(len(block.rows) == len(batch) for block in sample.blocks[:2])
        assert np.array_equal(sample.blocks[-1].rows, sample.batch) and sample.loss_weights is None


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_rescaled_estimate_has_no_bias(count: int) -> None:
    """The mean over all choices of parts of Σ_u loss weight_u (A H)_u is that over the graph, exactly."""
    sampler = Cluster(Replicated(A), 1, PART, training=TRAINING, rescale=True)
    H = r.standard_normal((N, 2))
    drawn = sampler.sample([vertices(*parts) for parts in combinations((0, 1, 3, 4, 5), count)])
    assert {sample.population for sample in drawn} == {len(TRAINING)}
    sums = [sample.loss_weights @ (sample.blocks[0].A @ H[sample.inputs]) for sample in drawn]
    np.testing.assert_allclose(np.mean(sums, axis=0), (A @ H)[TRAINING].sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_renormalized_rows_add_up_as_on_the_graph(dtype: type, backend: Any) -> None:
    """In a bulk: one part, two, all and none; rows that are empty, all zeros, or of both signs."""
    B = np.array(DENSE * r.choice([1, 1, -1], (N, N)), dtype)
    B[3] = B[:, 3] = 0
    edges = sp.csr_array(B)
    edges.data[edges.indptr[5] : edges.indptr[6]] = 0
    sums = abs(edges).sum(axis=1)
    sampler = Cluster(Replicated(edges, backend=backend), 2, PART, training=TRAINING)
    batches = [vertices(1), vertices(0, 4), np.arange(N), np.empty(0, np.int64)]
    for sample, batch in zip(sampler.sample(batches), batches, strict=True):
        for block in sample.blocks:
            parts = block.rows, block.cols, block.data, block.indices, block.indptr
            rows, cols, data, *places = map(backend.to_host, parts)
            found = sp.csr_array((data, *places), shape=block.shape)
            inside = edges[rows][:, cols].toarray()
            own = abs(inside).sum(axis=1)
            expected = inside * (sums[rows] / np.where(own, own, 1))[:, None]
            assert data.dtype == dtype and found.nnz == edges[rows][:, cols].nnz
            np.testing.assert_allclose(found.toarray(), expected, rtol=5e-7)
            if len(batch) == N:
                assert np.array_equal(found.toarray(), inside)


def test_means_are_those_of_the_paper() -> None:
    """D^-1 (A + I) on the graph becomes that of the subgraph, by the degrees there (equation 10)."""
    edges = (DENSE != 0).astype(float)
    sampler = Cluster(Replicated(sp.csr_array(edges / edges.sum(axis=1, keepdims=True))), 2, PART)
    (sample,) = sampler.sample([vertices(0, 3)])
    inside = edges[np.ix_(sample.blocks[0].rows, sample.blocks[0].cols)]
    expected = inside / inside.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(sample.blocks[0].A.toarray(), expected, rtol=1e-7)


def test_the_bias_of_renormalized_rows() -> None:
    """Exact means over all choices of three parts in which a vertex is, beside its row of A H.

    Rows of the values of A are too short. Renormalized, they have the right length, but neighbours of the
    vertex's own part weigh more: none is off where H is constant. Rescaled too, they weigh alike.
    """
    off = {}
    for name, H in {"constant": np.ones((N, 1)), "any": r.uniform(1, 2, (N, 3))}.items():
        for renormalize, rescale in ((False, False), (True, False), (True, True)):
            sampler = Cluster(Replicated(A), 1, PART, rescale=rescale, renormalize=renormalize)
            times, total = np.zeros((N, 1)), np.zeros(H.shape)
            for parts in combinations((0, 1, 3, 4, 5), 3):
                (sample,) = sampler.sample([vertices(*parts)])
                total[sample.batch] += sample.blocks[0].A @ H[sample.inputs]
                times[sample.batch] += 1
            off[name, renormalize, rescale] = np.linalg.norm(total / times - A @ H) / np.linalg.norm(A @ H)
    assert off["constant", False, False] > 0.3 and off["any", False, False] > 0.3
    assert off["constant", True, False] < 1e-7 and off["constant", True, True] < 1e-7
    assert off["any", True, True] < off["any", True, False] / 1.5 < off["any", False, False] / 10


def test_a_sample_does_not_depend_on_the_bulk() -> None:
    sampler = Cluster(Replicated(A), 2, PART, training=TRAINING, rescale=True, renormalize=True)
    together = sampler.sample([vertices(0, 4), vertices(1, 3)])
    for one, other in zip(together, [*sampler.sample([vertices(0, 4)]), *sampler.sample([vertices(1, 3)])],
                          strict=True):  # fmt: skip
        assert np.array_equal(one.blocks[0].A.toarray(), other.blocks[0].A.toarray())
        assert np.array_equal(one.loss_weights, other.loss_weights)


def test_an_epoch_has_every_part_once() -> None:
    batches = PartBatches(PART, TRAINING, 2, seed=3)
    assert len(batches) == 3 and np.array_equal(batches.training, np.sort(TRAINING))
    for epoch in (1, 2):
        drawn = batches.epoch(epoch)
        assert [len(np.unique(PART[batch])) for batch in drawn] == [1, 2, 2]
        assert np.array_equal(np.sort(np.concatenate(drawn)), np.arange(N))
        assert all((batch[1:] > batch[:-1]).all() for batch in drawn)
    assert not all(map(np.array_equal, batches.epoch(1), batches.epoch(2)))
    assert len(PartBatches(PART, TRAINING, 9)) == 1  # more than there are: all
    with pytest.raises(UserError, match="no node is in a part"):
        PartBatches(np.full(N, -1), TRAINING, 2)


def test_all_pairs_of_parts_are_equally_likely() -> None:
    """Each of 15 pairs of 6 parts, in three minibatches, over 3,000 epochs: χ² at a level of 0.001."""
    batches = PartBatches(np.arange(6), np.arange(6), 2)
    subsets = {1 << i | 1 << j: 1 / 15 for i, j in combinations(range(6), 2)}
    members = np.zeros((3, 3000, 6), bool)
    for epoch in range(3000):
        for number, batch in enumerate(batches.epoch(epoch)):
            members[number, epoch, batch] = True
    assert min(p_value(one, subsets) for one in members) > LEVEL


def test_vertices_of_no_part_are_not_of_the_population() -> None:
    part = np.where(np.isin(np.arange(len(PART)), TRAINING[:2]), -1, PART)
    sampler = Cluster(Replicated(A), 1, part, training=TRAINING, rescale=True)
    nodes = np.flatnonzero(part >= 0)
    (drawn,) = sampler.sample([nodes])
    assert drawn.population == len(TRAINING) - 2 == len(drawn.batch)
    np.testing.assert_array_equal(drawn.loss_weights, 1)

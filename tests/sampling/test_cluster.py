"""Cluster-GCN: the subgraphs of parts, exact expectations, and which parts an epoch has."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn import UserError
from distgnn.sampling import Cluster, Replicated
from distgnn.train.part_batches import PartBatches
from sampling.exact import LEVEL, p_value

N = 40
r = np.random.default_rng(4)
A = sp.csr_array(np.where(r.random((N, N)) < 0.2, r.uniform(0.1, 2, (N, N)), 0) + np.eye(N))
PART = r.integers(0, 6, N)
PART[PART == 2] = 3  # part 2 is empty
TRAINING = r.choice(N, 15, replace=False)


def vertices(*parts: int) -> np.ndarray:
    return np.flatnonzero(np.isin(PART, parts))


def test_a_block_has_all_edges_between_its_parts_and_training_nodes_first() -> None:
    sampler = Cluster(Replicated(A), 3, PART, training=TRAINING)
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


def test_a_sample_does_not_depend_on_the_bulk() -> None:
    sampler = Cluster(Replicated(A), 2, PART, training=TRAINING, rescale=True)
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

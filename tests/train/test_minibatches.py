"""Training nodes into minibatches."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn import UserError
from distgnn.train import Minibatches
from distgnn.train.minibatches import bulks, turns

NODES = np.arange(3, 300, 7)  # 43


def test_every_node_once_per_epoch_in_another_order() -> None:
    batches = Minibatches(NODES, 10)
    epochs = [np.concatenate(batches.epoch(e)) for e in (0, 1)]
    assert [len(b) for b in batches.epoch(0)] == [10, 10, 10, 10, 3] and len(batches) == 5
    assert all(np.array_equal(np.sort(one), NODES) for one in epochs)
    assert not np.array_equal(epochs[0], epochs[1]) and not np.array_equal(epochs[0], NODES)


def test_a_function_of_seed_and_epoch_alone() -> None:
    other = Minibatches(NODES[::-1], 10, seed=0)
    first, second = (np.concatenate(b.epoch(4)) for b in (Minibatches(NODES, 10), other))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, np.concatenate(Minibatches(NODES, 10, seed=1).epoch(4)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("per_update", [1, 3, 8, 100])
def test_every_minibatch_is_trained_once_in_the_same_update_whatever_the_ranks(
    ranks: int, per_update: int
) -> None:
    updates: list[list[int]] = [[]]
    for turn in turns(11, per_update, ranks):
        assert len(turn.numbers) == ranks
        updates[-1] += [number for number in turn.numbers if number is not None]
        updates += [[]] if turn.updates else []
    assert updates == [
        *(list(range(11))[first : first + per_update] for first in range(0, 11, per_update)),
        [],
    ]
    shared = list(bulks(turns(11, per_update, ranks), 2))
    assert [turn for bulk in shared for turn in bulk] == turns(11, per_update, ranks) and max(
        map(len, shared)
    ) <= 2


def test_positions_are_uniform() -> None:
    """Batches of each node over 2,000 epochs: χ² with 4 degrees of freedom for each of 43 nodes, expected 172
    in all.
    """
    batches = Minibatches(NODES, 10)
    counts = np.zeros((300, 5))
    for epoch in range(2000):
        for b, batch in enumerate(batches.epoch(epoch)):
            counts[batch, b] += 1
    expected = 2000 * np.array([10, 10, 10, 10, 3]) / 43
    statistic = ((counts[NODES] - expected) ** 2 / expected).sum(axis=1)
    assert 4 * 43 * 0.6 < statistic.sum() < 4 * 43 * 1.5 and statistic.max() < 25


def test_a_batch_of_too_few_nodes_has_all() -> None:
    (batch,) = Minibatches(NODES, 44).epoch(1)
    assert sorted(batch) == sorted(NODES)


@pytest.mark.parametrize(
    ("nodes", "size", "message"),
    [(43, 0, "batch_size=0: expected a whole number of at least 1"), (0, 1, "no training nodes")],
)
def test_bad_input(nodes: int, size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Minibatches(NODES[:nodes], size)

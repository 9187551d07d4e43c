"""Sums that are made all at once: the same numbers and words as one by one, in fewer messages."""

from __future__ import annotations

import numpy as np
import pytest

import distgnn as dg
from distgnn import gallery
from distgnn.nn import GCN, SageMean
from distgnn.operators import make_grid
from distgnn.operators.later import Later, block_of, summed_over

SHAPES = [((3, 4), "f4"), ((1, 5), "f8"), ((0, 4), "f4"), ((7, 2), "f4"), ((2, 5), "f8"), ((1, 1), "i8")]


@pytest.mark.ranks(1, 3, 4)
def test_later_is_as_at_once(comm, backend):
    grid = dg.Grid(comm, backend=backend, rows=comm.size)
    group, on, rng = grid.along("rows"), grid.backend, np.random.default_rng(comm.Get_rank())
    arrays = [rng.integers(0, 99, shape).astype(dtype) for shape, dtype in SHAPES]
    found = []
    for later in (None, Later()):
        with dg.Ledger() as told:
            sums = [summed_over(later, group, on.asarray(array.copy()), lambda x: x + 1) for array in arrays]
            if later is not None:
                assert [made.block for made in sums] == [None] * len(sums)
                later.finish()
                later.finish()  # makes none twice
        blocks = [on.to_host(block_of(made)) for made in sums]
        found.append((blocks, told.words, told.messages))
    (once, words, messages), (at_end, same_words, fewer) = found
    totals = [sum(of_ranks) + 1 for of_ranks in zip(*comm.allgather(arrays), strict=True)]
    for expected, one, other in zip(totals, once, at_end, strict=True):
        np.testing.assert_array_equal(one, expected)
        np.testing.assert_array_equal(other, expected)
        assert one.dtype == other.dtype
    assert words == same_words and messages == 2 * fewer, "two sums for each dtype but the last"
    grid.free()


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("network", [GCN, SageMean])
def test_gradients_of_all_layers_are_one_sum(comm, backend, network):
    """W of three layers and biases in one all-reduce, and gains and shifts, in double precision, in one."""
    A, grid = gallery.rmat(64, degree=8, features=0, classes=0).A, make_grid(comm, "1d", backend=backend)
    model = network(dg.distribute(A.astype(np.float32), grid, "1d"), [6, 5, 4, 3], bias=True, layer_norm=True)
    X = dg.scatter(np.ones((64, 6), np.float32), model.input_layout)
    targets = model.targets(np.arange(64) % 3, np.ones(64, np.uint8))
    with dg.Ledger() as told:
        model.gradients(X, targets, 1)
    (sums,) = [e for e in told.entries() if (e["operation"], e["matrix"]) == ("allreduce", "gradients")]
    numbers = sum(p.block.size for p in model.parameters)
    assert sums["calls"] == 2
    assert sums["words"] == pytest.approx(2 * (grid.size - 1) * numbers / grid.size, abs=0.5)
    assert sums["messages"] == 2 * 2 * (grid.size - 1)
    grid.free()

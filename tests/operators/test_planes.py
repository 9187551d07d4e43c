"""Planes of the 3D product: which layers share a shard of A."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import distgnn as dg
from awkward_shapes import awkward
from distgnn.operators import make_grid

from .test_products import Recorder


@pytest.mark.ranks(1, 4, 6)
@pytest.mark.parametrize("double", [False, True])
def test_layers_share_shards(comm, double, backend):
    """min(3, L) shards are loaded, and of two permutations that take turns min(6, L)."""
    A = awkward()["directed"]
    source, odd = Recorder(A), Recorder(A.T.tocsr())
    grid = make_grid(comm, "3d", backend=backend)
    grid.node = grid.rank  # every rank asks for its own blocks
    operator = dg.distribute(source, grid, "3d", odd=odd if double else None)
    period = 6 if double else 3
    for number in range(2 * period):
        layer, first = (operator.layer(k).algorithm for k in (number, number % period))
        assert layer.plane is first.plane and layer.A is first.A and layer.plane.At is first.plane.At
        assert len(source.windows) + len(odd.windows) == min(number + 1, period)
    assert len({id(operator.layer(number).algorithm.A) for number in range(12)}) == period
    assert operator.layer(0) is operator and operator.layer(period + 1) is operator.layer(1)
    assert operator.layer(2).layer(1) is operator.layer(1)
    expected = (A.T if double else A).tocsr()
    (top, bottom), (left, right) = operator.layer(1).algorithm.plane.window
    block = operator.layer(1).algorithm.A.to_scipy()
    np.testing.assert_array_equal(block.toarray(), expected[top:bottom, left:right].toarray())


@pytest.mark.ranks(1, 2)
def test_planes_stay_as_they_are(comm, backend):
    operator = dg.distribute(awkward()["prime"], make_grid(comm, "3d", backend=backend), "3d")
    with pytest.raises(FrozenInstanceError):
        operator.algorithm.plane.A = None

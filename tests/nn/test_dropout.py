"""Dropout of a block."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.local import host
from distgnn.nn.dropout import Dropout

NODES, COLS = np.arange(3, 903), np.arange(10, 50)


def make(backend, rate, nodes=NODES, cols=COLS, seed=1, layer=0):
    return Dropout(rate, seed, layer, backend.asarray(nodes), backend.asarray(cols))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rate", [0.25, 0.5, 0.9])
def test_keeps_the_mean(backend, rate, dtype, passes):
    block = backend.zeros((len(NODES), len(COLS)), dtype) + 1
    dropped = backend.to_host(make(backend, rate).apply(block, epoch=1))
    assert set(np.unique(dropped)) == {dtype(0), dtype(1 / (1 - rate))}
    assert abs((dropped == 0).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / dropped.size)
    assert dropped.dtype == dtype


def test_out_leaves_the_input_alone(backend, passes):
    block = backend.zeros((len(NODES), len(COLS)), np.float32) + 1
    out = backend.empty(block.shape, np.float32)
    assert make(backend, 0.5).apply(block, 1, out) is out
    assert backend.to_host(block).min() == 1
    np.testing.assert_array_equal(backend.to_host(out), backend.to_host(make(backend, 0.5).apply(block, 1)))


def test_it_is_its_own_adjoint(backend, passes):
    """<D x, y> == <x, D y>: what forward dropped, backward drops."""
    r = np.random.default_rng(0)
    x, y = (r.standard_normal((len(NODES), len(COLS))) for _ in range(2))
    Dx, Dy = (make(backend, 0.3).apply(backend.asarray(v).copy(), 7) for v in (x, y))
    assert np.sum(backend.to_host(Dx) * y) == pytest.approx(np.sum(x * backend.to_host(Dy)))


def test_a_block_is_a_block_of_the_whole(backend, passes):
    """The mask of a node and a column is the same whatever else the rank holds, and in whatever order."""
    nodes, cols = NODES[::-3], COLS[5:11]
    whole, part = (
        make(backend, 0.5, n, c).apply(backend.zeros((len(n), len(c)), np.float32) + 1, 4)
        for n, c in ((NODES, COLS), (nodes, cols))
    )
    expected = backend.to_host(whole)[np.ix_(nodes - NODES[0], cols - COLS[0])]
    np.testing.assert_array_equal(backend.to_host(part), expected)


def test_seed_epoch_and_layer_change_the_mask(backend, passes):
    ones = backend.zeros((len(NODES), len(COLS)), np.float32) + 1
    masks = [
        backend.to_host(make(backend, 0.5, seed=seed, layer=layer).apply(ones.copy(), epoch)).tobytes()
        for seed, layer, epoch in ((1, 0, 1), (1, 0, 2), (1, 1, 1), (2, 0, 1), (1, 0, 1))
    ]
    assert len(set(masks)) == 4 and masks[0] == masks[-1]


def test_rate_zero_changes_nothing(backend, passes):
    block = backend.zeros((len(NODES), len(COLS)), np.float32) + 1
    out = backend.zeros(block.shape, np.float32)
    np.testing.assert_array_equal(backend.to_host(make(backend, 0.0).apply(block, 1, out)), 1)


def test_relu_first(backend, passes):
    """Fused, it is what ReLU and then dropout make; where compiled, to the bit what array operations make."""
    X = np.random.default_rng(0).standard_normal((len(NODES), len(COLS))).astype(np.float32)
    fused = backend.to_host(make(backend, 0.3).apply(backend.asarray(X).copy(), 2, relu=True))
    after = backend.to_host(make(backend, 0.3).apply(backend.asarray(np.maximum(X, 0)), 2))
    np.testing.assert_array_equal(fused, after)
    assert 0.3 < (fused > 0).mean() < 0.4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_ways_agree_to_the_bit(dtype, monkeypatch):
    """Or a run would depend on whether there was a compiler."""
    if host.module() is None:
        pytest.skip("the host kernels are not built here")
    X = np.random.default_rng(0).standard_normal((len(NODES), len(COLS))).astype(dtype)
    first = Dropout(0.3, 1, 0, NODES, COLS).apply(X.copy(), 5)
    monkeypatch.setattr(host, "module", lambda: None)
    np.testing.assert_array_equal(first, Dropout(0.3, 1, 0, NODES, COLS).apply(X.copy(), 5))

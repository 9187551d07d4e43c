"""ReLU that remembers a bit per entry, sums of columns; dropout, Adam: tests/nn and tests/kernels."""

from __future__ import annotations

import numpy as np

from distgnn import rng
from distgnn.arrays.tuning import TUNING
from distgnn.local import elementwise
from distgnn.local.elementwise import keep_positive, positive_bits, relu
from distgnn.local.epilogue import Epilogue, Kept
from loops import each
from nn.conftest import passes as passes


@each("shape", [(0, 3), (3, 0), (1, 1), (7, 3), (13, 16), (100, 9)])
@each("dtype", [np.float32, np.float64])
def test_backward_of_relu(shape, dtype, backend, monkeypatch, passes):
    """Also where pieces end within the matrix and sizes are no multiples of 8."""
    monkeypatch.setattr(TUNING, "cached_numbers", 24)
    monkeypatch.setattr(TUNING, "launched_numbers", 24)
    r = np.random.default_rng(0)
    Z, G = r.standard_normal(shape).astype(dtype), r.standard_normal(shape).astype(dtype)
    H, dZ = backend.asarray(Z).copy(), backend.asarray(G).copy()
    relu(H)
    np.testing.assert_array_equal(backend.to_host(H), np.maximum(Z, 0))
    bits = positive_bits(H)
    assert bits.nbytes == -(-Z.size // 8)
    keep_positive(dZ, bits, 2.0)
    np.testing.assert_array_equal(backend.to_host(dZ), 2 * G * (Z > 0))
    assert dZ.dtype == dtype
    dZ, then = backend.asarray(G).copy(), Kept(bits, 2.0)
    for _ in range(2):  # the second does nothing
        elementwise.apply(then, dZ)
    np.testing.assert_array_equal(backend.to_host(dZ), 2 * G * (Z > 0))


@each("shape", [(0, 3), (1, 1), (7, 3), (13, 16), (100, 9)])
@each("dtype", [np.float32, np.float64])
@each("keep", [None, 0.6])
def test_epilogue(shape, dtype, keep, backend, monkeypatch, passes):
    """Has the bits of Z + b, ReLU, dropout and packbits; without ReLU and dropout it is Z + b."""
    monkeypatch.setattr(TUNING, "cached_numbers", 24)
    monkeypatch.setattr(TUNING, "launched_numbers", 24)
    r = np.random.default_rng(1)
    Z, b = (r.standard_normal(size).astype(dtype) for size in (shape, (1, shape[1])))
    ids = np.arange(shape[0]) * 10**9, np.arange(shape[1])
    Y, shared = backend.asarray(Z).copy(), backend.asarray(b)
    elementwise.apply(Epilogue(shared), Y)
    np.testing.assert_array_equal(backend.to_host(Y), Z + b)
    H = np.maximum(Z + b, 0)
    if keep:
        H *= rng.keep_mask(7, *ids, keep) * dtype(1 / keep)
    mask = (7, *map(backend.asarray, ids), keep) if keep else None
    for remember in (False, True):
        Y, then = backend.asarray(Z).copy(), Epilogue(shared, mask, True, remember)
        for _ in range(2):  # the second does nothing
            elementwise.apply(then, Y)
        np.testing.assert_array_equal(backend.to_host(Y), H)
        assert (then.bits is not None) == remember
    np.testing.assert_array_equal(backend.to_host(then.bits), np.packbits(H > 0))


@each("shape", [(0, 5), (3, 0), (3, 5), (8, 5), (11, 1), (700, 40), (9, 33), (2100, 3)])
@each("dtype", [np.float32, np.float64])
def test_column_sums(shape, dtype, backend, monkeypatch):
    monkeypatch.setattr(TUNING, "summed_rows", 4)
    G = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    sums = backend.to_host(elementwise.column_sums(backend.asarray(G)))
    assert sums.dtype == dtype
    np.testing.assert_allclose(sums, G.astype(np.float64).sum(axis=0, keepdims=True), rtol=1e-6, atol=1e-6)


def test_gradient_at_zero_is_zero(backend, passes):
    H, G = backend.zeros((4, 4), np.float32), backend.zeros((4, 4), np.float32) + 1
    keep_positive(G, positive_bits(H))
    assert not backend.to_host(G).any()

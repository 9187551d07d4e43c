"""Kernels of products with a vector for each head, under sanitizers."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.arrays.tuning import TUNING
from distgnn.local import cuda
from kernels.conftest import in_orders, normal, tolerance
from local.test_heads import PARTS, check
from loops import each


@each("dtype", [np.float32, np.float64])
@each("count", [1, 2])
@each("part", PARTS)
def test_heads(gpu, monkeypatch, dtype, count, part):
    monkeypatch.setattr(TUNING, "summed_rows", 16)
    for _ in in_orders(gpu, (0, 1)):
        check(gpu, cuda.head_sums, cuda.add_heads, cuda.head_dots, dtype, count, part)


def test_scaled_dots(gpu):
    X, D, scale = (normal(shape, np.float32, k) for k, shape in enumerate([(29, 37), (29, 37), 37]))
    room = gpu.asarray(D)
    made = cuda.scaled_dots(gpu.asarray(X), room, gpu.asarray(scale))
    np.testing.assert_allclose(gpu.to_host(made)[0], (X * D).sum(axis=0), **tolerance(np.float32))
    np.testing.assert_array_equal(gpu.to_host(room), D * scale)
    with pytest.raises(ValueError, match="scaled_dots: D must be"):
        cuda.scaled_dots(gpu.asarray(X), gpu.asarray(D[:, :3]), gpu.asarray(scale))

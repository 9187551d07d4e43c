"""Initial weights, by the backend of the array of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays.kernels import Kernels, KernelTable

Array = Any


def glorot(
    seed: int, layer: int, shape: tuple[int, int], rows: Array, cols: Array, dtype: Any = np.float32
) -> Array:  # fmt: skip
    """Return entries (rows, cols) of a layer's initial weights, see :func:`rng.glorot`, on their device."""
    return KERNELS.kernel("glorot", rows)(seed, layer, shape, rows, cols, dtype)


_DRAWN = [Kernels({"glorot": rng.glorot})]
KERNELS = KernelTable(numpy=_DRAWN, cupy=_DRAWN)

"""Draws from rows of a matrix in NumPy, and the keys and weights of these draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn import rng

Array = Any
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def row_keys(keys: Array, vertices: Array) -> Array:
    """Make the keys of the rows of m vertices, uint64 (m), from theirs of (seed, epoch, minibatch, layer)."""
    return rng.splitmix64(rng.splitmix64(vertices.astype(np.uint64)) ^ keys)


def mark(indptr: Array, weights: Array, count: int, keys: Array, picked: Array, left: Array | None) -> int:
    """Mark the entries drawn, row by row, in `picked`; return the first bad row, or -1."""
    for row, key in enumerate(keys.tolist()):
        entries = slice(int(indptr[row]), int(indptr[row + 1]))
        own = weights[entries]
        if not np.isfinite(own).all() or (own < 0).any():
            return row
        before = np.zeros(count + 1) if left is None else left[row]
        if np.count_nonzero(own) <= count:
            picked[entries], before[:] = own > 0, 0
        elif not _draw_row(own, count, key, picked[entries], before):
            return row
    return -1


def _draw_row(weights: Array, count: int, state: int, picked: Array, left: Array) -> bool:
    """Draw from one row into `picked` and `left`; False where the sum of its weights is not finite."""
    picked[:] = 0
    with np.errstate(over="ignore"):
        prefix = np.cumsum(weights)
    total, drawn = float(prefix[-1]), 0.0
    if np.isinf(total):
        return False
    for j in range(count + 1):
        # at most every second draw is a repeat, and what remains is known to the last bits
        if drawn > total / 2:
            prefix = np.cumsum(np.where(picked, 0.0, weights))
            total, drawn = float(prefix[-1]), 0.0
        left[j] = total - drawn
        while j < count:
            state, uniform = _next_uniform(state)
            i = int(np.searchsorted(prefix, uniform * total, side="right"))
            if i < len(weights) and not picked[i]:
                picked[i] = 1
                drawn += float(weights[i])
                break
    return True


def _next_uniform(state: int) -> tuple[int, float]:
    """Return the next state of a SplitMix64 generator, and its output as a float64 in [0, 1)."""
    word = rng.splitmix64(np.array([state], np.uint64))[0]
    return (state + int(_GOLDEN)) & (1 << 64) - 1, float(word >> np.uint64(11)) * 2.0**-53


def ring_times(remaining: Array, keys: Array) -> Array:
    """Return τ of every row (see :func:`distgnn.local.draw.inclusion`)."""
    steps = np.arange(remaining.shape[1], dtype=np.uint64) * _GOLDEN
    # Another hash of the keys than the draws' states; half a step off zero: no clock rings at once or never.
    words = rng.splitmix64(rng.splitmix64(~keys)[:, None] + steps[None, :])
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    with np.errstate(divide="ignore"):
        return (-np.log1p(-uniform) / remaining).sum(axis=1)

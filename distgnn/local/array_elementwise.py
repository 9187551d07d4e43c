"""The passes of ``elementwise.py`` in functions of NumPy or CuPy, for what no kernel does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays import backend, blocking
from distgnn.arrays.csr import CSR

Array = Any


def relu(block: Array) -> None:
    backend.module(block).maximum(block, 0, out=block)


def positive_bits(block: Array) -> Array:
    xp, flat = backend.module(block), block.reshape(-1)
    bits = xp.empty(-(-block.size // 8), np.uint8)
    for part in blocking.passes(flat):
        bits[part.start // 8 : -(-part.stop // 8)] = xp.packbits(flat[part] > 0)
    return bits


def elu(block: Array) -> None:
    xp = backend.module(block)
    for part in blocking.passes(block):
        negative = xp.expm1(xp.minimum(block[part], 0))
        xp.maximum(block[part], negative, out=block[part])


def elu_back(G: Array, H: Array, scale: float) -> None:
    xp = backend.module(G)
    for part in blocking.passes(G):
        slopes = H[part] * G.dtype.type(scale)
        slopes += G.dtype.type(1)
        G[part] *= xp.minimum(slopes, 1)


def keep_positive(G: Array, bits: Array, scale: float) -> None:
    xp, flat = backend.module(G), G.reshape(-1)
    for part in blocking.passes(flat):
        flat[part] *= xp.unpackbits(bits[part.start // 8 : -(-part.stop // 8)])[: part.stop - part.start]
        if scale != 1:
            flat[part] *= G.dtype.type(scale)


def dropout(block: Array, out: Array, k: int, rows: Array, cols: Array, keep: float, relu: bool) -> Array:
    xp, scale = backend.module(block), block.dtype.type(1 / keep if keep > 0 else 0)
    factors: Array = None
    for part, kept in rng.keep_blocks(k, rows, cols, keep, blocking.passes(block), xp):
        factors = xp.empty(kept.shape, block.dtype) if factors is None else factors[: len(kept)]
        xp.multiply(kept, scale, out=factors)
        if relu:
            xp.multiply(factors, block[part] > 0, out=factors)
        xp.multiply(block[part], factors, out=out[part])
    return out


def dropout_entries(
    A: CSR, row_numbers: Array, out: Array, k: int, rows: Array, cols: Array, keep: float
) -> None:  # fmt: skip
    places, blocks = (row_numbers, A.indices), blocking.passes(out)
    scale = out.dtype.type(1 / keep if keep > 0 else 0)
    for part, kept in rng.keep_entries(k, rows, cols, places, keep, blocks, backend.module(out)):
        out[part] = A.data[part] * (kept * scale)


def binary_cross_entropy(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], share: float, out: Array
) -> tuple[Array, Array]:
    xp, number = backend.module(logits), logits.dtype.type
    gradient, losses = xp.zeros_like(logits) if out is None else out, xp.zeros(len(rows))
    for part in blocking.passes(logits, len(rows)):
        z, y = logits[rows[part]], labels[part].astype(logits.dtype)
        small = xp.exp(-abs(z))  # never overflows: log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|))
        losses[part] = (xp.maximum(z, 0) - z * y + xp.log1p(small)).sum(axis=1, dtype=np.float64)
        G = xp.maximum(small, z >= 0) / (small + number(1))
        G -= y
        G *= number(share)
        gradient[rows[part]] = G
    if out is not None:
        clear_others(out, rows)
    return losses, gradient


def squared_error(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], share: float, out: Array
) -> tuple[Array, Array]:
    xp = backend.module(logits)
    gradient, losses = xp.zeros_like(logits) if out is None else out, xp.zeros(len(rows))
    for part in blocking.passes(logits, len(rows)):
        G = (logits[rows[part]] - labels[part]).astype(logits.dtype)
        losses[part] = (G.astype(np.float64) ** 2).sum(axis=1)
        G *= logits.dtype.type(2 * share)
        gradient[rows[part]] = G
    if out is not None:
        clear_others(out, rows)
    return losses, gradient


def clear_others(block: Array, rows: Array) -> None:
    """Set all rows but these to zero."""
    others = backend.module(block).ones(len(block), dtype=bool)
    others[rows] = False
    block[others] = 0


def column_sums(block: Array) -> Array:
    return block.sum(axis=0, keepdims=True, dtype="float64").astype(block.dtype)


def adam(
    w: Array, g: Array, m: Array, v: Array, *, rate: float, correction: float, first: float, second: float,
    epsilon: float, shrink: float, decay: float,
) -> None:  # fmt: skip
    if shrink != 1:
        w *= shrink
    if decay:
        g += decay * w
    m *= first
    m += (1 - first) * g
    g *= g
    v *= second
    v += (1 - second) * g
    denominator = v / correction
    denominator **= 0.5
    denominator += epsilon
    w -= rate * m / denominator


def average(sums: Array, count: Array, known: float) -> bool:
    if known:
        sums /= count
    return bool(known)

"""The passes of ``elementwise.py`` by the compiled host kernels, for float32 and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distgnn import rng
from distgnn.local import host

Array = Any


def positive_bits(block: Array) -> Array:
    bits = np.empty(-(-block.size // 8), np.uint8)
    host.built().pack_positive(block, bits, isa=host.isa())
    return bits


def keep_positive(G: Array, bits: Array, scale: float) -> None:
    host.built().keep_positive(G, bits, float(G.dtype.type(scale)), isa=host.isa())


def dropout(block: Array, out: Array, k: int, rows: Array, cols: Array, keep: float, relu: bool) -> Array:
    activate(block, out, (k, rows, cols, keep), relu, remember=False, bias=None)
    return out


def activate(
    block: Array, out: Array, mask: tuple[int, Array, Array, float] | None, relu: bool, remember: bool,
    bias: Array,
) -> Array:  # fmt: skip
    bits = np.empty(-(-block.size // 8), np.uint8) if remember else None
    keys, threshold, scale = None, 0, 1.0
    if mask is not None:
        keys, keep = rng.keep_keys(*mask[:3]), mask[3]
        threshold, scale = rng.keep_threshold(keep), float(block.dtype.type(1 / keep if keep > 0 else 0))
    shared = None if bias is None else bias.reshape(-1)
    arguments = block, out, shared, keys, threshold, scale, bits
    host.built().activate(*arguments, relu=relu, isa=host.isa())
    return bits


def cross_entropy(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], count: int, out: Array
) -> tuple[Array, Array]:
    gradient = np.empty_like(logits) if out is None else out
    sums, own = np.empty(len(rows), logits.dtype), np.empty(len(rows), logits.dtype)
    host.built().cross_entropy(logits, rows, labels, gradient, sums, own, 1 / count, isa=host.isa())
    return np.log(sums.astype(np.float64)) - own, gradient


def binary_cross_entropy(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], share: float, out: Array
) -> tuple[Array, Array]:
    gradient, losses = np.empty_like(logits) if out is None else out, np.empty(len(rows))
    host.built().binary_cross_entropy(logits, rows, labels, gradient, losses, share, isa=host.isa())
    return losses, gradient


def adam(w: Array, g: Array, m: Array, v: Array, **factors: float) -> None:
    host.built().adam(w, g, m, v, **factors, isa=host.isa())

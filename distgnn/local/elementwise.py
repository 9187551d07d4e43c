"""Passes over the dense blocks of an epoch, each by the kernel for the block's device.

Kernels make one pass over memory where array operations take several. Both agree to the bit, but for Adam's
roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays import backend
from distgnn.local import cuda, host

Array = Any
PART_ROWS = 1024  # that column_sums adds up at a time on a GPU


def compiled(block: Array) -> bool:
    """Whether the host kernels do this block."""
    return isinstance(block, np.ndarray) and block.dtype.char in "fd" and host.module() is not None


def on_gpu(block: Array) -> bool:
    """Whether the CUDA kernels do this block. Whether it is empty must not matter: other ranks' are not."""
    return backend.of(block).on_device and block.dtype.char in "fd"


def relu(block: Array) -> None:
    """max(block, 0), in place."""
    backend.module(block).maximum(block, 0, out=block)


def positive_bits(block: Array) -> Array:
    """``numpy.packbits(block > 0)``: what ReLU remembers for its backward pass."""
    xp = backend.module(block)
    bits = xp.empty(-(-block.size // 8), np.uint8)
    if compiled(block):
        host.built().pack_positive(block, bits, isa=host.isa())
        return bits
    flat = block.reshape(-1)
    for part in rng.slices(flat.size, 1, xp):
        bits[part.start // 8 : -(-part.stop // 8)] = xp.packbits(flat[part] > 0)
    return bits


def keep_positive(G: Array, bits: Array, scale: float = 1.0) -> None:
    """Zero the entries of ``G`` whose bit is 0 and multiply the others by ``scale``, in place: the backward
    of ReLU and dropout, since what dropout zeroed is not positive.
    """
    if compiled(G):
        host.built().keep_positive(G, bits, float(G.dtype.type(scale)), isa=host.isa())
        return
    if on_gpu(G):
        cuda.keep_positive(G, bits, scale)
        return
    xp, flat = backend.module(G), G.reshape(-1)
    for part in rng.slices(flat.size, 1, xp):
        flat[part] *= xp.unpackbits(bits[part.start // 8 : -(-part.stop // 8)])[: part.stop - part.start]
        if scale != 1:
            flat[part] *= G.dtype.type(scale)


def dropout(
    block: Array, out: Array, k: int, rows: Array, cols: Array, keep: float, relu: bool = False
) -> Array:
    """``out = block * rng.keep_mask(k, rows, cols, keep) / keep``, of the positive part with ``relu``;
    ``out`` may be ``block``, and is returned. No array of the block's size is made.
    """
    scale = block.dtype.type(1 / keep if keep > 0 else 0)
    if compiled(block):
        threshold = rng.keep_threshold(keep)
        keys = rng.keep_keys(k, rows, cols)
        host.built().dropout(block, out, *keys, threshold, float(scale), relu=relu, isa=host.isa())
        return out
    if on_gpu(block):
        return cuda.dropout(block, out, k, rows, cols, keep, relu)
    xp = backend.module(block)
    factors: Array = None
    for part, kept in rng.keep_blocks(k, rows, cols, keep, xp):
        factors = xp.empty(kept.shape, block.dtype) if factors is None else factors[: len(kept)]
        xp.multiply(kept, scale, out=factors)
        if relu:
            xp.multiply(factors, block[part] > 0, out=factors)
        xp.multiply(block[part], factors, out=out[part])
    return out


def cross_entropy(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], count: int, overwrite: bool
) -> tuple[Array, Array] | None:
    """Softmax cross-entropy of these rows in one pass: float64 losses, and the gradient of their sum over
    ``count``, 0 in other rows. None where no kernel does this block.

    rows: int64, rising; labels: int64, the column of each. position: makes, of the number of all rows, int32
    places of these in ``rows``, or -1. overwrite: put the gradient where the logits were.
    """
    if compiled(logits):
        gradient = logits if overwrite else np.empty_like(logits)
        sums, own = np.empty(len(rows), logits.dtype), np.empty(len(rows), logits.dtype)
        host.built().cross_entropy(logits, rows, labels, gradient, sums, own, 1 / count, isa=host.isa())
        return np.log(sums.astype(np.float64)) - own, gradient
    if on_gpu(logits):
        place = logits if overwrite else None
        losses, gradient = cuda.softmax_cross_entropy(logits, position(len(logits)), labels, place, count)
        return losses.astype(np.float64), gradient
    if not backend.of(logits).numbers:
        return rows.astype(np.float64), logits if overwrite else logits.copy()
    return None


def binary_cross_entropy(
    logits: Array, rows: Array, labels: Array, position: Callable[[int], Array], share: float, overwrite: bool
) -> tuple[Array, Array] | None:
    """Binary cross-entropy of all entries of these rows in one pass: float64 sums of each row's losses, and
    ``share`` times their gradient, 0 in other rows. None where no kernel does this block.

    labels: uint8, 0 or 1, (len(rows), width of the logits); the others as in :func:`cross_entropy`.
    """
    if compiled(logits):
        gradient, losses = logits if overwrite else np.empty_like(logits), np.empty(len(rows))
        passes = logits, rows, labels, gradient, losses, share
        host.built().binary_cross_entropy(*passes, isa=host.isa())
        return losses, gradient
    if on_gpu(logits):
        place = logits if overwrite else None
        losses, gradient = cuda.binary_cross_entropy(logits, position(len(logits)), labels, place, share)
        return losses.astype(np.float64), gradient
    if not backend.of(logits).numbers:
        return rows.astype(np.float64), logits if overwrite else logits.copy()
    return None


def column_sums(block: Array) -> Array:
    """Sums of the columns (1, f), added up in float64.

    CuPy gives 32 columns to a thread block, which leaves most of a GPU idle: there, parts of the rows first.
    """
    parts = len(block) // PART_ROWS if backend.of(block).on_device else 0
    sums = block[parts * PART_ROWS :].sum(axis=0, keepdims=True, dtype="float64")
    if parts:
        whole = block[: parts * PART_ROWS].reshape(parts, PART_ROWS, block.shape[1])
        sums += whole.sum(axis=1, dtype="float64").sum(axis=0, keepdims=True)
    return sums.astype(block.dtype)


def adam(w: Array, g: Array, m: Array, v: Array, **factors: float) -> None:
    """One step of Adam on flat arrays of one type, in place; ``g`` may be used as scratch.

    w <- shrink w;  g <- g + decay w;  m <- first m + (1 - first) g;  v <- second v + (1 - second) g²;
    w <- w - rate m / (sqrt(v / correction) + epsilon), with ``factors`` of these names.
    """
    if compiled(w):
        host.built().adam(w, g, m, v, **factors, isa=host.isa())
    elif on_gpu(w):
        cuda.adam(w, g, m, v, **factors)
    elif backend.of(w).numbers:
        _adam(w, g, m, v, **factors)


def _adam(
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

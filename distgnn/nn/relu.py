"""ReLU in place, remembering for the backward pass one bit per entry instead of the output."""

from __future__ import annotations

from typing import Any

from distgnn import rng
from distgnn.arrays import backend
from distgnn.local import cuda, host
from distgnn.nn.dispatch import compiled, on_gpu

Array = Any


def relu(block: Array) -> None:
    """max(block, 0), in place."""
    backend.module(block).maximum(block, 0, out=block)


def positive_bits(block: Array) -> Array:
    """One bit per entry, 1 where the block is positive: 1/32 of the memory of a float32 block."""
    if compiled(block):
        return host.pack_positive(block)
    xp = backend.module(block)
    flat = block.reshape(-1)
    bits = xp.empty(-(-flat.size // 8), dtype=xp.uint8)
    for start, stop in _pieces(flat.size, xp):
        bits[start // 8 : -(-stop // 8)] = xp.packbits(flat[start:stop] > 0)
    return bits


def keep_positive(G: Array, bits: Array, scale: float = 1.0) -> None:
    """Zero the entries of `G` whose bit is 0 and multiply the others by `scale`, in place: the backward of
    ReLU followed by dropout, since what dropout zeroed is not positive either.
    """
    if compiled(G):
        host.keep_positive(G, bits, scale)
        return
    if on_gpu(G):
        cuda.keep_positive(G, bits, scale)
        return
    xp = backend.module(G)
    flat = G.reshape(-1)
    for start, stop in _pieces(flat.size, xp):
        flat[start:stop] *= xp.unpackbits(bits[start // 8 : -(-stop // 8)])[: stop - start]
        if scale != 1:
            flat[start:stop] *= G.dtype.type(scale)


def _pieces(size: int, xp: Any) -> list[tuple[int, int]]:
    step = rng.block_rows(1, xp)
    return [(start, min(start + step, size)) for start in range(0, size, step)]

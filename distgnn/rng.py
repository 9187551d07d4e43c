"""Random numbers that are functions of (seed, purpose, global index) and of nothing else.

A generator with a state gives different numbers to different block layouts. Here every number is the hash of
its own coordinates, so a rank computes exactly the entries that its block holds, in any order, and every
layout, rank count and node order sees the same weights and the same dropout masks.

`uniform` spends a full SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA
2014) on every entry: for weights, which are few. `keep_blocks` spends one on every row and column and six
32-bit passes on every entry: for dropout masks, which are as large as the features.

All arithmetic wraps modulo 2**32 or 2**64 on integers, so NumPy and CuPy agree to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = Any  # a NumPy or a CuPy array

# What a number is for: the second word of every key, so that no two uses ever share a sequence.
WEIGHTS = 1
DROPOUT = 2
PERMUTATION = 3  # node orders of a store
SPLIT = 4  # nodes into training, validation and test
COLUMN_PERMUTATION = 5  # the second permutation of a store's double order
SAMPLE = 6  # draws of the samplers
MINIBATCH = 7  # training nodes into minibatches
CONTENT = 8  # hashes of what a store holds
MADE_FEATURES = 9  # random features of graphs that have none
ATTENTION = 10  # dropout of attention
EDGE = 11  # names of pairs of nodes
DENSE = 12  # random dense matrices

_M64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MIX32 = 0x846CA68B  # the first multiplier of Chris Wellons' lowbias32


def splitmix64(x: Array) -> Array:
    """Apply the SplitMix64 output function to a uint64 array (a new array; `x` is left alone)."""
    x = x + np.uint64(_GOLDEN)
    x ^= x >> np.uint64(30)
    x *= np.uint64(_MIX1)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_MIX2)
    x ^= x >> np.uint64(31)
    return x


def key(seed: int, stream: int, *counters: int) -> int:
    """Return a 64-bit key for one use: `stream` is its purpose, `counters` its occasion (epoch, layer)."""
    state = 0
    for word in (int(seed), int(stream), *(int(c) for c in counters)):
        state = _splitmix64_int((state ^ word) & _M64)
    return state


def _splitmix64_int(x: int) -> int:
    x = (x + _GOLDEN) & _M64
    x = ((x ^ (x >> 30)) * _MIX1) & _M64
    x = ((x ^ (x >> 27)) * _MIX2) & _M64
    return x ^ (x >> 31)


def hashes(k: int, ids: Array) -> Array:
    """Hash each id to a uint64, a function of (k, id); `ids`: int64 array, any order, global indices."""
    return splitmix64(splitmix64(ids.astype(np.uint64)) ^ np.uint64(k))


def ends(ids: Array) -> tuple[Array, Array]:
    """Hash each id as the first and as the second of a pair: float64, whole numbers below 2**52.

    The sum of two names the pair, and is exact.
    """
    first, second = (hashes(key(0, EDGE, side), ids) >> np.uint64(12) for side in range(2))
    return first.astype(np.float64), second.astype(np.float64)


def uniform(k: int, rows: Array, cols: Array) -> Array:
    """Draw float64[len(rows), len(cols)] in [0, 1): entry (i, j) is a function of (k, rows[i], cols[j]).

    `rows` and `cols` are int64 arrays of global indices; the answer is on their device.
    """
    row_keys, col_keys = hashes(k, rows), hashes(key(k, 1), cols)
    words = splitmix64(row_keys[:, None] + col_keys[None, :])
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def keep_keys(k: int, rows: Array, cols: Array) -> tuple[Array, Array, Array]:
    """Return uint32 (rows), (rows) and (cols): keys from which `keep_blocks` makes the hash of an entry."""
    row_keys, col_keys = hashes(k, rows), hashes(key(k, 1), cols)
    odd = (row_keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    return row_keys.astype(np.uint32), odd, (col_keys >> np.uint64(32)).astype(np.uint32)


def keep_threshold(probability: float) -> int:
    """Return the number, in 0..2**32, below which the hash of a kept entry lies."""
    return min(max(round(probability * 2.0**32), 0), 2**32)


def keep_blocks(
    k: int, rows: Array, cols: Array, probability: float, blocks: Sequence[slice], xp: Any = np
) -> Iterator[tuple[slice, Array]]:
    """Yield (block of rows, bool mask) for each of these blocks, of which the first is the largest.

    Entry (i, j) is True with the given probability. It depends on (k, rows[i], cols[j]) only. The mask is
    one buffer that the next step overwrites. Two arrays of its size are made beside it.
    """
    if not blocks:
        return
    threshold = keep_threshold(probability)
    low, odd, columns = keep_keys(k, rows, cols)
    x, shifted = xp.empty((2, blocks[0].stop - blocks[0].start, len(cols)), dtype=np.uint32)
    keep = xp.empty(x.shape, dtype=bool)
    for part in blocks:
        size = part.stop - part.start
        x, shifted, keep = x[:size], shifted[:size], keep[:size]
        xp.bitwise_xor(columns, low[part, None], out=x)
        _mix(x, odd[part, None], shifted, xp)
        if threshold == 2**32:
            keep[...] = True
        else:
            xp.less(x, np.uint32(threshold), out=keep)
        yield part, keep


def keep_entries(
    k: int, rows: Array, cols: Array, places: tuple[Array, Array], probability: float,
    blocks: Sequence[slice], xp: Any = np,
) -> Iterator[tuple[slice, Array]]:  # fmt: skip
    """Yield (block of entries, bool mask), of entries (i, j) = ``places`` of the mask of `keep_blocks`.

    ``places`` are numbers in ``rows`` and in ``cols``, cut into blocks. No array is as large as the mask.
    """
    threshold = keep_threshold(probability)
    low, odd, columns = keep_keys(k, rows, cols)
    for part in blocks:
        i, j = (place[part] for place in places)
        x = columns.take(j)  # twice as fast as columns[j]
        x ^= low.take(i)
        _mix(x, odd.take(i), xp.empty_like(x), xp)
        yield part, x < np.uint32(threshold) if threshold < 2**32 else xp.ones(x.shape, bool)


def _mix(x: Array, odd: Array, shifted: Array, xp: Any) -> None:
    """Make the hashes of entries of the keys of their rows and columns, in place."""
    xp.multiply(x, odd, out=x)
    xp.right_shift(x, np.uint32(16), out=shifted)
    xp.bitwise_xor(x, shifted, out=x)
    xp.multiply(x, np.uint32(_MIX32), out=x)  # now the upper bits, which decide, depend on all


def keep_mask(k: int, rows: Array, cols: Array, probability: float, xp: Any = np) -> Array:
    """Return the mask of `keep_blocks` for all rows: bool[len(rows), len(cols)]."""
    ((_, mask),) = keep_blocks(k, rows, cols, probability, [slice(0, len(rows))], xp)
    return mask


def glorot(
    seed: int, layer: int, shape: tuple[int, int], rows: Array, cols: Array, dtype: Any = np.float32
) -> Array:  # fmt: skip
    """Return entries (rows, cols) of a layer's initial weights: uniform in ±sqrt(6 / (fan in + fan out)).

    `shape` is the global (fan in, fan out); entry (i, j) is a function of (seed, layer, i, j, shape). Glorot
    and Bengio: Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010.
    """
    limit = math.sqrt(6.0 / max(sum(shape), 1))
    return ((2.0 * uniform(key(seed, WEIGHTS, layer), rows, cols) - 1.0) * limit).astype(dtype)

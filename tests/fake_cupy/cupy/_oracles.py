"""Oracles of the kernels of ``kernels/*.cu`` in NumPy: a function per kernel, with its parameters.

``types`` are the template arguments. Arrays come as NumPy's, null pointers as None.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from cupy._sampling import *  # noqa: F403

Array = Any
_UNITS = {"uint4": 16, "uint2": 8, "unsigned": 4}  # bytes


def spmm(
    types: list[str], G: Any, P: Any, most: Any, total: Array, pieces: Array, workspace: Array, ldw: Any,
    arrived: Array, longest: Any, count: Any, rows: Array, begins: Array, lengths: Array, m: Any, K: Any,
    bundled: Any, indptr: Array, indices: Array, weights: Array, B: Array, ldb: Any, f: Any, out: Array,
    accumulate: Any, bias: Array, relu: Any, row_keys: Array, column_keys: Array, threshold: Any, scale: Any,
    bits: Array,
) -> None:  # fmt: skip
    B = np.ascontiguousarray(B.reshape(-1, int(ldb))[:, : int(f)])
    if B.dtype == np.uint16:
        narrow_B, B = B, np.empty(B.shape, np.float32)
        widen(types, B.size, narrow_B, 0, B)
    product = sp.csr_matrix((weights, indices, indptr), shape=(int(m), len(B))) @ B
    out[...] = product + out if accumulate else product
    activate(types, out.size, f, out, bias, relu, row_keys, column_keys, threshold, scale, out, bits)


def best(
    types: list[str], m: Any, indptr: Array, indices: Array, values: Array, B: Array, f: Any, codes: Array,
    first: Any, plus: Any, least: Any, merge: Any, lanes: Any, lowest: Any, out: Array, held: Array,
) -> None:  # fmt: skip
    """Take one entry after another."""
    sign = out.dtype.type(-1 if least else 1)
    out[...], held[...] = (sign * out, held) if merge else (lowest, -1)
    for row in range(int(m)):
        for p in range(indptr[row], indptr[row + 1]):
            j = indices[p]
            code, x = (first + j if codes is None else codes[j]), B[j]
            with np.errstate(invalid="ignore"):
                x = sign * (x if values is None else values[p] + x if plus else values[p] * x)
            best, own = out[row], held[row]
            missing, lost = np.isnan(x), np.isnan(best)
            equal = ((x == best) | (missing & lost)) & ((own < 0) | (code < own))
            better = (x > best) | (missing & ~lost) | equal
            best[better], own[better] = x[better], code
    out *= sign


def best_back(
    types: list[str], k: Any, indptr: Array, indices: Array, values: Array, gradient: Array, held: Array,
    f: Any, codes: Array, first: Any, lanes: Any, out: Array,
) -> None:  # fmt: skip
    for row in range(int(k)):
        entries = slice(indptr[row], indptr[row + 1])
        own = held[indices[entries]] == (first + row if codes is None else codes[row])
        sent = gradient[indices[entries]] * (1 if values is None else values[entries, None])
        out[row] = np.where(own, sent, 0).sum(axis=0)


def cut_rows(types: list[str], m: Any, indptr: Array, longest: Any, total: Array, pieces: Array) -> None:
    """Count the pieces of long rows; `spmm` here has no use for the pieces themselves."""
    lengths = np.diff(indptr).astype(np.int64)
    counts = np.minimum(-(-lengths // int(longest)), np.sqrt(2 * lengths).astype(np.int64))
    total[...] = counts[lengths > longest].sum()


def gather_rows(types: list[str], count: Any, rows: Array, from_: Array, width: Any, to: Array) -> None:
    nbytes = int(width) * _UNITS[types[0]]
    whole = np.dtype((np.void, nbytes))
    if len(rows):
        source, target = (x.reshape(-1).view(np.uint8).view(whole) for x in (from_, to))
        target[...] = source[rows]


def add_rows(types: list[str], count: Any, rows: Array, from_: Array, width: Any, to: Array) -> None:
    to.reshape(-1, int(width))[rows] += from_.reshape(-1, int(width))


def narrow(types: list[str], size: Any, from_: Array, to: Array) -> None:
    if types[0] == "Float16":
        with np.errstate(over="ignore"):
            to.view(np.float16)[...] = from_
        return
    bits = from_.view(np.uint32).astype(np.uint64)
    nearest = bits + 0x7FFF + (bits >> 16 & 1)
    to[...] = np.where(np.isnan(from_), bits | 0x400000, nearest) >> 16


def narrow_padded(types: list[str], size: Any, from_: Array, f: Any, pitch: Any, to: Array) -> None:
    to[...] = 0
    rows: Array = np.empty((len(to), int(f)), to.dtype)
    narrow(types, rows.size, from_.reshape(rows.shape), rows)
    to[:, : int(f)] = rows


def narrow_rows(types: list[str], count: Any, rows: Array, from_: Array, width: Any, to: Array) -> None:
    narrow(types, to.size, from_.reshape(-1, int(width))[rows], to.reshape(-1, int(width)))


def widen(types: list[str], size: Any, from_: Array, accumulate: Any, to: Array) -> None:
    wide: Array = from_.view(np.float16) if types[0] == "Float16" else from_.astype(np.uint32) << 16
    wide = wide.astype(np.float32) if types[0] == "Float16" else wide.view(np.float32)
    to[...] = to + wide if accumulate else wide


def dropout_keys(
    types: list[str], row_count: Any, rows: Array, column_count: Any, columns: Array, row_key: Any,
    column_key: Any, given: Array, keys: Array,
) -> None:  # fmt: skip
    seeds = (row_key, column_key) if given is None else given
    pairs = zip((rows, columns), seeds, strict=True)
    hashed = [_hashed(_hashed(ids.astype(np.uint64)) ^ key) for ids, key in pairs]
    keys[...] = np.concatenate(hashed)


def _hashed(x: Array) -> Array:
    """Hash with SplitMix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def layer_norm(
    types: list[str], m: Any, f: Any, epsilon: Any, gain: Array, shift: Array, z: Array, normal: Array,
    out: Array, scales: Array,
) -> None:  # fmt: skip
    centred = z - z.mean(axis=1, keepdims=True, dtype=np.float64)
    scales[...] = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
    n = (centred * scales).astype(z.dtype)
    if normal is not None:
        normal[...] = n
    out[...] = gain * n + shift


def layer_norm_backward(
    types: list[str], m: Any, f: Any, height: Any, normal: Array, scales: Array, gain: Array, gradient: Array,
    sums: Array,
) -> None:  # fmt: skip
    for warp, first in enumerate(range(0, int(m), int(height))):
        rows = slice(first, first + int(height))
        n, g = normal[rows].astype(np.float64), gradient[rows]
        sums[warp] = np.append((n * g).sum(axis=0), g.sum(axis=0, dtype=np.float64))
        g = g * gain
        along = (n * g).mean(axis=1, keepdims=True)
        gradient[rows] = (g - g.mean(axis=1, keepdims=True, dtype=np.float64) - n * along) * scales[rows]


def activate(
    types: list[str], size: Any, f: Any, x: Array, bias: Array, relu: Any, row_keys: Array,
    column_keys: Array, threshold: Any, scale: Any, out: Array, bits: Array,
) -> None:  # fmt: skip
    y = x.reshape(-1, int(f))
    y = y if bias is None else y + bias
    y = np.where(y < 0, y.dtype.type(0), y) if relu else y
    if row_keys is not None:
        low, high = ((row_keys >> np.uint64(by)).astype(np.uint32)[:, None] for by in (0, 32))
        mixed = ((column_keys >> np.uint64(32)).astype(np.uint32) ^ low) * (high | np.uint32(1))
        mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x846CA68B)
        y = y * np.where(mixed < threshold, scale, y.dtype.type(0))
    if bits is not None:
        packed = np.packbits(y.reshape(-1) > 0)
        bits.view(np.uint8)[...] = np.append(packed, np.zeros(bits.nbytes - packed.size, np.uint8))
    if out is not None:
        out.reshape(y.shape)[...] = y


def keep_positive(types: list[str], size: Any, bits: Array, scale: Any, gradient: Array) -> None:
    kept = np.unpackbits(bits)[: gradient.size].reshape(gradient.shape)
    gradient *= np.where(kept, scale, gradient.dtype.type(0))


def softmax_cross_entropy(
    types: list[str], m: Any, position: Array, labels: Array, logits: Array, f: Any, G: Any, scale: Any,
    gradient: Array, losses: Array,
) -> None:  # fmt: skip
    rows = np.flatnonzero(position >= 0)
    place, own = position[rows], np.arange(rows.size)
    z = logits[rows] - logits[rows].max(axis=1, keepdims=True, initial=np.finfo(logits.dtype).min)
    powers = np.exp(z)
    total = powers.sum(axis=1)
    losses[place] = np.log(total) - z[own, labels[place]]
    softmax = powers / total[:, None]
    softmax[own, labels[place]] -= 1
    gradient[...] = 0
    gradient[rows] = softmax * scale


def count_hits(
    types: list[str], count: Any, rows: Array, labels: Array, parts: Array, logits: Array, f: Any,
    hits: Array,
) -> None:  # fmt: skip
    z = logits[rows]
    wrong = ~np.isfinite(z).all(axis=1)
    right = ~wrong & (z.argmax(axis=1) == labels)
    hits += np.bincount(parts[right], minlength=4)
    hits[0] += wrong.sum()


def binary_cross_entropy(
    types: list[str], m: Any, position: Array, labels: Array, logits: Array, f: Any, scale: Any,
    gradient: Array, losses: Array,
) -> None:  # fmt: skip
    rows = np.flatnonzero(position >= 0)
    place, z = position[rows], logits[rows]
    own = labels[place].astype(z.dtype)
    losses[place] = (np.logaddexp(0, z) - own * z).sum(axis=1)
    gradient[...] = 0
    gradient[rows] = (np.exp(-np.logaddexp(0, -z)) - own) * scale


def adam(
    types: list[str], rate: Any, correction: Any, first: Any, second: Any, rest: Any, rest2: Any,
    epsilon: Any, factors: Array, square: Array, most: Any, count: Any, bad: Array, *parts: Any,
) -> None:  # fmt: skip
    number = type(rate)
    rate, correction = (rate, correction) if factors is None else map(number, factors[:2])
    for i, (_, shrink, decay, given, w, m, v) in _parts(parts):
        if w is None:
            continue
        x = w * (shrink if factors is None else number(factors[2 + i]))
        g = _clipped(given, square, most) + decay * x
        bad[i] |= not _squares_are_finite(given)
        m[...] = first * m + rest * g
        v[...] = second * v + rest2 * (g * g)
        w[...] = x - rate * m / (np.sqrt(v / correction) + epsilon)
        bad[count + i] |= not _squares_are_finite(w)


def sgd(
    types: list[str], rate: Any, momentum: Any, factors: Array, square: Array, most: Any, count: Any,
    bad: Array, *parts: Any,
) -> None:  # fmt: skip
    rate = rate if factors is None else type(rate)(factors[0])
    for i, (_, _, decay, given, w, _, v) in _parts(parts):
        if w is None:
            continue
        g = _clipped(given, square, most)
        bad[i] |= not _squares_are_finite(given)
        g = g + decay * w if decay else g
        if v is not None:
            v[...] = g = g + momentum * v
        w[...] = w - rate * g
        bad[count + i] |= not _squares_are_finite(w)


def _parts(arguments: tuple[Any, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    return enumerate(arguments[first : first + 7] for first in range(0, len(arguments), 7))


def _clipped(g: Array, square: Array, most: Any) -> Array:
    if square is None or not np.isfinite(square[0]):
        return g
    return (g * (most / max(np.sqrt(square[0]), most))).astype(g.dtype)


def _squares_are_finite(x: Array) -> bool:
    return bool(np.isfinite(x * x).all())


def sum_squares(
    types: list[str], add: Any, sums: Array, arrived: Array, square: Array, *arrays: Any
) -> None:  # fmt: skip
    assert not arrived.any()
    total = sum((x.astype(np.float64) ** 2).sum() for x in arrays[1::2] if x is not None)
    square[...] = square + total if add else total


def sample_weighted(
    types: list[str], rows: Any, count: Any, pointers: Array, weights: Array, keys: Array, picked: Array,
    remaining: Array, prefix: Array, summed: Any, bad: Array,
) -> None:  # fmt: skip
    from distgnn.local.array_draw import mark

    if summed:
        assert not picked.any()
        rows_sums = [np.cumsum(weights[i:j]) for i, j in itertools.pairwise(pointers.tolist())]
        assert prefix.tobytes() == np.concatenate(rows_sums).tobytes()
    first_bad = mark(pointers, weights, int(count), keys, picked, remaining)
    bad[...] = np.arange(bad.size) == first_bad


def sample_ones(
    types: list[str], rows: Any, count: Any, pointers: Array, selected: Array, keys: Array, offsets: Array,
    order: Array, positions: Array,
) -> None:  # fmt: skip
    from distgnn.local.array_draw import mark

    first, lengths = pointers[selected], pointers[selected + 1] - pointers[selected]
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    picked = np.empty(bounds[-1], np.uint8)
    mark(bounds, np.ones(bounds[-1]), int(count), keys, picked, None)
    drawn = np.flatnonzero(picked)
    row = np.searchsorted(bounds, drawn, side="right") - 1
    positions[...] = drawn - bounds[row] + first[row]

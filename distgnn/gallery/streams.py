"""Random streams that depend on (seed, purpose, chunk) only, and the distributions that generators share."""

from __future__ import annotations

import numpy as np

LONGEST_PURPOSE = 8


def stream(seed: int, purpose: str, chunk: int = 0) -> np.random.Generator:
    """Return the random stream of a chunk for `purpose` (at most 8 ASCII characters).

    Streams may be drawn in any order, on any rank. Philox is counter-based (Salmon et al., SC'11): seed and
    purpose are its key, and the chunk is the highest word of its counter, so two streams never meet.
    """
    word = purpose.encode("ascii")
    if len(word) > LONGEST_PURPOSE:
        raise ValueError(f"purpose {purpose!r} is longer than {LONGEST_PURPOSE} characters")
    key = np.array([seed, int.from_bytes(word, "little")], dtype=np.uint64)
    counter = np.array([0, 0, 0, chunk], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def unit_rows(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """Draw directions uniformly from the sphere, float64 (rows, width)."""
    directions = rng.standard_normal((rows, width))
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    return directions / np.where(norms > 0, norms, 1.0)


def power_law(rng: np.random.Generator, count: int, exponent: float) -> np.ndarray:
    """Draw values >= 1 whose density falls like x**-exponent, for exponents above 1: float64 (count,)."""
    logarithm = -np.log1p(-rng.random(count)) / (exponent - 1.0)
    return np.exp(np.minimum(logarithm, 500.0))  # exponents close to 1 overflow otherwise


class AliasTable:
    """A table to draw from a fixed discrete distribution in constant time: Walker's alias method.

    One 64-bit word per draw: the highest bits choose an outcome, the others whether it becomes its alias.
    """

    def __init__(self, probabilities: np.ndarray):
        """Build the table of `probabilities`: float64, a power of two of them (at least two), sum 1."""
        bits = len(probabilities).bit_length() - 1
        if bits < 1 or len(probabilities) != 1 << bits:
            raise ValueError(f"expected a power of two of outcomes, got {len(probabilities)}")
        keep, self.alias = _pair_up(probabilities)
        self._fraction_bits = np.uint64(64 - bits)
        self._fraction = np.uint64((1 << (64 - bits)) - 1)
        self._threshold = (keep * 2.0 ** (64 - bits)).astype(np.uint64)

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw outcomes, int64 (count,)."""
        word = rng.bit_generator.random_raw(count)
        cell = (word >> self._fraction_bits).astype(np.int64)
        stays = (word & self._fraction) < self._threshold[cell]
        return np.where(stays, cell, self.alias[cell])


def _pair_up(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Build the table (Vose): outcome i stays i with probability keep[i], else becomes alias[i]."""
    keep = np.asarray(probabilities, np.float64) * len(probabilities)
    alias = np.arange(len(keep))
    small = [i for i, p in enumerate(keep) if p < 1.0]
    large = [i for i, p in enumerate(keep) if p >= 1.0]
    while small and large:
        i, j = small.pop(), large[-1]
        alias[i] = j
        keep[j] -= 1.0 - keep[i]
        if keep[j] < 1.0:
            small.append(large.pop())
    for i in small + large:  # 1 up to rounding
        keep[i] = 1.0
    return keep, alias

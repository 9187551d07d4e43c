"""Dense products of float32 summed over many rows on the tensor cores of Hopper: ``kernels/gemm_columns.cu``.

Rows are cut in parts, as many as the shape says, whose sums are added up in order: runs repeat to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.local.cuda.launch import WARP, Array, launch, library
from distgnn.local.cuda.narrow import KINDS, Rounded, stored
from distgnn.local.cuda.tiles import READ, Tile, parts

FILE = "gemm_columns.cu"
FEATURES, CHUNK = 128, 32  # columns of A in a tile; rows in shared memory at a time
PLACES, PART = 132, 256  # blocks that a large GPU has room for, nominally; rows of a part, at least


TILES = [Tile("gemm_columns", fragments, stages=4) for fragments in (2, 6, 16)]  # narrow ones first


def kernel_names() -> list[str]:
    """List all kernels of the file: by parts and types of A and B, of float32 both exact or both rounded."""
    types = [("float", 2), ("float", 1), (KINDS[READ], 1)]
    pairs = [(a, b) for a in types for b in types if a[0] != b[0] or a == b]
    ways = [(a_parts, b_parts, a, b) for (a, a_parts), (b, b_parts) in pairs]
    return [*(tile.name(*way) for tile in TILES for way in ways), "sum_parts"]


def shared(tile: Tile, A: Array | Rounded, B: Array | Rounded, exact: bool) -> int:
    """Return the bytes of shared memory of a block: chunks as they come, and two of B as they are held."""
    rows = sum(16 + width * stored(X)[1].itemsize for X, width in ((A, FEATURES), (B, tile.width)))
    return CHUNK * (tile.stages * rows + 4 * 2 * parts(B, exact) * tile.width)


def product(
    A: Array | Rounded, B: Array | Rounded, units: tuple[np.int32, np.int32], out: Array, accumulate: bool,
    exact: bool,
) -> None:  # fmt: skip
    """Compute ``out = Aᵀ B``, or add it; A (k, m), B (k, n), row by row, float32 or of 16 bits, with k long.

    units: how many numbers of their rows may be copied together; exact: with the error of float32.
    """
    xp: Any = library(out)
    (k, m), n = A.shape, B.shape[1]
    tile = next((tile for tile in TILES if n <= tile.width), TILES[-1])
    tiles = -(-m // FEATURES) * -(-n // tile.width)
    count = max(min(PLACES // tiles, k // PART), 1)
    part = -(-k // (count * CHUNK)) * CHUNK
    count = -(-k // part)
    sums = xp.empty((count, m, n), np.float32)
    sizes = map(np.int32, (m, n, k))
    (of_A, *lying_A), (of_B, *lying_B) = stored(A), stored(B)
    name = tile.name(parts(A, exact), parts(B, exact), of_A, of_B)
    operands = *sizes, *lying_A, units[0], *lying_B, units[1], np.int32(part), sums
    launch(xp, FILE, name, (count, tiles), *operands, shared=shared(tile, A, B, exact))
    arguments = np.int64(out.size), np.int32(count), sums, np.int32(accumulate), out
    launch(xp, FILE, "sum_parts", -(-out.size // WARP), *arguments)

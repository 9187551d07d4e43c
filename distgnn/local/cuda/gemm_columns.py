"""Dense products of float32 summed over many rows on the tensor cores of Hopper: ``kernels/gemm_columns.cu``.

Rows are cut in parts, as many as the shape says, whose sums are added up in order: runs repeat to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.local.cuda.launch import WARP, Array, launch, library
from distgnn.local.cuda.tiles import EXACT, TF32, Tile, parts

FILE = "gemm_columns.cu"
FEATURES, CHUNK = 128, 32  # columns of A in a tile; rows in shared memory at a time
PLACES, PART = 132, 256  # blocks that a large GPU has room for, nominally; rows of a part, at least


TILES = [Tile("gemm_columns", fragments, stages=4) for fragments in (2, 6, 16)]  # narrow ones first


def kernel_names() -> list[str]:
    """List all kernels of the file."""
    return [*(tile.name(products) for tile in TILES for products in (EXACT, TF32)), "sum_parts"]


def shared(tile: Tile, products: int) -> int:
    """Return the bytes of shared memory of a block: chunks as they come, and two of B as they are held."""
    held = 2 * parts(products) * tile.width
    return 4 * CHUNK * (tile.stages * (FEATURES + 4 + tile.width + 4) + held)


def product(
    A: Array, B: Array, units: tuple[np.int32, np.int32], out: Array, accumulate: bool, products: int
) -> None:  # fmt: skip
    """Compute ``out = Aᵀ B``, or add it; A (k, m), B (k, n), row by row, float32, with k long.

    units: how many numbers of their rows may be copied together; products: of TF32 for each.
    """
    xp: Any = library(A)
    (k, m), n = A.shape, B.shape[1]
    tile = next((tile for tile in TILES if n <= tile.width), TILES[-1])
    tiles = -(-m // FEATURES) * -(-n // tile.width)
    count = max(min(PLACES // tiles, k // PART), 1)
    part = -(-k // (count * CHUNK)) * CHUNK
    count = -(-k // part)
    sums = xp.empty((count, m, n), np.float32)
    sizes = map(np.int32, (m, n, k))
    launch(
        xp, FILE, tile.name(products), (count, tiles), *sizes, A, units[0], B, units[1], np.int32(part), sums,
        shared=shared(tile, products),
    )  # fmt: skip
    arguments = np.int64(out.size), np.int32(count), sums, np.int32(accumulate), out
    launch(xp, FILE, "sum_parts", -(-out.size // WARP), *arguments)

"""Dense products of float32 summed over many rows on the tensor cores of Hopper: ``kernels/gemm_columns.cu``.

Rows are cut in parts, as many as the shape says, whose sums are added up in order: runs repeat to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn.local.cuda.launch import WARP, Array, launch, library

FILE = "gemm_columns.cu"
FEATURES, CHUNK = 128, 32  # columns of A in a tile; rows in shared memory at a time
PLACES, PART = 132, 256  # blocks that a large GPU has room for, nominally; rows of a part, at least


@dataclass(frozen=True)
class Tile:
    """A tile of a product: 128 columns of A, 8 ``fragments`` of B, ``stages`` chunks in shared memory."""

    fragments: int
    stages: int

    @property
    def name(self) -> str:
        """The C++ name of the kernel."""
        return f"gemm_columns<{self.fragments},{self.stages}>"

    @property
    def width(self) -> int:
        return 8 * self.fragments

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: chunks as they come, and two of B split."""
        return 4 * CHUNK * (self.stages * (FEATURES + 4 + self.width + 4) + 4 * self.width)


TILES = [Tile(2, 4), Tile(6, 4), Tile(16, 4)]  # narrow ones first


def kernel_names() -> list[str]:
    """List all kernels of the file."""
    return [*(tile.name for tile in TILES), "sum_parts"]


def product(A: Array, B: Array, units: tuple[np.int32, np.int32], out: Array, accumulate: bool) -> None:
    """Compute ``out = Aᵀ B``, or add it; A (k, m), B (k, n), row by row, float32, with k long.

    units: how many numbers of their rows may be copied together.
    """
    xp: Any = library(A)
    (k, m), n = A.shape, B.shape[1]
    tile = next((tile for tile in TILES if n <= tile.width), TILES[-1])
    tiles = -(-m // FEATURES) * -(-n // tile.width)
    parts = max(min(PLACES // tiles, k // PART), 1)
    part = -(-k // (parts * CHUNK)) * CHUNK
    parts = -(-k // part)
    sums = xp.empty((parts, m, n), np.float32)
    sizes = map(np.int32, (m, n, k))
    launch(
        xp, FILE, tile.name, (parts, tiles), *sizes, A, units[0], B, units[1], np.int32(part), sums,
        shared=tile.shared,
    )  # fmt: skip
    arguments = np.int64(out.size), np.int32(parts), sums, np.int32(accumulate), out
    launch(xp, FILE, "sum_parts", -(-out.size // WARP), *arguments)

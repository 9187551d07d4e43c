"""Dense products of tall matrices of float32 on the tensor cores of Hopper: ``kernels/gemm.cu``.

Their error is that of products in float32. The order of a sum depends on the shapes alone, so that runs
repeat to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.local.cuda.elementwise import ending
from distgnn.local.cuda.gemm_columns import product
from distgnn.local.cuda.launch import Array, address, attribute, check, launch, library
from distgnn.local.cuda.native import runs_here
from distgnn.local.epilogue import Ending

FILE = "gemm.cu"
ROWS, TEAMS = 64, 2  # of a tile, and of those that a block has at a time
CHUNK, PITCH = 32, 40  # of the inner dimension in shared memory, and their room
FEWEST = 16  # products that are added up: float32 rounds fewer less
SHORT, LONGEST = 4096, np.iinfo(np.int32).max - 4096  # dimensions, at most
BESIDE = 4  # tiles, at most: as often A is read
FLAT = 64  # inner dimensions up to which narrower tiles, of which a multiprocessor has two blocks, are faster


@dataclass(frozen=True)
class Tile:
    """A tile of a product: 64 rows, 8 ``fragments`` columns, and ``stages`` chunks of A in shared memory."""

    fragments: int
    stages: int

    @property
    def name(self) -> str:
        """The C++ name of the kernel."""
        return f"gemm<{self.fragments},{self.stages}>"

    @property
    def width(self) -> int:
        return 8 * self.fragments

    def shared(self, k: int) -> int:
        """Return the bytes of shared memory of a block, which holds B (k, width) twice."""
        return 4 * (TEAMS * self.stages * ROWS * PITCH + 2 * -(-k // CHUNK) * CHUNK * self.width)

    def blocks(self, k: int, room: int) -> int:
        """Return how many blocks a multiprocessor has, which gives one ``room`` bytes at most."""
        return 2 if self.fragments <= 8 and 2 * self.shared(k) + 1024 <= room else 1


TILES = [Tile(2, 3), Tile(6, 3), Tile(8, 3), Tile(16, 3)]  # narrow ones first


def kernel_names() -> list[str]:
    """List all kernels of the file."""
    return [tile.name for tile in TILES]


def gemm(A: Array, B: Array, out: Array, accumulate: bool = False, then: Ending | None = None) -> bool:
    """Compute ``out = A B``, or ``out += A B``, and ``then`` if the kernel can; False: nothing was done.

    It takes float32: A (m, k) row by row, m long, k at least 16, and B (k, n) row by row or column by column,
    both short; or A column by column and B row by row, k long. Then ``then`` is left to the caller, as it is
    where bits are to be remembered of a width that is no multiple of 8.
    """
    if any(X.dtype != np.float32 for X in (A, B, out)) or not runs_here(library(A)):
        return False
    if not out.flags.c_contiguous or min(*A.shape, *B.shape) == 0:
        return False
    check("gemm", (A.shape[0], B.shape[1]), np.float32, out=out)
    if tile := tile_for(A, B):
        _by_rows(tile, A, B, out, accumulate, then)
    elif by_columns := _are_columns(A, B):
        product(A.T, B, (unit(A.T), unit(B)), out, accumulate)
    return bool(tile or by_columns)


def tile_for(A: Array, B: Array) -> Tile | None:
    """Return the tile by which A, row by row, is multiplied; None: by none."""
    (m, k), n = A.shape, B.shape[1]
    lying = A.flags.c_contiguous and (B.flags.c_contiguous or B.flags.f_contiguous)
    tall = TUNING.long_dimension <= m <= LONGEST and FEWEST <= k <= SHORT and n <= SHORT
    best = next((place for place, tile in enumerate(TILES) if n <= tile.width), len(TILES) - 1)
    best = min(best, len(TILES) - 2) if k <= FLAT else best
    fitting = (tile for tile in TILES[best::-1] if tile.shared(k) <= _room(library(A)))
    tile = next(fitting, None)  # A is read once for each tile beside others
    return tile if lying and tall and tile and -(-n // tile.width) <= BESIDE else None


def _by_rows(tile: Tile, A: Array, B: Array, out: Array, accumulate: bool, then: Ending | None) -> None:
    xp, (m, k), n = library(A), A.shape, B.shape[1]
    turned, across = not B.flags.c_contiguous, -(-n // tile.width)
    places = attribute(xp, "MultiProcessorCount") * tile.blocks(k, _room(xp))
    grid = min(-(-m // (ROWS * TEAMS)), max(places // across, 1)), across
    then = None if then is not None and then.remember and n % 8 else then
    operands = *map(np.int32, (m, n, k)), A, unit(A), B.T if turned else B, np.int32(turned)
    end = out, np.int32(accumulate), *ending(xp, then, out)
    launch(xp, FILE, tile.name, grid, *operands, *end, shared=tile.shared(k))


def _are_columns(A: Array, B: Array) -> bool:
    """Tell whether A lies column by column with long rows, and B row by row."""
    (m, k), n = A.shape, B.shape[1]
    long = TUNING.long_dimension <= k <= LONGEST and max(m, n) <= SHORT
    return bool(long and A.flags.f_contiguous and B.flags.c_contiguous)


def _room(xp: Any) -> int:
    return attribute(xp, "MaxSharedMemoryPerBlockOptin")


def unit(X: Array) -> np.int32:
    """Return how many numbers of a row of X may be copied together: 4, 2 or 1."""
    fits = (count for count in (4, 2, 1) if not (X.shape[1] % count or address(X) % (4 * count)))
    return np.int32(next(fits))

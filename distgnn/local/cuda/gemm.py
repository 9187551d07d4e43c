"""Dense products of tall matrices of float32 on the tensor cores of Hopper, by ``kernels/gemm.cu``.

Their error is that of products in float32. The order of a sum depends on the shapes alone, so that runs
repeat to the bit.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.local.cuda.elementwise import ending
from distgnn.local.cuda.launch import Array, address, attribute, check, launch, library
from distgnn.local.epilogue import Ending

FILE = "gemm.cu"
ROWS, CHUNK, PITCH = 128, 32, 40  # of a tile; of its inner dimension at a time, and their room
HOPPER = 90  # the compute capability, whose instructions no other has
FEWEST, SHORT = 16, 4096  # products that are added up: of fewer float32 rounds less; short dimensions, at most


@dataclass(frozen=True)
class Tile:
    """A tile of a product: 128 rows, 8 ``fragments`` columns, and ``stages`` chunks of A in shared memory."""

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
        return 4 * (self.stages * ROWS * PITCH + 2 * -(-k // CHUNK) * CHUNK * self.width)

    def blocks(self, k: int, room: int) -> int:
        """Return how many blocks a multiprocessor has, which gives one ``room`` bytes at most."""
        return 2 if self.fragments <= 8 and 2 * self.shared(k) + 1024 <= room else 1


TILES = [Tile(2, 4), Tile(6, 4), Tile(8, 4), Tile(16, 4)]  # narrow ones first


def kernel_names() -> list[str]:
    """List all kernels of the file."""
    return [tile.name for tile in TILES]


def gemm(A: Array, B: Array, out: Array, accumulate: bool = False, then: Ending | None = None) -> bool:
    """Compute ``out = A B``, or ``out += A B``, and ``then`` if the kernel can; False: nothing was done.

    It takes float32: A (m, k) row by row, m long, k at least 16, and B (k, n) row by row or column by column,
    both short. Bits of a width that is no multiple of 8 are left to the caller, with all of ``then``.
    """
    tile = tile_for(A, B, out)
    if tile is None:
        return False
    check("gemm", (A.shape[0], B.shape[1]), np.float32, out=out)
    xp, (m, k), n = library(A), A.shape, B.shape[1]
    turned, across = not B.flags.c_contiguous, -(-n // tile.width)
    places = attribute(xp, "MultiProcessorCount") * tile.blocks(k, _room(xp))
    grid = min(-(-m // ROWS), max(places // across, 1)), across
    then = None if then is not None and then.remember and n % 8 else then
    operands = *map(np.int32, (m, n, k)), A, unit(A), B.T if turned else B, np.int32(turned)
    end = out, np.int32(accumulate), *ending(xp, then, out)
    launch(xp, FILE, tile.name, grid, *operands, *end, shared=tile.shared(k))
    return True


def tile_for(A: Array, B: Array, out: Array) -> Tile | None:
    """Return the tile by which :func:`gemm` multiplies these; None: it does not."""
    (m, k), n, xp = A.shape, B.shape[1], library(A)
    if any(X.dtype != np.float32 for X in (A, B, out)) or capability(xp) != HOPPER:
        return None
    lying = A.flags.c_contiguous and out.flags.c_contiguous and (B.flags.c_contiguous or B.flags.f_contiguous)
    tall = TUNING.long_dimension <= m <= np.iinfo(np.int32).max - ROWS and FEWEST <= k <= SHORT and 0 < n <= SHORT
    tile = next((tile for tile in TILES if n <= tile.width), TILES[-1])
    return tile if lying and tall and tile.shared(k) <= _room(xp) else None


def _room(xp: Any) -> int:
    return attribute(xp, "MaxSharedMemoryPerBlockOptin")


def unit(X: Array) -> np.int32:
    """Return how many numbers of a row of X may be copied together: 4, 2 or 1."""
    fits = (count for count in (4, 2, 1) if not (X.shape[1] % count or address(X) % (4 * count)))
    return np.int32(next(fits))


@functools.cache
def capability(xp: Any) -> int:
    """Return the compute capability of the device, 90 for 9.0."""
    return int(xp.cuda.Device().compute_capability)

"""Dense products of float32 with one long dimension, on tensor cores, by ``kernels/gemm.cu``.

Their error is that of products in float32. The order of a sum depends on the shapes alone, so that runs
repeat to the bit on any GPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.local.cuda.elementwise import ending
from distgnn.local.cuda.launch import THREADS, WARP, Array, address, attribute, check, launch, library
from distgnn.local.epilogue import Ending

FILE = "gemm.cu"
CHUNK, GROUP = 32, 16  # as there
HELD, STREAMED, TRANSPOSED, COLUMNS = range(4)
AMPERE = 80  # the compute capability that has what the kernel needs
FEWEST, SHORT = 16, 4096  # products that are added up, as float32 rounds fewer less often; short dimensions
PLACES, PART = 264, 256  # blocks that a large GPU has room for, nominally; rows of a part of a sum, at least


@dataclass(frozen=True)
class Tile:
    """A tile of a product, made by 8 warps, ``warps`` of them side by side.

    A warp has 16 ``down`` rows and 8 ``across`` columns. ``way``: how the operands lie; ``stages``: chunks in
    shared memory.
    """

    way: int
    warps: int
    down: int
    across: int
    stages: int

    @property
    def name(self) -> str:
        """The C++ name of the kernel."""
        return f"gemm<{self.way},{self.warps},{self.down},{self.across},{self.stages}>"

    @property
    def rows(self) -> int:
        return THREADS // WARP // self.warps * 16 * self.down

    @property
    def width(self) -> int:
        return self.warps * 8 * self.across

    def shared(self, k: int) -> int:
        """Return the bytes of shared memory of a block."""
        a = CHUNK * (self.rows + 4) if self.way == COLUMNS else self.rows * (CHUNK + 8)
        streamed = self.width * (CHUNK + 4) if self.way == TRANSPOSED else CHUNK * (self.width + 4)
        held = 2 * -(-k // GROUP) * GROUP * self.width
        return 4 * (self.stages * a + (held if self.way == HELD else self.stages * streamed))


    def blocks(self, k: int, room: int) -> int:
        """Return how many blocks a multiprocessor has, which gives one ``room`` bytes at most."""
        return 2 if self.down == 1 and 2 * self.shared(k) + 1024 <= room else 1


#: By way, narrow tiles first.
TILES = {
    HELD: [*(Tile(HELD, 1, 2, across, 4) for across in (2, 4, 6, 8)), Tile(HELD, 2, 2, 8, 4)],
    STREAMED: [*(Tile(STREAMED, 1, 2, across, 3) for across in (2, 6)), Tile(STREAMED, 2, 2, 8, 4)],
    TRANSPOSED: [Tile(TRANSPOSED, 2, 2, 8, 4)],
    COLUMNS: [*(Tile(COLUMNS, 1, 1, across, 4) for across in (2, 6)), Tile(COLUMNS, 2, 2, 8, 4)],
}


def kernel_names() -> list[str]:
    """List all kernels of the file."""
    return [*(tile.name for tiles in TILES.values() for tile in tiles), "sum_parts"]


def gemm(A: Array, B: Array, out: Array, accumulate: bool = False, then: Ending | None = None) -> bool:
    """Compute ``out = A B``, or ``out += A B``, and ``then`` if the kernel can; False: nothing was done.

    It takes float32; A (m, k) row by row, m long, k at least 16, and B (k, n) row by row or column by column;
    or A column by column and B row by row, k long. Then ``then`` is left to the caller, as it is where bits
    are to be remembered of a width that is no multiple of 8.
    """
    tile = tile_for(A, B, out)
    if tile is None:
        return False
    check("gemm", (A.shape[0], B.shape[1]), np.float32, out=out)
    if tile.way == COLUMNS:
        _columns(tile, A, B, out, accumulate)
    else:
        _rows(tile, A, B, out, accumulate, then)
    return True


def tile_for(A: Array, B: Array, out: Array) -> Tile | None:
    """Return the tile by which :func:`gemm` multiplies these; None: it does not."""
    sizes, xp = (*A.shape, B.shape[1]), library(A)
    if any(X.dtype != np.float32 for X in (A, B, out)) or not out.flags.c_contiguous or min(sizes) == 0:
        return None
    if max(sizes) > np.iinfo(np.int32).max - SHORT or capability(xp) < AMPERE:
        return None
    return next((tile for tile in _lying(A, B) if tile.shared(A.shape[1]) <= _room(xp)), None)


def _lying(A: Array, B: Array) -> list[Tile]:
    """List tiles for matrices that lie so, the best first: the narrowest as wide as B, or the widest."""
    (m, k), n, long = A.shape, B.shape[1], TUNING.long_dimension
    other = STREAMED if B.flags.c_contiguous else TRANSPOSED
    ways: tuple[int, ...] = ()
    if m >= long and FEWEST <= k <= SHORT and n <= SHORT and A.flags.c_contiguous:
        ways = (HELD, other) if B.flags.c_contiguous or B.flags.f_contiguous else ()
    elif k >= long and max(m, n) <= SHORT and A.flags.f_contiguous and B.flags.c_contiguous:
        ways = (COLUMNS,)
    return [next((tile for tile in TILES[way] if n <= tile.width), TILES[way][-1]) for way in ways]


def _rows(tile: Tile, A: Array, B: Array, out: Array, accumulate: bool, then: Ending | None) -> None:
    xp, (m, k), n = library(A), A.shape, B.shape[1]
    turned = not B.flags.c_contiguous
    lying, across = B.T if turned else B, -(-n // tile.width)
    places = attribute(xp, "MultiProcessorCount") * tile.blocks(k, _room(xp))
    grid = min(-(-m // tile.rows), max(places // across, 1)), across
    then = None if then is not None and then.remember and n % 8 else then
    operands = A, unit(A, k), lying, unit(B, lying.shape[1]), np.int32(turned), np.int32(0)
    end = out, np.int32(accumulate), *ending(xp, then, out)
    launch(xp, FILE, tile.name, grid, *_sizes(m, n, k), *operands, *end, shared=tile.shared(k))


def _columns(tile: Tile, A: Array, B: Array, out: Array, accumulate: bool) -> None:
    """Sum parts of the long dimension, as many as the shape says, and then their sums."""
    xp, (m, k), n = library(A), A.shape, B.shape[1]
    tiles = -(-m // tile.rows) * -(-n // tile.width)
    parts = max(min(PLACES // tiles, k // PART), 1)
    part = -(-k // (parts * CHUNK)) * CHUNK
    parts = -(-k // part)
    sums = out if parts == 1 else xp.empty((parts, m, n), np.float32)
    operands = A.T, unit(A, m), B, unit(B, n), np.int32(0), np.int32(part)
    end = sums, np.int32(accumulate and parts == 1), *ending(xp, None, out)
    launch(xp, FILE, tile.name, (parts, tiles), *_sizes(m, n, k), *operands, *end, shared=tile.shared(k))
    if parts > 1:
        arguments = np.int64(out.size), np.int32(parts), sums, np.int32(accumulate), out
        launch(xp, FILE, "sum_parts", -(-out.size // WARP), *arguments)


def _sizes(*sizes: int) -> tuple[np.int32, ...]:
    return tuple(map(np.int32, sizes))


def _room(xp: Any) -> int:
    return attribute(xp, "MaxSharedMemoryPerBlockOptin")


def unit(X: Array, pitch: int) -> np.int32:
    """Return how many numbers of a row of X may be copied together: 4, 2 or 1."""
    return np.int32(next(count for count in (4, 2, 1) if not (pitch % count or address(X) % (4 * count))))


@functools.cache
def capability(xp: Any) -> int:
    """Return the compute capability of the device, 90 for 9.0."""
    return int(xp.cuda.Device().compute_capability)

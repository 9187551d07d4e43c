"""Dense products of tall matrices of float32 on the tensor cores of Hopper: ``kernels/gemm.cu``.

Their error is that of products in float32, or of TF32 where that is asked for. The order of a sum depends on
the shapes alone, so that runs repeat to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.local.cuda.elementwise import ending
from distgnn.local.cuda.gemm_columns import product
from distgnn.local.cuda.launch import Array, address, attribute, check, launch, library
from distgnn.local.cuda.narrow import KINDS, Rounded, stored
from distgnn.local.cuda.native import runs_here
from distgnn.local.cuda.tiles import READ, Tile, parts, readable
from distgnn.local.epilogue import Ending

FILE = "gemm.cu"
ROWS, TEAMS = 64, 2  # of a tile, and of those that a block has at a time
CHUNK, PITCH = 32, 40  # of the inner dimension in shared memory, and their room
FEWEST = 16  # products that are added up: float32 rounds fewer less
SHORT, LONGEST = 4096, np.iinfo(np.int32).max - 4096  # dimensions, at most
BESIDE = 4  # tiles, at most: as often A is read
FLAT = 64  # inner dimensions up to which narrower tiles, of which a multiprocessor has two blocks, are faster


TILES = [Tile("gemm", fragments, stages=3) for fragments in (2, 6, 8, 16)]  # narrow ones first


def kernel_names() -> list[str]:
    """List all kernels of the file: by parts of A and B, and the types of C and A."""
    of_float = [(count, count, made, "float") for count in (2, 1) for made in ("float", *KINDS.values())]
    of_bits = [(1, count, made, KINDS[READ]) for count in (2, 1) for made in ("float", KINDS[READ])]
    return [tile.name(*way) for tile in TILES for way in of_float + of_bits]


def shared(tile: Tile, A: Array | Rounded, exact: bool) -> int:
    """Return the bytes of shared memory of a block, which holds all parts of B (k, width)."""
    held = (2 if exact else 1) * -(-A.shape[1] // CHUNK) * CHUNK * tile.width
    return TEAMS * tile.stages * ROWS * PITCH * stored(A)[1].itemsize + 4 * held


def gemm(
    A: Array | Rounded, B: Array | Rounded, out: Array | Rounded, accumulate: bool = False,
    then: Ending | None = None, exact: bool = True,
) -> bool:  # fmt: skip
    """Compute ``out = A B``, or ``out += A B``, and ``then`` if the kernel can; False: nothing was done.

    It takes float32: A (m, k) row by row, m long, k at least 16, and B (k, n) row by row or column by column,
    both short; or A column by column and B row by row, k long. Then ``then`` is left to the caller, as it is
    where bits are to be remembered of a width that is no multiple of 8. Numbers of 16 bits are made of a
    product alone, row by row, with all that becomes of it. What is long may have 16 bits, of type `READ`.
    exact: with the error of float32, not of TF32.
    """
    if any(X.dtype != np.float32 for X in (A, B, out)) or not runs_here(library(B)):
        return False
    if not out.flags.c_contiguous or min(*A.shape, *B.shape) == 0 or not (readable(A) and readable(B)):
        return False
    check("gemm", (A.shape[0], B.shape[1]), np.float32, out=out)
    tile, ends = tile_for(A, B, exact), then is None or not then.remember or B.shape[1] % 8 == 0
    alone = tile is not None and ends and not accumulate
    if isinstance(out, Rounded) and not (alone and getattr(A, "kind", out.kind) == out.kind):
        return False
    if tile is not None:
        _by_rows(tile, A, B, out, accumulate, then if ends else None, exact)
    elif by_columns := _are_columns(A, B):
        product(A.T, B, (unit(A.T), unit(B)), out, accumulate, exact)
    return tile is not None or by_columns


def tile_for(A: Array | Rounded, B: Array | Rounded, exact: bool) -> Tile | None:
    """Return the tile by which A, row by row, is multiplied; None: by none."""
    (m, k), n = A.shape, B.shape[1]
    lying = A.flags.c_contiguous and (B.flags.c_contiguous or B.flags.f_contiguous)
    tall = TUNING.long_dimension <= m <= LONGEST and FEWEST <= k <= SHORT and n <= SHORT
    if not (lying and tall) or isinstance(B, Rounded):
        return None
    best = next((place for place, tile in enumerate(TILES) if n <= tile.width), len(TILES) - 1)
    best = min(best, len(TILES) - 2) if k <= FLAT else best
    fitting = (tile for tile in TILES[best::-1] if shared(tile, A, exact) <= _room(library(B)))
    tile = next(fitting, None)  # A is read once for each tile beside others
    return tile if tile and -(-n // tile.width) <= BESIDE else None


def _by_rows(
    tile: Tile, A: Array | Rounded, B: Array, out: Array | Rounded, accumulate: bool, then: Ending | None,
    exact: bool,
) -> None:  # fmt: skip
    xp, (m, k), n = library(B), A.shape, B.shape[1]
    turned, across, room = not B.flags.c_contiguous, -(-n // tile.width), shared(tile, A, exact)
    two = tile.fragments <= 8 and 2 * room + 1024 <= _room(xp)  # blocks of a multiprocessor
    places = attribute(xp, "MultiProcessorCount") * (2 if two else 1)
    grid = min(-(-m // (ROWS * TEAMS)), max(places // across, 1)), across
    (read, *lying), (made, *target) = stored(A), stored(out)
    operands = *map(np.int32, (m, n, k)), *lying, unit(A), B.T if turned else B, np.int32(turned)
    target += [np.int32(accumulate), out.beyond if isinstance(out, Rounded) else None]
    name = tile.name(parts(A, exact), parts(B, exact), made, read)
    launch(xp, FILE, name, grid, *operands, *target, *ending(xp, then, out), shared=room)


def _are_columns(A: Array | Rounded, B: Array | Rounded) -> bool:
    """Tell whether A lies column by column with long rows, and B row by row."""
    (m, k), n = A.shape, B.shape[1]
    long = TUNING.long_dimension <= k <= LONGEST and max(m, n) <= SHORT
    return bool(long and A.flags.f_contiguous and B.flags.c_contiguous)


def _room(xp: Any) -> int:
    return attribute(xp, "MaxSharedMemoryPerBlockOptin")


def unit(X: Array | Rounded) -> np.int32:
    """Return how many numbers of a row of X may be copied together: 4, 2 or 1, where they are float32."""
    if isinstance(X, Rounded):
        return np.int32(0)
    fits = (count for count in (4, 2, 1) if not (X.shape[1] % count or address(X) % (4 * count)))
    return np.int32(next(fits))

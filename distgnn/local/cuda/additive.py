"""Passes of additive attention, as in :mod:`distgnn.local.additive`, by ``kernels/additive.cu``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.local.cuda import csr
from distgnn.local.cuda.edges import Tasks, by_head, types
from distgnn.local.cuda.launch import WARP, Array, check

FILE = "additive.cu"
BYTE = 8  # columns that a lane takes at a time where all heads have a multiple of that


def edge_scores(
    A: CSR, L: Array, R: Array, a: Array, bounds: Sequence[int], slope: float, out: Array, signs: Array
) -> None:
    """Compute like ``local.additive.scores``."""
    (m, k), f, heads = A.shape, L.shape[1], len(bounds) - 1
    check("edge_scores", (m, f), out.dtype, L=L)
    check("edge_scores", (k, f), out.dtype, R=R)
    check("edge_scores", (f,), out.dtype, a=a)
    check("edge_scores", (A.nnz, heads), out.dtype, out=out)
    check("edge_scores", (A.nnz, -(-f // 8)), np.uint8, signs=signs)
    V = _columns(bounds, f, L, R, a)
    G = 1 if V == BYTE and f < 4 * BYTE * heads else 8
    slope, width, tasks = out.dtype.type(slope), np.int32(f), Tasks.of(A)
    how = tasks.indices, *by_head(A, bounds, out), L, R, a, width, slope, out, signs
    tasks.launch(FILE, f"edge_scores<{types(A, out)},{G},{V}>", WARP, *how)
    if V == 1 and f:
        tasks.launch(FILE, f"edge_signs<{types(A, out)}>", WARP, tasks.indices, L, R, width, signs)


def edge_slopes(
    A: CSR, values: Array, signs: Array, slope: float, bounds: Sequence[int], out: Array, add: bool,
    order: Array,
) -> None:  # fmt: skip
    """Compute like ``local.additive.slope_sums``."""
    f = out.shape[1]
    check("edge_slopes", (A.shape[0], f), values.dtype, out=out)
    check("edge_slopes", (A.nnz, len(bounds) - 1), values.dtype, values=values)
    check("edge_slopes", (len(signs), -(-f // 8)), np.uint8, signs=signs)
    check("edge_slopes", (A.nnz,), A.indices.dtype, order=order)
    if order is None and len(signs) != A.nnz:
        raise ValueError(f"edge_slopes: signs must have {A.nnz} rows, got {len(signs)}")
    V = _columns(bounds, f, out)
    G = 8 if V == BYTE and f <= 8 * BYTE else WARP
    how = *by_head(A, bounds, out), values, order, signs, np.int32(f), out.dtype.type(slope)
    Tasks.of(A).sum_rows(FILE, f"edge_slopes<{types(A, out)},{G},{V}>", G, how, out, add)


def _columns(bounds: Sequence[int], f: int, *arrays: Array) -> int:
    """Return the columns that a lane takes at a time; these arrays are read by 16 bytes."""
    if (bounds[0], bounds[-1]) != (0, f):
        raise ValueError(f"edge_scores: bounds must go from 0 to {f}, got {list(bounds)}")
    aligned = all(csr.address(array) % csr.VECTOR_BYTES == 0 for array in arrays)
    return BYTE if aligned and all(bound % BYTE == 0 for bound in bounds) else 1

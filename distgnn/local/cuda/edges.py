"""Passes over entries with a number per head, as in :mod:`distgnn.local.edges`, by ``kernels/edges.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.local.cuda.csr import aligned
from distgnn.local.cuda.launch import WARP, Array, blocks_for, c_type, check, launch, library

FILE = "edges.cu"
WIDE = 8  # lanes side by side on the columns of a head, or of a row: these, or 1 and all


def edge_products(
    A: CSR, values: Array, B: Array, bounds: Sequence[int], out: Array, add: bool, order: Array
) -> None:
    """Compute like ``local.edges.multiply``; ``bounds`` must cover all columns."""
    m, f = out.shape
    check("edge_products", (A.shape[1], f), values.dtype, B=B)
    check("edge_products", (A.shape[0], f), values.dtype, out=out)
    check("edge_products", (A.nnz, len(bounds) - 1), values.dtype, values=values)
    check("edge_products", (A.nnz,), A.indices.dtype, order=order)
    if (bounds[0], bounds[-1]) != (0, f):
        raise ValueError(f"edge_products: bounds must go from 0 to {f}, got {list(bounds)}")
    lanes = WIDE if f <= 4 * WIDE else WARP
    how = *_heads(A, bounds, out), values, order, B, np.int32(f), out, np.int32(add)
    _launch(f"edge_products<{_types(A, out)},{lanes}>", m * lanes if f else 0, A, *how)


def edge_dots(A: CSR, U: Array, V: Array, bounds: Sequence[int], out: Array) -> None:
    """Compute like ``local.edges.dots``."""
    heads = len(bounds) - 1
    check("edge_dots", (A.shape[0], U.shape[1]), U.dtype, U=U)
    check("edge_dots", (A.shape[1], U.shape[1]), U.dtype, V=V)
    check("edge_dots", (A.nnz, heads), U.dtype, out=out)
    lanes = WIDE if bounds[-1] > WIDE * heads else 1
    how = *_heads(A, bounds, out), U, V, np.int32(U.shape[1]), out
    _launch(f"edge_dots<{_types(A, out)},{lanes}>", A.shape[0] * WARP, A, *how)


def edge_softmax(
    A: CSR, x: Array, maxima: Array, sums: Array, phases: int, ends: tuple[Array, Array] | None, slope: float,
    signs: Array, first: int,
) -> None:  # fmt: skip
    """Compute like ``local.edges.softmax``."""
    (m, k), heads = A.shape, x.shape[1]
    u, v = ends or (None, None)
    check("edge_softmax", (A.nnz, heads), A.dtype, x=x)
    check("edge_softmax", (m, heads), x.dtype, u=u, maxima=maxima, sums=sums)
    check("edge_softmax", (k, heads), x.dtype, v=v)
    numbers = x.dtype.type(slope), x, _words(signs, first + x.size), np.int64(first)
    how = np.int32(heads), u, v, *numbers, maxima, sums, np.int32(phases)
    _launch(f"edge_softmax<{_types(A, x)}>", m * WARP, A, *how)


def edge_softmax_back(
    A: CSR, P: Array, x: Array, sums: Array, totals: Array, phases: int, slope: float, signs: Array,
    first: int,
) -> None:  # fmt: skip
    """Compute like ``local.edges.softmax_back``."""
    m, heads = A.shape[0], x.shape[1]
    check("edge_softmax_back", (A.nnz, heads), A.dtype, P=P, x=x)
    check("edge_softmax_back", (m, heads), x.dtype, sums=sums, totals=totals)
    numbers = P, x.dtype.type(slope), _words(signs, first + x.size), np.int64(first)
    how = np.int32(heads), *numbers, x, sums, totals, np.int32(phases)
    xp, rows = library(x), aligned(A.indptr)
    launch(xp, FILE, f"edge_softmax_back<{_types(A, x)}>", blocks_for(m * WARP), np.int64(m), rows, *how)


def _types(A: CSR, numbers: Array) -> str:
    return f"{c_type(numbers)},{c_type(A.indices)}"


def _words(signs: Array, count: int) -> Array:
    """Return the bits as 32-bit words."""
    if signs is None:
        return None
    if signs.size < 4 * -(-count // 32):
        raise ValueError(f"signs: need {4 * -(-count // 32)} bytes, got {signs.size}")
    return signs.view(np.uint32)


def _heads(A: CSR, bounds: Sequence[int], like: Array) -> tuple[Any, ...]:
    """Return the number of heads, and their columns: bounds on the device, copied once, or an even width."""
    heads = len(bounds) - 1
    even = bounds[-1] // heads if heads else 0
    if even and list(bounds) == [k * even for k in range(heads + 1)]:
        return np.int32(heads), None, np.int32(even)
    key = f"heads {bounds}"
    if key not in A.cached:
        A.cached[key] = library(like).asarray(np.array(bounds, np.int64))
    return np.int32(heads), A.cached[key], np.int32(0)


def _launch(name: str, threads: int, A: CSR, *arguments: Any) -> None:
    """Launch a kernel on the rows of a block, if there are entries or something to clear."""
    pattern = np.int64(A.shape[0]), aligned(A.indptr), aligned(A.indices)
    launch(library(A.indptr), FILE, name, blocks_for(threads), *pattern, *arguments)

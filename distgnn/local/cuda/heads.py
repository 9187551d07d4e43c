"""Products with a vector for each head, as in :mod:`distgnn.local.heads`, by ``kernels/heads.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgnn.local.cuda.elementwise import column_sums, summed_parts
from distgnn.local.cuda.launch import (
    THREADS,
    WARP,
    Array,
    blocks_for,
    c_type,
    check,
    lanes_for,
    launch,
    library,
    power_of_two,
)

FILE = "heads.cu"
IN_FLIGHT = 8  # rows of a thread


def head_sums(
    X: Array, vectors: Sequence[Array], out: Sequence[Array], first: int, width: int, head: int, add: bool
) -> None:  # fmt: skip
    """Compute like ``local.heads.sums``, of one or two vectors."""
    m, heads = len(X), out[0].shape[1]
    _check("head_sums", X, vectors, out)
    G = power_of_two(min(width, WARP))
    sizes = *_sizes(X, first, width, head, heads), np.int32(G)
    given = X, *_two(vectors), *_two(out), np.int32(add)
    launch(library(X), FILE, f"head_sums<{c_type(X)}>", blocks_for(m * heads * G), *sizes, *given)


def add_heads(
    X: Array, numbers: Sequence[Array], vectors: Sequence[Array], first: int, width: int, head: int
) -> None:  # fmt: skip
    """Compute like ``local.heads.add``, of one or two vectors."""
    (m, f), heads = X.shape, numbers[0].shape[1]
    _check("add_heads", X, vectors, numbers)
    G = lanes_for(f)
    grid = -(-m // (THREADS // G * IN_FLIGHT)), -(-f // G)
    sizes = *_sizes(X, first, width, head, heads), np.int32(G)
    launch(library(X), FILE, f"add_heads<{c_type(X)}>", grid, *sizes, *_two(numbers), *_two(vectors), X)


def head_dots(
    X: Array, numbers: Sequence[Array], first: int, width: int, head: int, scale: Array = None
) -> Array:  # fmt: skip
    """Compute like ``local.heads.dots``, of one or two matrices of numbers."""
    (m, f), heads = X.shape, numbers[0].shape[1]
    _check("head_dots", X, [] if scale is None else [scale], numbers)
    (height, parts), G = summed_parts(m), lanes_for(f)
    sums = library(X).empty((parts, len(numbers) * f), np.float64 if parts > 1 else X.dtype)
    sizes = *_sizes(X, first, width, head, heads), np.int32(G), np.int64(height)
    name = f"head_dots<{c_type(X)},{c_type(sums)}>"
    scaled = scale, None if scale is None else numbers[0]
    launch(library(X), FILE, name, (parts, -(-f // G)), *sizes, X, *_two(numbers), *scaled, sums)
    return (column_sums(sums, X.dtype) if parts > 1 else sums).reshape(len(numbers), f)


def scaled_dots(X: Array, D: Array, scale: Array) -> Array:
    """Compute like ``local.heads.scaled_dots``."""
    check("scaled_dots", X.shape, X.dtype, D=D)
    return head_dots(X, [D], 0, 1, 0, scale)


def _sizes(X: Array, first: int, width: int, head: int, heads: int) -> tuple[Any, ...]:
    m, f = X.shape
    return np.int64(m), *map(np.int32, (f, first, width, head, heads))


def _two(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Return two arrays, of which the second may be None."""
    first, second = (*arrays, None)[:2]
    return first, second


def _check(caller: str, X: Array, vectors: Sequence[Array], numbers: Sequence[Array]) -> None:
    (m, f), heads = X.shape, numbers[0].shape[1]
    check(caller, (m, f), X.dtype, X=X)
    for vector in vectors:
        check(caller, (f,), X.dtype, vector=vector)
    for array in numbers:
        check(caller, (m, heads), X.dtype, numbers=array)

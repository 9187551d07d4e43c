"""Dense matrices made where they lie: every rank makes its own part, and none holds the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distgnn import rng
from distgnn.arrays.canonical import check_real
from distgnn.arrays.csr import Shape
from distgnn.comm.grid import Grid
from distgnn.errors import ArgumentError, check_type
from distgnn.layout import Layout
from distgnn.operators.dense import DistDense


def zeros(shape: Shape | int, layout: Layout[Grid], dtype: Any = np.float64) -> DistDense:
    """Make a matrix of zeros; arguments and errors are those of :func:`from_function`. Collective."""
    return from_function(lambda i, j: 0, shape, layout, dtype)


def ones(shape: Shape | int, layout: Layout[Grid], dtype: Any = np.float64) -> DistDense:
    """Make a matrix of ones; arguments and errors are those of :func:`from_function`. Collective."""
    return from_function(lambda i, j: 1, shape, layout, dtype)


def random(shape: Shape | int, layout: Layout[Grid], dtype: Any = np.float64, *, seed: int = 0) -> DistDense:
    """Draw a matrix, uniform in [0, 1), that depends on the seed alone. Collective.

    Entry (i, j) is a function of seed, node i and column j: the same on every grid, in every layout and
    order. Other arguments and errors are those of :func:`from_function`.
    """
    layout.grid.world.agree({"seed": seed})
    key = rng.key(seed, rng.DENSE)
    return from_function(lambda i, j: rng.uniform(key, i[:, 0], j[0]), shape, layout, dtype)


def from_function(
    function: Callable[[Any, Any], Any], shape: Shape | int, layout: Layout[Grid], dtype: Any = np.float64
) -> DistDense:
    """Make the matrix whose entry (i, j), of node i and column j, is ``function(i, j)``. Collective.

    Nothing travels but what ranks compare.

    Examples:
        >>> H = from_function(lambda i, j: i == j, (4, 2), A.input_layout)  # doctest: +SKIP

    Args:
        function: gets the nodes of a rank's rows, int64 (m, 1), and its columns, int64 (1, k), on the grid's
            device; what it returns is broadcast to (m, k).
        shape: of the whole matrix; n stands for n x 1.
        layout: how it is cut, such as ``A.input_layout``.
        dtype: of real numbers; products with A take A's.

    Raises:
        ArgumentError: another number of rows than the layout cuts, no shape, or ranks disagree in it. What
            the function raises on a rank. On every rank.
    """
    check_type("layout", layout, Layout, "a Layout, such as A.input_layout")
    grid, rows = layout.grid, layout.rows.parts
    grid.world.agree({"shape": shape, "dtype": np.dtype(dtype)})
    sizes: Any = (shape, 1) if np.ndim(shape) == 0 else tuple(shape)  # type: ignore[arg-type]
    if len(sizes) != 2 or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in sizes):
        raise ArgumentError("shape", shape, "expected (rows, columns), or a number of rows for one column")
    if rows is not None and sizes[0] != rows[-1]:
        raise ArgumentError("shape", shape, f"the layout cuts {rows[-1]} rows")
    H = DistDense.empty(layout, sizes, check_real("dtype", dtype))
    with grid.world.together():
        nodes, columns = layout.rows.ids(*H.row_range), np.arange(*H.col_range)
        on = grid.backend
        H.block[...] = function(on.asarray(nodes, np.int64)[:, None], on.asarray(columns, np.int64)[None])
    return H

"""Slices of the columns of a dense matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.layout import Cut, Layout
from distgnn.operators.compared import compare

EXPECTED = "expected H[:, first:last:step], rising columns of all rows; H[:, 3:4] is one column"


def columns(H: Any, key: Any) -> Any:
    """Return ``H[:, first:last:step]`` as a new matrix, its rows cut as those of H. Collective.

    Where axes cut the columns of H, they cut those of the slice as evenly, so that columns move. Cost: the
    columns that this rank holds of the slice and not of H, in one all-to-allv.

    TypeError, on every rank: ``key`` is something else.
    """
    rows, cols = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
    if rows != slice(None) or not isinstance(cols, slice) or (cols.step or 1) < 1:
        raise TypeError(f"H[{key}]: {EXPECTED}")
    first, last, step = cols.indices(H.shape[1])
    chosen = np.arange(first, last, step)
    compare(f"columns {first}:{last}:{step}", H=H)
    held = np.searchsorted(chosen, H.layout.cols.vector(H.grid, H.shape[1]))
    left, right = H.col_range
    own = chosen[slice(*np.searchsorted(chosen, (left, right)))]
    block = H.block[:, own[0] - left : own[-1] + 1 - left : step] if own.size else H.block[:, :0]
    axes, rows = H.layout.col_axes, H.layout.rows
    where = Layout(H.grid, rows, Cut(axes, held if axes else None))
    part = type(H)(H.grid.backend.xp.ascontiguousarray(block).copy(), where, (H.shape[0], chosen.size))
    return part.redistribute(Layout(H.grid, rows, Cut(axes))) if axes else part

"""SAMPLE(P, b, s) of a matrix of weights (section 4.1.2); ``local/draw.py`` says how columns are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.local.array_draw import row_keys as row_keys
from distgnn.local.csr_rows import row_pointers, sorted_rows
from distgnn.local.draw import draw

Array = Any


def sample_rows(P: Any, count: int, keys: Array) -> Any:
    """Sample `count` distinct columns of every row of P, or all of positive weight if there are no more.

    Args:
        P: (m, n) sparse, of SciPy or CuPy; row i is a distribution up to a factor. Columns of weight 0 are
            never drawn.
        keys: uint64 (m), of :func:`row_keys`: samples don't depend on where rows stand. CuPy's if P is.

    Returns:
        (m, n) CSR, of SciPy or CuPy as P, with the drawn entries of P.

    Raises:
        ValueError: a weight that is negative, infinite or not a number, or a negative `count`.
    """
    P = sorted_rows(P, keys)
    drawn = draw(P.indptr, P.data.astype(np.float64), count, keys)
    entries = P.data[drawn.positions], P.indices[drawn.positions], row_pointers(drawn.counts)
    return type(P)(entries, shape=P.shape)

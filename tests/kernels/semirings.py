"""Cases for the kernels of ``local/aggregate.py``: small whole numbers, many equal, NaN and infinities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.local.aggregate import COMBINATIONS, Codes, Semiring, code_type

HOWS = [Semiring(reduce, combine) for reduce in ("max", "min") for combine in COMBINATIONS]


def cases(dtype: Any, f: int) -> Iterator[tuple[Semiring, Codes, sp.csr_array, np.ndarray]]:
    """Give a semiring, codes of columns in their order and in another, a matrix with empty rows, and B."""
    r = np.random.default_rng(f)
    dense = np.where(r.random((23, 30)) < 0.25, r.integers(-2, 3, (23, 30)), 0).astype(dtype)
    dense[[3, 22]] = 0
    dense[7] = 2
    A, B = sp.csr_array(dense), r.integers(-3, 4, (30, f)).astype(dtype)
    B[4, ::2], B[9, ::2], B[5], B[6] = np.nan, np.nan, np.inf, -np.inf
    table = r.permutation(30).astype(code_type(dtype))
    for how in HOWS:
        for codes in (Codes(11), Codes(0, table, np.argsort(table).astype(table.dtype))):
            yield how, codes, A, B


def before(how: Semiring, shape: tuple[int, int], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Give numbers and codes to merge with, some of none."""
    r = np.random.default_rng(1)
    T, C = r.integers(-6, 7, shape).astype(dtype), r.integers(-1, 40, shape).astype(code_type(dtype))
    T[C < 0] = np.inf if how.least else -np.inf
    T[::5, ::3] = np.where(C[::5, ::3] < 0, T[::5, ::3], np.nan)
    return T, C

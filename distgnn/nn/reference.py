"""The normalised matrix of a graph, in plain SciPy, as every rank may make it."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from distgnn.arrays.canonical import as_matrix, canonical, value_type


def normalize(A: sp.csr_array, self_loops: bool = True, dtype: Any = None) -> sp.csr_array:
    """Compute D^-1/2 (A + I) D^-1/2 with D the row sums (Kipf and Welling).

    Loops that are stored are not doubled, nor those of weight 0. Values are of `dtype`, by default as A
    promotes, computed in double precision.
    """
    dtype = value_type(as_matrix(A).dtype, dtype)
    A = canonical(A, np.float64)
    if self_loops:
        stored = sp.coo_array(A)
        added = np.setdiff1d(np.arange(A.shape[0]), stored.row[stored.row == stored.col])
        rows, columns = (np.concatenate([ends, added]) for ends in (stored.row, stored.col))
        values = np.concatenate([stored.data, np.ones(len(added))])
        A = sp.csr_array((values, (rows, columns)), shape=A.shape)
    degrees = np.asarray(A.sum(axis=1)).ravel()
    scale = np.zeros_like(degrees)
    np.divide(1.0, np.sqrt(degrees, where=degrees > 0, out=scale), where=degrees > 0, out=scale)
    pattern = sp.coo_array(A)
    values = pattern.data * (scale[pattern.row] * scale[pattern.col])
    return sp.csr_array((values.astype(dtype), (pattern.row, pattern.col)), shape=A.shape)

"""Operands of ``A @ H``: what is none, and what the caller may do about it."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.foreign import gpu_of, sparse_on_gpu
from distgnn.operators.cut_matrix import CutMatrix
from distgnn.operators.dense import DistDense

CONVERT = "distribute and scatter take dtype=np.float64, or np.float32, for both"


def is_array(H: Any) -> bool:
    """Tell whether this is a whole dense array, of NumPy or on a GPU."""
    return isinstance(H, np.ndarray) or (gpu_of(H) is not None and not sparse_on_gpu(H))


def check(A: Any, H: Any) -> None:
    """Raise TypeError or ValueError unless ``H`` is a distributed matrix that the operator A multiplies."""
    if not isinstance(H, DistDense):
        hint = "; it takes an array that rank 0 has" if is_array(H) else ""
        hint = "; aslinearoperator() takes whole arrays" if isinstance(H, np.ndarray) else hint
        hint = "; to_dense() makes one" if isinstance(H, CutMatrix) else hint
        raise TypeError(f"{A.name}: can multiply a DistDense (see scatter), got {type(H).__name__}{hint}")
    if H.shape[0] != A.shape[1]:
        raise ValueError(f"{A.name}: shapes {A.shape} and {H.shape} don't multiply")
    if not H.layout.same(A.input_layout, H.shape):
        cut, needed = H.layout.words(), A.input_layout.words()
        raise ValueError(f"{A.name}: H is cut over {cut}, this operator needs {needed}{_hint(A, H)}")
    if H.dtype != A.dtype:
        raise ValueError(f"{A.name}: A holds {A.dtype}, H holds {H.dtype}; {CONVERT}")


def _hint(A: Any, H: DistDense) -> str:
    """Return what brings H into the input layout, if anything does."""
    if H.grid is not A.grid:
        return "; it is on another grid"
    if H.layout.rows.order == A.input_layout.rows.order:
        return "; H.redistribute(A.input_layout) cuts it so"
    next_layer = H.layout.rows.order == A.output_layout.rows.order
    return "; A.layer(1) takes this order" if next_layer else "; rows are in another order of the nodes"

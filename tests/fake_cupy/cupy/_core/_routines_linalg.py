"""Rounding of what cuBLAS multiplies."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

COMPUTE_TYPE_TBD, COMPUTE_TYPE_DEFAULT, COMPUTE_TYPE_TF32 = 0, 1, 7
_types: dict[np.dtype, int] = {}


def set_compute_type(dtype: Any, compute_type: int) -> None:
    if compute_type not in (COMPUTE_TYPE_TBD, COMPUTE_TYPE_DEFAULT, COMPUTE_TYPE_TF32):
        raise NotImplementedError(f"the stand-in has no compute type {compute_type}")
    _types[np.dtype(dtype)] = compute_type


def get_compute_type(dtype: Any) -> int:
    """Return the type that was set, else what the environment says when it is first asked for."""
    dtype = np.dtype(dtype)
    if _types.get(dtype, COMPUTE_TYPE_TBD) == COMPUTE_TYPE_TBD:
        rounds = dtype == np.float32 and int(os.getenv("CUPY_TF32", "0")) > 0
        set_compute_type(dtype, COMPUTE_TYPE_TF32 if rounds else COMPUTE_TYPE_DEFAULT)
    return _types[dtype]


def rounded(x: np.ndarray) -> np.ndarray:
    """Round what a product multiplies as its compute type has it: of TensorFloat-32 10 bits are left."""
    if x.dtype != np.float32 or get_compute_type(x.dtype) != COMPUTE_TYPE_TF32:
        return x
    return rounded_to_tf32(x)


def rounded_to_tf32(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)).view(np.float32)

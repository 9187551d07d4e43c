"""A stand-in for CuPy 14.2 on machines without a GPU; put this folder's parent on ``sys.path``.

It has CuPy's names and signatures and refuses what CuPy refuses, above all to take a host array for one of
the device. All work is done at once by NumPy, but what would be queued on a GPU is tracked: see ``_work.py``,
and ``stand_in.py`` for what tests ask.
"""

from __future__ import annotations

from typing import Any

import numpy as _numpy

from cupy import cuda as cuda
from cupy._array import ndarray as ndarray
from cupy._creation import (
    arange,
    array,
    asanyarray,
    asarray,
    ascontiguousarray,
    asfortranarray,
    asnumpy,
    empty,
    empty_like,
    from_dlpack,
    full,
    full_like,
    ones,
    ones_like,
    searchsorted,
    zeros,
    zeros_like,
)  # fmt: skip
from cupy._functions import FUNCTIONS as _FUNCTIONS
from cupy._functions import UFUNCS as _UFUNCS
from cupy._functions import matmul as matmul
from cupy._functions import ufunc as ufunc
from cupy._kernels import RawKernel as RawKernel
from cupy._kernels import RawModule as RawModule
from cupy._memory import PINNED_POOL as _PINNED_POOL
from cupy._memory import POOL as _POOL
from cupy._memory import MemoryPool as _MemoryPool
from cupy._memory import PinnedMemoryPool as _PinnedMemoryPool

__version__ = "14.2.0"

_MADE_HERE = {
    "arange": arange, "array": array, "asanyarray": asanyarray, "asarray": asarray,
    "ascontiguousarray": ascontiguousarray, "asfortranarray": asfortranarray, "asnumpy": asnumpy,
    "empty": empty, "empty_like": empty_like, "from_dlpack": from_dlpack, "full": full,
    "full_like": full_like, "matmul": matmul,
    "ones": ones, "ones_like": ones_like, "searchsorted": searchsorted, "zeros": zeros,
    "zeros_like": zeros_like,
}  # fmt: skip
_FROM_NUMPY = (
    "bool_", "dtype", "e", "finfo", "float16", "float32", "float64", "generic", "iinfo", "inf", "int16",
    "int32", "int64", "int8", "intp", "nan", "newaxis", "pi", "uint16", "uint32", "uint64", "uint8", "uintp",
)  # fmt: skip

globals().update(_UFUNCS)
globals().update(_FUNCTIONS)
globals().update(_MADE_HERE)
globals().update({name: getattr(_numpy, name) for name in _FROM_NUMPY})


def get_array_module(*arrays: Any) -> Any:
    """Return this module if any of the arrays is on the device, else NumPy."""
    import cupy

    return cupy if any(isinstance(one, ndarray) for one in arrays) else _numpy


def get_default_memory_pool() -> _MemoryPool:
    return _POOL


def get_default_pinned_memory_pool() -> _PinnedMemoryPool:
    return _PINNED_POOL


def is_available() -> bool:
    return True


def __getattr__(name: str) -> Any:
    raise AttributeError(f"CuPy 14.2, or its stand-in, has no {name!r}")

"""Functions that make arrays, and those that move them between host and device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._array import TYPES, fresh, moved, moved_on, ndarray, placed
from cupy._functions import FUNCTIONS
from cupy._graphs import recorded
from cupy._memory import find
from cupy._streams import current, launch
from cupy.cuda import runtime


def array(
    obj: Any, dtype: Any = None, copy: Any = True, order: str = "K", subok: bool = False, ndmin: int = 0, *,
    blocking: bool = False,
) -> ndarray:  # fmt: skip
    if isinstance(obj, ndarray):
        return _copied(obj, dtype, bool(copy), order)
    if isinstance(obj, (list, tuple)) and any(isinstance(one, ndarray) for one in obj):
        return FUNCTIONS["stack"]([asarray(one, dtype) for one in obj])
    if hasattr(obj, "__cuda_array_interface__"):
        return _copied(_given(obj.__cuda_array_interface__, obj), dtype, bool(copy), order)
    numbers = np.array(obj, dtype, ndmin=ndmin)
    if numbers.dtype.char not in TYPES:
        raise ValueError(f"Unsupported dtype {numbers.dtype}")
    return moved(np.ascontiguousarray(numbers).reshape(numbers.shape) if order == "C" else numbers)


def _given(facts: dict[str, Any], owner: Any) -> ndarray:
    """Return the array of the CUDA array interface; the host waits for the stream that it names."""
    if facts.get("mask") is not None:
        raise ValueError("CuPy currently does not support masked arrays.")
    if (stream := facts.get("stream")) is not None:
        runtime.streamSynchronize(0 if stream == 1 else stream)
    address, shape = facts["data"][0], facts["shape"]
    if not address or 0 in shape:
        return fresh(shape, facts["typestr"])
    memory = find(address)
    if memory is None:
        raise RuntimeError("cudaErrorInvalidValue: the address is not on the device")
    how = np.dtype(facts["typestr"]), memory.raw, address - memory.start, facts.get("strides")
    return placed(np.ndarray(shape, *how), memory, owner)


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> ndarray:
    """Return the array that a producer gives for the current stream."""
    if array.__dlpack_device__()[0] != 2:
        raise TypeError("CPU arrays cannot be directly imported to CuPy.")
    options = {"stream": current().ptr or 1}
    try:
        capsule = array.__dlpack__(**options, max_version=(1, 0), copy=copy)
    except TypeError:
        capsule = array.__dlpack__(**options)
    shared: ndarray = capsule.array
    return placed(shared._numbers, shared._memory, shared)


@recorded
def _copied(x: ndarray, dtype: Any, copy: bool, order: str) -> ndarray:
    fits = order in ("K", "A", None) or (x.flags.c_contiguous if order == "C" else x.flags.f_contiguous)
    if not copy and fits and (dtype is None or dtype == x.dtype):  # no `in`: float64 equals None
        return x
    made = moved_on(x._numbers.astype(dtype or x.dtype, order=order or "K"))
    launch("copy", [x], [made])
    return made


def asarray(a: Any, dtype: Any = None, order: str | None = None, *, blocking: bool = False) -> ndarray:
    return array(a, dtype, copy=False, order=order or "K")


def asanyarray(a: Any, dtype: Any = None, order: str | None = None, *, blocking: bool = False) -> ndarray:
    return asarray(a, dtype, order)


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    if not isinstance(a, ndarray):
        raise TypeError(f"Argument 'a' has incorrect type (expected cupy ndarray, got {type(a).__name__})")
    return _copied(a, dtype, copy=False, order="C")


def asfortranarray(a: ndarray, dtype: Any = None) -> ndarray:
    if not isinstance(a, ndarray):
        raise TypeError(f"Argument 'a' has incorrect type (expected cupy ndarray, got {type(a).__name__})")
    return _copied(a, dtype, copy=False, order="F")


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    if isinstance(a, ndarray):
        return a.get(stream=stream, order=order, out=out, blocking=blocking)
    return np.asarray(a, order=order)  # type: ignore[call-overload]


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return fresh(shape, dtype, order)


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 0, dtype, order)


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 1, dtype, order)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    made = fresh(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order)
    made.fill(fill_value)
    return made


def _like(make: Callable[..., ndarray]) -> Callable[..., ndarray]:
    @functools.wraps(make)
    def like(a: ndarray, *values: Any, dtype: Any = None, order: str = "K", shape: Any = None) -> ndarray:
        if not isinstance(a, ndarray):
            raise TypeError(f"expected cupy.ndarray, got {type(a)}")
        return make(a.shape if shape is None else shape, *values, dtype=dtype or a.dtype)

    return like


empty_like, zeros_like, ones_like, full_like = map(_like, (empty, zeros, ones, full))


@recorded
def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> ndarray:
    bounds = (start,) if stop is None else (start, stop, 1 if step is None else step)
    if any(isinstance(bound, ndarray) for bound in bounds):
        raise TypeError("arange: bounds must be numbers")
    made = moved_on(np.arange(*bounds, dtype=dtype))
    launch("arange", [], [made])
    return made


@recorded
def searchsorted(a: ndarray, v: Any, side: str = "left", sorter: Any = None) -> ndarray:
    if not isinstance(a, ndarray):
        raise NotImplementedError("Only int or ndarray are supported for a")
    if not isinstance(v, (ndarray, int, float)):
        raise NotImplementedError("Only python scalars or ndarrays are supported for v")
    v = asarray(v)
    found = np.searchsorted(a._numbers, v._numbers, side, None if sorter is None else sorter._numbers)
    made = moved_on(np.asarray(found, np.int64))
    launch("searchsorted", [a, v], [made])
    return made

"""Which array library holds the numbers, NumPy or CuPy: the only place that knows one from the other."""

from __future__ import annotations

import functools
import logging
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.arrays.shapes import Functions, ShapeArray
from distgnn.errors import ArgumentError

log = logging.getLogger(__name__)


class Backend:
    """NumPy arrays on the host.

    Attributes:
        numbers: whether arrays hold any; those of a dry run have shapes only.
    """

    name = "numpy"
    on_device = False
    numbers = True
    xp: Any = np

    def bind(self, local_rank: int) -> str:
        """Bind this process to a device by its rank on the node; returns the device's name for the log."""
        return "host"

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        """A C-contiguous array on this backend's device holding the same numbers; copies only if it must."""
        return np.ascontiguousarray(x, dtype=dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A C-contiguous array of anything. On the host it starts at a cache line: NumPy's large arrays start
        16 bytes after one, where a gathered row of 16 numbers takes two lines instead of one.
        """
        return _at_cache_line(np.empty, shape, np.dtype(dtype))

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A C-contiguous array of zeros, placed like those of :meth:`empty`."""
        return _at_cache_line(np.zeros, shape, np.dtype(dtype))

    def address(self, x: Any) -> int:
        """Where the array begins in memory."""
        return int(x.ctypes.data)

    def to_host(self, x: Any) -> np.ndarray:
        """The array as NumPy."""
        return np.asarray(x)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A host array that device copies reach at full speed."""
        return np.empty(shape, dtype=dtype)

    def copy_out(self, array: Any, host: np.ndarray) -> None:
        """Copy an array to a host array of the same shape; the copy is complete on return."""
        host[...] = array

    def copy_in(self, host: np.ndarray, array: Any) -> None:
        """Copy a host array into an array of the same shape; ``host`` may be reused on return."""
        array[...] = host

    def synchronize(self) -> None:
        """Wait until everything queued on the current stream is done."""

    def mark(self) -> Callable[[], bool]:
        """A function that says whether everything queued on the current stream up to now is done."""
        return lambda: True

    def peak_bytes(self) -> int:
        """The most memory this process has held so far, in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def memory_bytes(self) -> int:
        """Bytes of memory that the node, or its control group, has; of a GPU, those of the device."""
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:
            limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        except OSError:
            return total
        return min(total, int(limit)) if limit.isdecimal() else total


CACHE_LINE = 64


def _at_cache_line(allocate: Callable[..., Any], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    # In the widest elements: SciPy copies a view that has less than half as many elements as what it views.
    memory = allocate(-(-size // 8) + CACHE_LINE // 8, np.uint64).view(np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


class CupyBackend(Backend):
    """CuPy arrays on one GPU, chosen by the rank on the node."""

    name = "cupy"
    on_device = True

    def __init__(self) -> None:
        import cupy

        self.xp = cupy

    def bind(self, local_rank: int) -> str:
        count = self.xp.cuda.runtime.getDeviceCount()
        device = local_rank % count
        self.xp.cuda.Device(device).use()
        if local_rank >= count:
            log.warning("more ranks than GPUs on this node: rank %d shares device %d", local_rank, device)
        return f"cuda:{device}"

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        return self.xp.ascontiguousarray(self.xp.asarray(x, dtype=dtype))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.empty(shape, dtype=dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.xp.zeros(shape, dtype=dtype)

    def address(self, x: Any) -> int:
        return int(x.data.ptr)

    def to_host(self, x: Any) -> np.ndarray:
        return self.xp.asnumpy(x)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        count = math.prod(shape)
        memory = self.xp.cuda.alloc_pinned_memory(max(1, count * np.dtype(dtype).itemsize))
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def copy_out(self, array: Any, host: np.ndarray) -> None:
        array.get(out=host)

    def copy_in(self, host: np.ndarray, array: Any) -> None:
        array.set(host)
        self.synchronize()

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def mark(self) -> Callable[[], bool]:
        event = self.xp.cuda.Event(disable_timing=True)
        event.record()
        return lambda: bool(event.done)

    def peak_bytes(self) -> int:
        return int(self.xp.get_default_memory_pool().total_bytes())

    def memory_bytes(self) -> int:
        return int(self.xp.cuda.runtime.memGetInfo()[1])


class ShapeBackend(Backend):
    """Arrays with shapes and without numbers, which cost nothing (see ``shapes.py``)."""

    name = "shapes"
    numbers = False
    xp = Functions()

    def bind(self, local_rank: int) -> str:
        return "nothing"

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        return self.xp.ascontiguousarray(x, dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return ShapeArray(shape, dtype)

    zeros = empty

    def address(self, x: Any) -> int:
        return int(x.address)

    def to_host(self, x: Any) -> np.ndarray:
        """What the array was made from, or zeros."""
        if not isinstance(x, ShapeArray):
            return np.asarray(x)
        return np.zeros(x.shape, x.dtype) if x.known is None else np.asarray(x.known)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return ShapeArray(shape, dtype)

    def copy_out(self, array: Any, host: Any) -> None:
        pass

    def copy_in(self, host: Any, array: Any) -> None:
        pass

    def mark(self) -> Callable[[], bool]:
        """Done when asked for the third time, so that who waits looks at messages once, as products do."""
        looks = iter((False, False))
        return lambda: next(looks, True)


SHAPES = ShapeBackend()


@functools.cache
def _has_gpu() -> bool:
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:  # no CuPy, no driver or no device all mean the same here
        return False


@functools.cache
def _make(name: str) -> Backend:
    return CupyBackend() if name == "cupy" else Backend()


def available() -> list[str]:
    """Names of the backends that work on this machine."""
    return ["numpy", "cupy"] if _has_gpu() else ["numpy"]


def get(name: str | None = None) -> Backend:
    """The backend called ``name``, by default what ``DISTGNN_BACKEND`` says; ``auto`` takes a GPU if there is
    one. ArgumentError: unknown name, or ``cupy`` asked for where no GPU answers.
    """
    name = name or os.environ.get("DISTGNN_BACKEND", "auto")
    if name not in ("auto", "numpy", "cupy"):
        raise ArgumentError("backend", name, "no such backend; choose auto, numpy or cupy")
    if name == "cupy" and not _has_gpu():
        problem = "CuPy or a GPU is missing here; install the extra cuda12 or cuda13, or use numpy"
        raise ArgumentError("backend", name, problem)
    return _make("cupy" if name != "numpy" and _has_gpu() else "numpy")


def of(array: Any) -> Backend:
    """The backend an array lives on."""
    if isinstance(array, (np.ndarray, np.generic)):
        return _make("numpy")
    return SHAPES if isinstance(array, ShapeArray) else _make("cupy")


def module(array: Any) -> Any:
    """``numpy``, ``cupy`` or the functions of arrays without numbers, whichever made ``array``."""
    return of(array).xp

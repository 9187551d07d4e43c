"""Loading and launching kernels: source files to compiled functions, NumPy numbers to kernel arguments."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.local.cuda import native
from distgnn.local.cuda.compiling import in_turn

Array = Any  # of CuPy

WARP = 32
THREADS = 256  # of every block, as in common.cuh
OPTIONS = ("--std=c++17",)
NATIVE = ("gemm.cu", "gemm_columns.cu")  # files whose kernels are for one architecture alone

#: Returns the module that made an array and launches kernels on it.
library = backend.module

#: The C++ names of element and index types, by dtype.
C_TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "int64"}


def kernels_folder() -> Path:
    """Return the folder of kernel sources: in the package where installed, beside it in a working tree."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


@functools.cache
def source(file: str) -> str:
    """Read a kernel source with its includes in place: CuPy's cache does not look into included files."""

    def include(match: re.Match[str]) -> str:
        return (kernels_folder() / match[1]).read_text()

    return re.sub(r'^#include "([^"]+)"$', include, (kernels_folder() / file).read_text(), flags=re.MULTILINE)


@functools.cache
def kernel(xp: Any, file: str, name: str) -> Any:
    """Compile the kernel ``name``, a C++ name with template arguments, once per node."""
    with in_turn(f"{source(file)} {name}"):
        if file in NATIVE:
            return native.function(xp, source(file), name, OPTIONS)
        return xp.RawModule(code=source(file), options=OPTIONS, name_expressions=(name,)).get_function(name)


@functools.cache
def kernel_with_room(xp: Any, file: str, name: str) -> Any:
    """Return :func:`kernel`, which may be launched with as much shared memory as a block may have."""
    loaded = kernel(xp, file, name)
    loaded.max_dynamic_shared_size_bytes = attribute(xp, "MaxSharedMemoryPerBlockOptin")
    return loaded


@functools.cache
def attribute(xp: Any, name: str) -> int:
    """Return an attribute of the device, as CUDA names it."""
    return int(xp.cuda.Device().attributes[name])


def launch(
    xp: Any, file: str, name: str, blocks: int | tuple[int, int], *arguments: Any, shared: int = 0
) -> None:  # fmt: skip
    """Queue a kernel on ``blocks`` blocks of `THREADS` threads.

    Arguments are arrays (pointers), None (a null pointer), or NumPy scalars as wide as their parameters. A
    Python number is refused, because it has no width. shared: bytes of dynamic shared memory of a block.
    """
    grid = blocks if isinstance(blocks, tuple) else (blocks, 1)
    packed = tuple(map(_argument, arguments))
    if all(grid):
        loaded = (kernel_with_room if shared else kernel)(xp, file, name)
        loaded(grid, (THREADS,), packed, shared_mem=shared)


def _argument(value: Any) -> Any:
    if type(value) in (int, float, bool):
        raise TypeError(f"a kernel argument must be an array or a NumPy scalar, not {value!r}")
    return np.uintp(0) if value is None else value


def blocks_for(threads: int) -> int:
    """Return the number of blocks that hold this many threads."""
    return -(-threads // THREADS)


def address(array: Array) -> int:
    """Return where the array's memory begins."""
    return backend.of(array).address(array)


def c_type(array: Array) -> str:
    """Return the C++ name of the array's elements; ValueError where no kernel takes them."""
    if array.dtype.name not in C_TYPES:
        raise ValueError(f"no kernel takes {array.dtype} arrays; there is {', '.join(C_TYPES)}")
    return C_TYPES[array.dtype.name]


def check(caller: str, shape: tuple[int, ...], dtype: Any, **arrays: Array) -> None:
    """Raise ValueError unless all arrays are C-contiguous with this shape and dtype; ``None`` passes."""
    for name, array in arrays.items():
        if array is None or (array.shape == shape and array.dtype == dtype and array.flags.c_contiguous):
            continue
        need = f"a C-contiguous {np.dtype(dtype).name} array of shape {shape}"
        got = f"{array.dtype} {array.shape} with strides {array.strides}"
        raise ValueError(f"{caller}: {name} must be {need}, got {got}")


def power_of_two(x: float) -> int:
    """Return the largest power of two that is at most ``x``, at least 1."""
    return 1 << max(int(x).bit_length() - 1, 0)


def lanes_for(units: int) -> int:
    """Return the lanes of a warp side by side on a row: the smallest power of two that is enough."""
    return min(WARP, power_of_two(2 * units - 1))

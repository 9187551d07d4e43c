"""``RawModule``: kernels of a CUDA source, compiled for the host and run by ``kernels/emulation``.

A kernel's own declaration says which arrays it reads and writes. It runs at once, in this process, or, where
a test asks for that, under sanitizers in another one (`EMULATION`).
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cupy._array import arrays_in, bare, ndarray
from cupy._graphs import recorded
from cupy._streams import launch
from cupy._work import DEVICE

EMULATOR = Path(__file__).resolve().parents[3] / "kernels" / "emulation" / "emulator.py"
_DECLARATION = re.compile(r"__global__ void(?: __launch_bounds__\([^)]*\))?\s+(\w+)\(([^)]*)\)")


class Parameter(NamedTuple):
    """A kernel's parameter; ``pointer``: to an array, which is written unless it is ``constant``."""

    name: str
    pointer: bool
    constant: bool


@functools.cache
def declared(code: str) -> dict[str, list[Parameter]]:
    """Parse the parameters of every kernel of a source."""
    return {name: [_parameter(text) for text in rest.split(",")] for name, rest in _DECLARATION.findall(code)}


def _parameter(text: str) -> Parameter:
    (name,) = re.findall(r"(\w+)\s*$", text)
    return Parameter(name, "*" in text, text.split()[0] == "const")


class Emulation:
    """The emulation as a test wants it, by all that is launched from now on.

    Attributes:
        order: of threads and blocks: 0 forward, 1 backward, else the seed of a shuffle.
        sanitized: whether sanitizers watch, in a process of its own.
        kernels: full names of the kernels launched so far.
    """

    def __init__(self) -> None:
        spec = importlib.util.spec_from_file_location("kernel_emulator", EMULATOR)
        assert spec is not None and spec.loader is not None
        emulator = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(emulator)
        self._emulator, self._here, self._apart = emulator, emulator.Here(), emulator.Apart()
        atexit.register(self._apart.close)
        self.reset()

    def reset(self) -> None:
        self.order, self.sanitized, self.kernels = 0, False, list[str]()

    def run(self, code: str, name: str, *launch: Any, shared: int = 0) -> None:
        """Run a kernel: grid, block, arguments; ``shared`` bytes of dynamic shared memory."""
        self.kernels.append(name)
        runs = self._apart if self.sanitized else self._here
        kernels = self._emulator.Kernels(code, compiled_with(code, name))
        runs.launch(kernels, name, *launch, self.order, shared)


@functools.cache
def compiled_with(code: str, name: str) -> list[str]:
    """List the kernels of a source that are compiled together with one: all that are known.

    Tests compile the known ones for real GPUs, and so the package may ask for no other.
    """
    names = _known().get(code, [name])
    if name not in names:
        raise RuntimeError(f"{name}: not in distgnn/local/cuda/instances.py, which is compiled for GPUs")
    return names


@functools.cache
def _known() -> dict[str, list[str]]:
    from distgnn.local.cuda.instances import KERNELS
    from distgnn.local.cuda.launch import source

    return {source(file): names for file, names in KERNELS.items()}


EMULATION = Emulation()


class RawModule:
    """A CUDA source."""

    def __init__(
        self, code: str | None = None, *, path: str | None = None, options: Sequence[str] = (),
        backend: str = "nvrtc", translate_cucomplex: bool = False, enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None, jitify: bool = False,
    ) -> None:  # fmt: skip
        if code is None:
            assert path is not None
            code = Path(path).read_text()  # what our NVRTC has made
        if name_expressions and not any("std=" in option for option in options):
            raise ValueError("need to specify C++ standard for compiling template code")
        self.code, self.names = code, name_expressions
        DEVICE.counts["modules"] += 1

    def get_function(self, name: str) -> RawKernel:
        if self.names is not None and name not in self.names:
            raise RuntimeError(f"{name} was not found in the mapping of name_expressions")
        return RawKernel(self.code, name)


class RawKernel:
    """One kernel, with its template arguments."""

    def __init__(self, code: str, name: str, options: Sequence[str] = (), **_: Any) -> None:
        self.code, self.instance, self.name = code, name, name.partition("<")[0]
        self.parameters = declared(code)[self.name]
        self.max_dynamic_shared_size_bytes = 48 << 10

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0,
        stream: Any = None,
    ) -> None:  # fmt: skip
        _check_grid(grid, block)
        if len(args) != len(self.parameters):
            raise TypeError(f"{self.name}: {len(args)} arguments for {len(self.parameters)} parameters")
        for parameter, value in zip(self.parameters, args, strict=True):
            _check_argument(self.name, parameter, value)
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: {shared_mem} bytes of shared memory")
        self._queue(grid, block, args, stream, shared_mem)

    @recorded
    def _queue(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], stream: Any, shared: int,
    ) -> None:  # fmt: skip
        reads, writes = [], []
        for parameter, value in zip(self.parameters, args, strict=True):
            if isinstance(value, ndarray):
                (reads if parameter.constant else writes).append(value)
        launch(self.name, reads, writes, stream)
        if DEVICE.capture is not None:  # what it would read was not computed
            return
        EMULATION.run(self.code, self.instance, grid, block, tuple(map(bare, args)), shared=shared)
        for value in (*reads, *writes):
            if not value._memory.whole():
                raise RuntimeError(f"{self.name} has written beside an array")


def _check_grid(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    limits = (2**31 - 1, 65535, 65535)
    fits = all(0 < size <= limit for size, limit in zip(grid, limits, strict=False))
    if not fits or not 0 < int(np.prod(block)) <= 1024:
        raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: invalid argument: grid {grid}, block {block}")


def _check_argument(kernel: str, parameter: Parameter, value: Any) -> None:
    pointer = isinstance(value, (ndarray, np.uintp)) if parameter.pointer else isinstance(value, np.generic)
    if not pointer:
        raise TypeError(f"{kernel}: {parameter.name} got unsupported type {type(value)}")


__all__ = ["EMULATION", "RawKernel", "RawModule", "arrays_in"]

"""``RawModule``: kernels of a CUDA source, as NumPy oracles or by the emulation of ``kernels/emulation``.

A kernel's own declaration says which arrays it reads and writes. Where ``_oracles.py`` has a function of its
name with its parameters, that one runs; any other kernel is compiled for the host and runs there. The
environment variable ``FAKE_CUPY_EMULATE=1`` has them all emulated.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cupy import _oracles
from cupy._array import arrays_in, bare, ndarray
from cupy._graphs import recorded
from cupy._streams import launch
from cupy._work import DEVICE

EMULATOR = Path(__file__).resolve().parents[3] / "kernels" / "emulation" / "emulator.py"
#: Without sanitizers, which tests of the kernels use: these compile in a second.
FLAGS = ("-std=c++17", "-O0", "-Wno-unknown-pragmas", "-fno-strict-aliasing", "-ffp-contract=off")
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


class RawModule:
    """A CUDA source."""

    def __init__(
        self, code: str | None = None, *, path: str | None = None, options: Sequence[str] = (),
        backend: str = "nvrtc", translate_cucomplex: bool = False, enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None, jitify: bool = False,
    ) -> None:  # fmt: skip
        if code is None:
            raise NotImplementedError("the stand-in takes source code only")
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
        self.name, _, types = name.rstrip(">").partition("<")
        self.parameters = declared(code)[self.name]
        self._run = _oracle(self.name, self.parameters, types.split(",")) or _emulated(code, name)

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0,
        stream: Any = None,
    ) -> None:  # fmt: skip
        _check_grid(grid, block)
        if len(args) != len(self.parameters):
            raise TypeError(f"{self.name}: {len(args)} arguments for {len(self.parameters)} parameters")
        for parameter, value in zip(self.parameters, args, strict=True):
            _check_argument(self.name, parameter, value)
        self._queue(grid, block, args, stream)

    @recorded
    def _queue(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], stream: Any
    ) -> None:
        reads, writes = [], []
        for parameter, value in zip(self.parameters, args, strict=True):
            if isinstance(value, ndarray):
                (reads if parameter.constant else writes).append(value)
        launch(self.name, reads, writes, stream)
        if DEVICE.capture is not None:  # what it would read was not computed
            return
        with np.errstate(all="ignore"):
            self._run(grid, block, args)


def _check_grid(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    limits = (2**31 - 1, 65535, 65535)
    fits = all(0 < size <= limit for size, limit in zip(grid, limits, strict=False))
    if not fits or not 0 < int(np.prod(block)) <= 1024:
        raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: invalid argument: grid {grid}, block {block}")


def _check_argument(kernel: str, parameter: Parameter, value: Any) -> None:
    pointer = isinstance(value, (ndarray, np.uintp)) if parameter.pointer else isinstance(value, np.generic)
    if not pointer:
        raise TypeError(f"{kernel}: {parameter.name} got unsupported type {type(value)}")


def _oracle(name: str, parameters: list[Parameter], types: list[str]) -> Callable[..., None] | None:
    """Return the oracle of this name, if it has the kernel's parameters (keywords get an underscore)."""
    found = getattr(_oracles, name, None)
    if found is None or os.environ.get("FAKE_CUPY_EMULATE") == "1":
        return None
    names = [f"{p.name}_" if p.name in ("from", "is", "in") else p.name for p in parameters]
    known = inspect.signature(found).parameters.values()
    named = [one.name for one in known if one.kind is not inspect.Parameter.VAR_POSITIONAL]
    if ["types", *names][: len(named)] != named or (len(named) == len(known) and len(names) + 1 > len(named)):
        return None

    def run(grid: Any, block: Any, arguments: tuple[Any, ...]) -> None:
        given = zip(parameters, arguments, strict=True)
        found(types, *(None if p.pointer and not isinstance(x, ndarray) else bare(x) for p, x in given))

    return run


@functools.cache
def _emulator() -> Any:
    spec = importlib.util.spec_from_file_location("kernel_emulator", EMULATOR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Cupy()
    made.flags = FLAGS
    atexit.register(made.close)
    return made


def _emulated(code: str, name: str) -> Callable[..., None]:
    kernel = _emulator().RawModule(code=code, name_expressions=(name,)).get_function(name)
    return lambda grid, block, arguments: kernel(grid, block, tuple(map(bare, arguments)))


__all__ = ["RawKernel", "RawModule", "arrays_in"]

"""A GPU for tests: CUDA sources compiled by g++ and run on the host (see runtime.cpp).

`Here` runs kernels in this process, on the caller's memory: compiled in a moment, launched in microseconds.
`Apart` runs them in a process of its own, under the address and undefined-behaviour sanitizers, on copies. A
fault that they see ends that process and raises `EmulationError` with their report. What the emulation itself
finds raises it from both.

What is compiled is kept in a folder, ``DISTGNN_EMULATION_CACHE`` or one beside the temporary files. Of
processes that need the same at once, one compiles and the others wait.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import getpass
import hashlib
import itertools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
COMMON = ("-std=c++17", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
          "-Wno-unknown-pragmas", "-Wno-psabi")  # fmt: skip
PLAIN = (*COMMON, "-O1")
#: Not optimised: compiling takes most of the time.
SANITIZED = (*COMMON, "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

Sizes = tuple[int, ...]


class Kernels(NamedTuple):
    """Kernels of a CUDA source that are compiled together, by their C++ names."""

    source: str
    names: Sequence[str]


class EmulationError(RuntimeError):
    """A fault in a kernel; the message is the sanitizer's or the emulation's report."""


def compiler() -> str | None:
    """Return the path of the C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "g++"))


def cache_folder() -> Path:
    folder = os.environ.get("DISTGNN_EMULATION_CACHE")
    return Path(folder) if folder else Path(tempfile.gettempdir()) / f"distgnn-emulation-{getpass.getuser()}"


def library(kernels: Kernels, flags: Sequence[str]) -> Path:
    """Return the shared library with these kernels."""
    entries = "".join(f"    emulation::Entry<{name}>::value,\n" for name in kernels.names)
    table = "const emulation::Kernel emulation_kernels[]"
    text = f'#include "cuda_emulation.h"\n{kernels.source}\nextern "C" {{\nextern {table};\n'
    text += f"{table} = {{\n{entries}}};\n}}\n"
    return _compiled("kernels.so", text, ("-shared", *flags))


def runtime(flags: Sequence[str]) -> Path:
    """Return the library that launches kernels in the process that loads it."""
    return _compiled("runtime.so", '#include "runtime.cpp"\n', ("-shared", *flags, "-O2"))


def server(flags: Sequence[str]) -> Path:
    """Return the program that launches kernels on request."""
    text = '#include "runtime.cpp"\n#include "server.cpp"\n'
    return _compiled("server", text, (*flags, "-O1", "-rdynamic", "-ldl"))


@functools.cache
def _sources() -> bytes:
    return b"".join(path.read_bytes() for path in sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp")]))


def _compiled(name: str, text: str, flags: Sequence[str]) -> Path:
    """Return what the compiler makes of a text, from the cache or now."""
    key = hashlib.sha256(_sources() + "\0".join((text, *flags, str(compiler()))).encode()).hexdigest()[:32]
    folder = cache_folder()
    made = folder / f"{key}-{name}"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, int(key[:7], 16))  # a byte per name
        if not made.exists():
            _compile(text, flags, made)
    return made


def _compile(text: str, flags: Sequence[str], made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        unit, output = Path(folder, "unit.cpp"), Path(folder, "output")
        unit.write_text(text)
        # what is linked comes last: -ldl names what earlier files need
        command = [str(compiler()), f"-I{HERE}", str(unit), "-o", str(output), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise EmulationError(f"the kernels don't compile for the host:\n{done.stderr[:6000]}")
        output.replace(made)  # whole or not at all


class Here:
    """Kernels in this process.

    Args:
        flags: of the compiler.
    """

    def __init__(self, flags: Sequence[str] = PLAIN) -> None:
        self.flags = tuple(flags)
        self._places: dict[tuple[str, str], int] = {}  # of what the runtime knows as Kernel
        self._loaded: list[Any] = []
        self._launch: Any = None

    def launch(
        self, kernels: Kernels, name: str, grid: Sizes, block: Sizes, arguments: Sequence[Any],
        order: int = 0, shared: int = 0,
    ) -> None:  # fmt: skip
        """Run one of the kernels over its grid.

        Args:
            arguments: NumPy's arrays and numbers.
            order: of threads and blocks: 0 forward, 1 backward, else the seed of a shuffle.
            shared: bytes of dynamic shared memory.
        """
        place = self._places.get((kernels.source, name)) or self._load(kernels, name)
        request = _request(kernels.source, grid, block, order, shared, len(arguments))
        problem = self._launch(place, request, _packed(arguments))
        if problem:
            raise EmulationError(problem.decode())

    def _load(self, kernels: Kernels, name: str) -> int:
        if self._launch is None:
            self._launch = ctypes.CDLL(os.fspath(runtime(self.flags)), ctypes.RTLD_GLOBAL).emulation_launch
            self._launch.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
            self._launch.restype = ctypes.c_char_p
        self._loaded.append(ctypes.CDLL(os.fspath(library(kernels, self.flags))))
        table = ctypes.addressof(ctypes.c_char.in_dll(self._loaded[-1], "emulation_kernels"))
        for number, kernel in enumerate(kernels.names):
            self._places[kernels.source, kernel] = table + number * _KERNEL.size
        return self._places[kernels.source, name]


class Apart:
    """Kernels in a process of their own, which begins with the first launch and after a fault.

    Args:
        flags: of the compiler.
    """

    def __init__(self, flags: Sequence[str] = SANITIZED) -> None:
        self.flags = tuple(flags)
        self.process: subprocess.Popen[bytes] | None = None
        self._places: dict[tuple[str, str], tuple[bytes, int]] = {}

    def launch(
        self, kernels: Kernels, name: str, grid: Sizes, block: Sizes, arguments: Sequence[Any],
        order: int = 0, shared: int = 0,
    ) -> None:  # fmt: skip
        """Run a kernel like `Here.launch`: arrays are read before and written back after."""
        if (kernels.source, name) not in self._places:
            path = os.fsencode(library(kernels, self.flags))
            places = {(kernels.source, kernel): (path, number) for number, kernel in enumerate(kernels.names)}
            self._places |= places
        path, number = self._places[kernels.source, name]
        arrays = _arrays(arguments)
        request = [struct.pack("I", len(path)), path, struct.pack("I", number)]
        request += [
            _request(kernels.source, grid, block, order, shared, len(arguments)),
            struct.pack("I", len(arrays)),
        ]
        for (address, nbytes), array in arrays.items():
            request += [struct.pack("=QI", nbytes, address % 256), array.tobytes()]
        request.append(_packed(arguments, {address: place for place, (address, _) in enumerate(arrays)}))
        reply = self._exchange(b"".join(request), sum(nbytes for _, nbytes in arrays))
        offset = 0
        for (_, nbytes), array in arrays.items():
            array.reshape(-1)[...] = np.frombuffer(reply, array.dtype, array.size, offset)
            offset += nbytes

    def _exchange(self, request: bytes, expected: int) -> bytes:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except BrokenPipeError:
            pass
        head = process.stdout.read(4)
        if len(head) == 4:
            (length,) = struct.unpack("I", head)
            if length:
                raise EmulationError(process.stdout.read(length).decode())
            return process.stdout.read(expected)
        text = self.close()
        raise EmulationError(text[:6000] or f"the emulation ended with {process.returncode}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            program = server(self.flags)
            self.report = program.parent / f"{os.getpid()}-{id(self):x}.log"
            environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0"}
            with open(self.report, "wb") as log:
                self.process = subprocess.Popen(
                    [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
                )
        return self.process

    def close(self) -> str:
        """End the process; return what it reported."""
        if self.process is None:
            return ""
        process, self.process = self.process, None
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
        process.stdout.close()
        process.wait()
        text = self.report.read_text(errors="replace")
        self.report.unlink(missing_ok=True)
        return text


_KERNEL = struct.Struct("@iPP")  # Kernel, Request and Argument in runtime.h
_REQUEST = struct.Struct("=6IIIIi")
_ARGUMENT = struct.Struct("=8sIcc2x")


def _request(source: str, grid: Sizes, block: Sizes, order: int, shared: int, count: int) -> bytes:
    # CuPy compiles with -ftz=true, which means float32 alone; a processor flushes either both types or none.
    flush = "double" not in source
    return _REQUEST.pack(*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], order, flush, shared, count)


def _packed(arguments: Sequence[Any], places: dict[int, int] | None = None) -> bytes:
    """Pack arguments as the driver gets them: arrays by address, or by place; numbers as they are."""
    packed = []
    for value in arguments:
        kind, itemsize = _KINDS[value.dtype.kind], value.dtype.itemsize
        if isinstance(value, np.ndarray):
            address = value.__array_interface__["data"][0]
            if not value.flags.c_contiguous:
                raise EmulationError("an array that is not C-contiguous was passed to a kernel")
            place = address if places is None else places[address]
            packed.append(_ARGUMENT.pack(place.to_bytes(8, "little"), itemsize, b"p", kind))
        else:
            packed.append(_ARGUMENT.pack(value.tobytes(), itemsize, kind, b" "))
    return b"".join(packed)


_KINDS = {"f": b"f", "i": b"i", "u": b"i", "b": b"i"}


def _arrays(arguments: Sequence[Any]) -> dict[tuple[int, int], np.ndarray]:
    """Return the arrays among arguments, by address and bytes; EmulationError where two overlap in part."""
    arrays = {
        (value.__array_interface__["data"][0], value.nbytes): value
        for value in arguments
        if isinstance(value, np.ndarray)
    }
    ends = sorted((address, address + nbytes) for address, nbytes in arrays if nbytes)
    for (_, end), (start, _) in itertools.pairwise(ends):
        if start < end:
            raise EmulationError("two arguments overlap without being the same array")
    return arrays

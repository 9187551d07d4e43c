"""A GPU for tests: CUDA sources compiled by g++ and run on the host, behind CuPy's interface.

``Cupy()`` takes the place of the module ``cupy``: NumPy's functions on NumPy arrays, plus ``RawModule``,
whose kernels run under the address and undefined-behaviour sanitizers in another process (see
cuda_emulation.h). It has the part of CuPy's interface that distgnn uses. A fault in a kernel ends that
process and raises `EmulationError` with the sanitizer's report here.

A program is compiled once per (source, kernels, flags) and kept in a folder, ``DISTGNN_EMULATION_CACHE`` or
one beside the temporary files; ``Cupy.build`` compiles many kernels of a source in one go, which takes far
less time than one by one.
"""

from __future__ import annotations

import getpass
import hashlib
import itertools
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
HEADERS = ("cuda_emulation.h", "launcher.h")
#: Not optimised: compiling takes most of the time.
FLAGS = (
    "-std=c++17", "-O0", "-g1", "-fno-strict-aliasing", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-pragmas", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip


class EmulationError(RuntimeError):
    """A fault in a kernel; the message is the sanitizer's or the emulation's report."""


def compiler() -> str | None:
    """Return the path of the C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "g++"))


def cache_folder() -> Path:
    folder = os.environ.get("DISTGNN_EMULATION_CACHE")
    return Path(folder) if folder else Path(tempfile.gettempdir()) / f"distgnn-emulation-{getpass.getuser()}"


def compile_program(source: str, names: Sequence[str], flags: Sequence[str] = FLAGS) -> Path:
    """Return the executable with these kernels of a source, from the cache or from the compiler."""
    registrations = "".join(f'    emulation::add("{name}", {name}),\n' for name in names)
    # CuPy compiles with -ftz=true, which means float32 alone; a processor flushes either both types or none.
    flush = "" if "double" in source else "#define EMULATION_FLUSH 1\n"
    text = (
        f'{flush}#include "cuda_emulation.h"\n{source}\n#include "launcher.h"\n'
        f"[[maybe_unused]] static const bool registered[] = {{\n{registrations}}};\n"
    )
    key = hashlib.sha256()
    for part in (text, *flags, str(compiler()), *((HERE / header).read_text() for header in HEADERS)):
        key.update(part.encode())
    program = cache_folder() / key.hexdigest()[:32]
    if program.exists():
        return program
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        unit, output = Path(folder, "kernels.cpp"), Path(folder, "kernels")
        unit.write_text(text)
        done = subprocess.run(
            [str(compiler()), *flags, f"-I{HERE}", str(unit), "-o", str(output)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise EmulationError(f"the kernels don't compile for the host:\n{done.stderr[:6000]}")
        output.replace(program)  # whole or not at all: another process may build the same one
    return program


class Program:
    """A running executable that launches kernels on request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process: subprocess.Popen[bytes] | None = None

    def launch(
        self, name: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], order: int
    ) -> None:
        """Run a kernel over its grid; arrays among the arguments are read before and written back after."""
        arrays: dict[tuple[int, int], np.ndarray] = {}
        packed = [_argument(argument, arrays) for argument in arguments]
        _check_overlap(list(arrays))
        request = [
            struct.pack("I", len(name)),
            name.encode(),
            _dim3(grid),
            _dim3(block),
            struct.pack("I", order),
        ]
        request.append(struct.pack("I", len(arrays)))
        for (address, nbytes), array in arrays.items():
            request += [struct.pack("=QI", nbytes, address % 256), array.tobytes()]
        request += [struct.pack("I", len(packed)), *packed]
        reply = self._exchange(b"".join(request), sum(nbytes for _, nbytes in arrays))
        offset = 0
        for (_, nbytes), array in arrays.items():
            array.view(np.ndarray).reshape(-1)[...] = np.frombuffer(reply, array.dtype, array.size, offset)
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
        self.process = None
        process.stdin.close()
        process.wait()
        raise EmulationError(
            self.report.read_text(errors="replace")[:6000] or f"the emulation ended with {process.returncode}"
        )

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.report = cache_folder() / f"{self.path.name}-{os.getpid()}.log"
            environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0"}
            with open(self.report, "wb") as log:
                self.process = subprocess.Popen(
                    [str(self.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                )
        return self.process

    def close(self) -> None:
        """End the process and remove its report."""
        if self.process is not None:
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
            self.process = None
            self.report.unlink(missing_ok=True)


class Cupy:
    """NumPy with a ``RawModule``, for code that expects the module ``cupy``.

    Attributes:
        flags: flags of the compiler.
        order: the order of threads and blocks: 0 forward, 1 backward, else the seed of a shuffle.
        launches: names of the kernels launched so far.
    """

    def __init__(self) -> None:
        self.order = 0
        self.flags: tuple[str, ...] = FLAGS
        self.launches: list[str] = []
        self.programs: dict[tuple[str, str], Program] = {}
        self.cuda = _Cuda()

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = np.float64) -> np.ndarray:
        """Return memory whose bytes are all 0xff: NaN in every float."""
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[...] = 0xFF
        return array

    def build(self, source: str, names: Iterable[str]) -> None:
        """Compile these kernels of a source together, on as many cores as there are."""
        names = list(names)
        parts = min(os.cpu_count() or 1, -(-len(names) // 20))
        shares = [names[part::parts] for part in range(parts)]
        with ThreadPoolExecutor() as pool:
            paths = pool.map(lambda share: compile_program(source, share, self.flags), shares)
            for share, path in zip(shares, paths, strict=True):
                program = Program(path)
                self.programs.update({(source, name): program for name in share})

    def RawModule(
        self, *, code: str, options: Sequence[str] = (), name_expressions: Sequence[str] = ()
    ) -> _Module:
        return _Module(self, code, name_expressions)

    def close(self) -> None:
        for program in set(self.programs.values()):
            program.close()


class _Module:
    def __init__(self, owner: Cupy, source: str, names: Sequence[str]) -> None:
        missing = [name for name in names if (source, name) not in owner.programs]
        if missing:
            owner.build(source, missing)
        self.owner, self.source = owner, source

    def get_function(self, name: str) -> Any:
        program = self.owner.programs[self.source, name]

        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any]) -> None:
            self.owner.launches.append(name)
            program.launch(name, grid, block, arguments, self.owner.order)

        return launch


class _Event:
    done = True

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        pass


class _Cuda:
    """The used part of ``cupy.cuda``: events that take the host's time, one stream, one device."""

    Event = _Event
    runtime = SimpleNamespace(
        getDeviceProperties=lambda device: {"name": b"emulation", "l2CacheSize": 1 << 15}
    )

    @staticmethod
    def Device() -> SimpleNamespace:
        return SimpleNamespace(id=0)

    @staticmethod
    def get_current_stream() -> SimpleNamespace:
        return SimpleNamespace(ptr=0)

    @staticmethod
    def get_elapsed_time(start: _Event, end: _Event) -> float:
        return (end.time - start.time) * 1e3


def _dim3(sizes: tuple[int, ...]) -> bytes:
    return struct.pack("III", *(*sizes, 1, 1)[:3])


def _argument(value: Any, arrays: dict[tuple[int, int], np.ndarray]) -> bytes:
    """Pack an argument as CuPy passes it to the driver.

    Arrays go by address, Python numbers as 64 bits, NumPy's numbers as they are.
    """
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise EmulationError("an array that is not C-contiguous was passed to a kernel")
        key = (value.ctypes.data, value.nbytes)
        arrays.setdefault(key, value)
        return struct.pack("=BII", 1, 4, list(arrays).index(key))
    if isinstance(value, (bool, int)):
        value = np.int64(value)
    elif isinstance(value, float):
        value = np.float64(value)
    data = value.tobytes()
    return struct.pack("=BI", 0, len(data)) + data


def _check_overlap(spans: list[tuple[int, int]]) -> None:
    ends = sorted((address, address + nbytes) for address, nbytes in spans if nbytes)
    for (_, end), (start, _) in itertools.pairwise(ends):
        if start < end:
            raise EmulationError("two arguments overlap without being the same array")

"""NVIDIA's run-time compiler through ctypes: compiles for GPUs that are not there, with whatever version a
wheel brings.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from collections.abc import Sequence
from pathlib import Path


class CompileError(RuntimeError):
    """Message of the compiler."""


class Nvrtc:
    """One NVRTC library.

    Attributes:
        architectures: compute capabilities times ten that it compiles for.
    """

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        count = ctypes.c_int()
        self._check(self.library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self.library.nvrtcGetSupportedArchs(numbers))
        self.architectures = list(numbers)

    def compile(
        self, source: str, names: Sequence[str], architecture: int | str, options: Sequence[str]
    ) -> tuple[bytes, str]:
        """Return the cubin with these kernels, given by their C++ names, and the compiler's log."""
        program = ctypes.c_void_p()
        self._check(
            self.library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None
            )
        )
        try:
            for name in names:
                self._check(self.library.nvrtcAddNameExpression(program, name.encode()))
            flags = [
                f"--gpu-architecture=sm_{architecture}".encode(),
                *(option.encode() for option in options),
            ]
            code = self.library.nvrtcCompileProgram(
                program, len(flags), (ctypes.c_char_p * len(flags))(*flags)
            )
            if code:
                raise CompileError(self._text(program, "ProgramLog").decode())
            for name in names:
                lowered = ctypes.c_char_p()
                self._check(self.library.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)))
            return self._text(program, "CUBIN"), self._text(program, "ProgramLog").decode().rstrip("\0")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.library, f"nvrtcGet{what}")(program, text))
        return text.raw

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"NVRTC: {self.library.nvrtcGetErrorString(code).decode()}")


def find(architecture: int) -> Nvrtc | None:
    """Find an NVRTC that compiles for this architecture: in an installed wheel, or in a toolkit."""
    folders = [Path(folder) for folder in sys.path if folder]
    patterns = [str(folder / "nvidia" / "*" / "lib" / "libnvrtc.so.*") for folder in folders]
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    patterns += [f"{toolkit}/lib64/libnvrtc.so.*", "/usr/local/cuda-*/lib64/libnvrtc.so.*"]
    for path in dict.fromkeys(found for pattern in patterns for found in sorted(glob.glob(pattern))):
        try:
            compiler = Nvrtc(path)
        except OSError:  # a broken link or another machine's library
            continue
        if architecture in compiler.architectures:
            return compiler
    return None

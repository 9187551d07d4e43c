"""Kernels for one architecture alone, whose instructions no other has: CuPy compiles for all from one on.

They are compiled by CuPy's NVRTC and kept beside what CuPy keeps (``CUPY_CACHE_DIR``). Where that keeps
nothing (``CUPY_CACHE_IN_MEMORY``), they are files until the process ends: CuPy loads machine code from files.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from distgnn.local.cuda import compiling

ARCHITECTURE, CAPABILITY = "sm_90a", 90


@functools.cache
def runs_here(xp: Any) -> bool:
    """Tell whether the device is of that architecture."""
    return int(xp.cuda.Device().compute_capability) == CAPABILITY


def function(xp: Any, source: str, name: str, options: tuple[str, ...]) -> Any:
    """Return the kernel ``name``, a C++ name with template arguments, compiled for `ARCHITECTURE`."""
    key = repr((xp.cuda.nvrtc.getVersion(), ARCHITECTURE, name, options, source))
    start = f"distgnn-{hashlib.sha256(key.encode()).hexdigest()[:32]}-"
    folder = compiling.folder() or Path(_of_this_process().name)
    made = next(folder.glob(f"{start}*.cubin"), None)
    if made is None:
        cubin, symbol = _compiled(xp.cuda.nvrtc, source, name, options)
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{start}{symbol}.cubin"
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(cubin)
        os.replace(file.name, made)  # whole or not at all
    return xp.RawModule(path=os.fspath(made)).get_function(made.stem[len(start) :])


@functools.cache
def _of_this_process() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that goes with the process."""
    return tempfile.TemporaryDirectory(prefix="distgnn-kernels-")


def _compiled(nvrtc: Any, source: str, name: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Return machine code and the kernel's name in it."""
    program = nvrtc.createProgram(source, "kernels.cu", (), ())
    try:
        nvrtc.addNameExpression(program, name)
        try:
            nvrtc.compileProgram(program, (*options, "-ftz=true", f"-arch={ARCHITECTURE}"))
        except Exception as error:
            raise RuntimeError(f"{name}: {nvrtc.getProgramLog(program)}") from error
        return nvrtc.getCUBIN(program), nvrtc.getLoweredName(program, name)
    finally:
        nvrtc.destroyProgram(program)

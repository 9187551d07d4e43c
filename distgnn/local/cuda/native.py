"""Kernels for one architecture alone, whose instructions no other has: CuPy compiles for all from one on.

They are compiled by CuPy's NVRTC and kept beside what CuPy keeps (``CUPY_CACHE_DIR``).
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

ARCHITECTURE, CAPABILITY = "sm_90a", 90


@functools.cache
def runs_here(xp: Any) -> bool:
    """Tell whether the device is of that architecture."""
    return int(xp.cuda.Device().compute_capability) == CAPABILITY


def function(xp: Any, source: str, name: str, options: tuple[str, ...]) -> Any:
    """Return the kernel ``name``, a C++ name with template arguments, compiled for `ARCHITECTURE`."""
    key = repr((xp.cuda.nvrtc.getVersion(), ARCHITECTURE, name, options, source))
    start = f"distgnn-{hashlib.sha256(key.encode()).hexdigest()[:32]}-"
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    made = next(folder.glob(f"{start}*.cubin"), None)
    if made is None:
        cubin, symbol = _compiled(xp.cuda.nvrtc, source, name, options)
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{start}{symbol}.cubin"
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(cubin)
        os.replace(file.name, made)  # whole or not at all
    return xp.RawModule(path=os.fspath(made)).get_function(made.stem[len(start) :])


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

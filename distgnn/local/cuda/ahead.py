"""All kernels compiled ahead for the GPU here, in several processes, to where CuPy keeps them.

Whoever needs one of them later reads it from there.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from distgnn.arrays import backend
from distgnn.errors import UserError, offered
from distgnn.local.cuda import csr, launch, native
from distgnn.local.cuda.instances import KERNELS

PROCESSES = 32  # at most: each takes some hundred megabytes of the device
Name = tuple[str, str]  # file, kernel with its template arguments

#: What the variants of a product are chosen by: non-zeros per row, widths, and nodes.
DEGREES, WIDTHS, NODES = (2, 4, 16, 256), (16, 32, 40, 64, 128, 256), 1 << 18


def names(xp: Any, files: Sequence[str] = ()) -> list[Name]:
    """List the kernels that run on this device, of these files or of all; first those that products choose.

    UserError: there is no such file.
    """
    for file in files:
        if file not in KERNELS:
            raise UserError(f"compile {file}: no such file of kernels; {offered(file, KERNELS)}")
    kernels = dict.fromkeys((csr.FILE, name) for name in _of_products())
    kernels |= dict.fromkeys((file, name) for file, those in KERNELS.items() for name in those)
    others = () if native.runs_here(xp) else launch.NATIVE
    return [name for name in kernels if name[0] in (files or KERNELS) and name[0] not in others]


def _of_products() -> list[str]:
    """List what products in float32, on graphs of some degrees and widths, choose from."""
    sizes = (csr.Size(NODES, NODES, degree * NODES, f, 4) for degree in DEGREES for f in WIDTHS)
    cases = ((size, ends) for size in sizes for ends in (False, True))
    ways = ((way, ends) for size, ends in cases for way in csr.candidates(size, csr.VECTOR_BYTES, ends))
    return list(dict.fromkeys(f"spmm<float,int,{way.arguments(ends)}>" for way, ends in ways))


def processes(kernels: int) -> int:
    """Return in how many processes so many kernels are compiled: as many as there are cores, at most."""
    return max(min(len(os.sched_getaffinity(0)), PROCESSES, kernels), 1)


def compile_all(wanted: Sequence[Name]) -> list[str]:
    """Compile kernels; return what went wrong, a line for each that does not compile."""
    fresh = multiprocessing.get_context("spawn")  # a process that forks must not have used the device
    with ProcessPoolExecutor(processes(len(wanted)), fresh) as pool:
        return [problem for problem in pool.map(_compiled, wanted) if problem]


def _compiled(name: Name) -> str:
    try:
        launch.kernel(backend.get("cupy").xp, *name)
    except Exception as error:
        return f"{' '.join(name)}: {type(error).__name__}: {' '.join(str(error).split())}"
    return ""

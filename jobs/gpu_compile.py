"""All CUDA kernels compiled for the GPU here, in as many processes as there are cores, into CuPy's cache.

    python jobs/gpu_compile.py [FILE ...]       of these files of kernels/ only

They are all that the package asks for, first those that products begin with. Whoever needs one of them later
reads it from the cache (CuPy 14.2). Exit status: 1 if one does not compile.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 32  # at most: each takes some hundred megabytes of the device
Name = tuple[str, str]  # file, kernel with its template arguments

#: What the variants of a product are chosen by: non-zeros per row, widths, and nodes.
DEGREES, WIDTHS, NODES = (2, 4, 16, 256), (16, 32, 40, 64, 128, 256), 1 << 18


def names() -> list[Name]:
    """List the kernels; those of products, which take longest, first."""
    sys.path.insert(0, str(ROOT))
    from distgnn.local.cuda import csr
    from distgnn.local.cuda.instances import KERNELS

    found = dict.fromkeys((csr.FILE, name) for name in of_products())
    return list(found | dict.fromkeys((file, name) for file, those in KERNELS.items() for name in those))


def of_products() -> list[str]:
    """List what products in float32, on graphs of some degrees and widths, choose from."""
    from distgnn.local.cuda import csr

    sizes = (csr.Size(NODES, NODES, degree * NODES, f, 4) for degree in DEGREES for f in WIDTHS)
    cases = ((size, ends) for size in sizes for ends in (False, True))
    ways = ((way, ends) for size, ends in cases for way in csr.candidates(size, csr.VECTOR_BYTES, ends))
    return list(dict.fromkeys(f"spmm<float,int,{way.arguments(ends)}>" for way, ends in ways))


def compiled(name: Name) -> str:
    """Compile a kernel; return what went wrong, or ""."""
    import cupy

    from distgnn.local.cuda import launch, native

    if name[0] in launch.NATIVE and not native.runs_here(cupy):
        return ""
    try:
        launch.kernel(cupy, *name)
    except Exception as error:
        return f"{' '.join(name)}: {type(error).__name__}: {error}"
    return ""


def main() -> int:
    started, files = time.monotonic(), sys.argv[1:]
    wanted = [name for name in names() if not files or name[0] in files]
    processes = min(len(os.sched_getaffinity(0)), PROCESSES, len(wanted))
    fresh = multiprocessing.get_context("spawn")  # a process that forks must not have used the device
    with ProcessPoolExecutor(processes, fresh) as pool:
        problems = [problem for problem in pool.map(compiled, wanted) if problem]
    print(*problems, sep="\n", end="\n" * bool(problems))
    done = f"compiled {len(wanted) - len(problems)} of {len(wanted)} kernels"
    print(f"{done} in {processes} processes, {time.monotonic() - started:.1f} s", flush=True)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

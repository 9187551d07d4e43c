"""Facts of a process that must be the same on all ranks of a job: its code, libraries and environment."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import distgnn
from distgnn.comm.agree import short

#: Variables that change numbers or what travels, beside those of flags, which count as the flag. All others
#: may differ: DISTGNN_CONFIG (what the file says is compared, not where it lies), DISTGNN_EMULATION_CACHE
#: (scratch), DISTGNN_INIT_TIMEOUT (over by then), DISTGNN_STALL (a message), CUDA_VISIBLE_DEVICES and the
#: like (each rank's device), OMP_NUM_THREADS and the like (nodes may have different numbers of cores).
VARIABLES = (
    "DISTGNN_CHECK", "DISTGNN_CUDA_AWARE", "DISTGNN_HOST_ISA", "DISTGNN_SPMM", "DISTGNN_SPMM_TUNE",
    "DISTGNN_TRANSPORT", "MPICH_GPU_SUPPORT_ENABLED", "NVIDIA_TF32_OVERRIDE", "CUPY_TF32",
)  # fmt: skip

#: Libraries whose version can change numbers, random ones above all; corrections of a release do not.
LIBRARIES = ("numpy", "scipy", "cupy", "mpi4py")


def process(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the facts of this process, by the words in which an error names them."""
    variables = {name: environ[name] for name in VARIABLES if name in environ}
    return {**_fixed(), **dict.fromkeys(VARIABLES, "not set"), **variables}


@functools.cache
def _fixed() -> dict[str, str]:
    version = ".".join(map(str, sys.version_info[:2]))
    optimised = " with -O" if sys.flags.optimize else ""
    facts = {"distgnn's code": f"{distgnn.__version__} (sha256 {code()})", "Python": f"{version}{optimised}"}
    return facts | {library: _release(library) for library in LIBRARIES}


def _release(library: str) -> str:
    names = ("cupy", "cupy-cuda12x", "cupy-cuda13x") if library == "cupy" else (library,)
    for name in names:
        try:
            return ".".join(importlib.metadata.version(name).split(".")[:2])
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def code() -> str:
    """Return a hash of all code of this package: its Python files, compiled kernels and CUDA sources."""
    package = Path(distgnn.__file__).parent
    installed = (package / "kernels").is_dir()  # in a working tree they lie beside the package
    digest = hashlib.sha256()
    for root in [package] if installed else [package, package.parent / "kernels"]:
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".so", ".cu", ".cuh"):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return short(digest)

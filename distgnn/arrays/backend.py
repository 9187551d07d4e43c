"""Array libraries that hold the numbers, NumPy or CuPy: which are there, and which one an array is of.

This, ``numpy_backend.py`` and ``cupy_backend.py`` are the only places that know one from the other.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from distgnn.arrays.cupy_backend import CupyBackend
from distgnn.arrays.numpy_backend import DONE as DONE
from distgnn.arrays.numpy_backend import Backend as Backend
from distgnn.arrays.numpy_backend import Mark as Mark
from distgnn.errors import ArgumentError

INSTALL = "pip install -e '.[cuda13]', or '.[cuda12]' for a driver older than 580"
OLD_DRIVER = 35  # cudaErrorInsufficientDriver


@functools.cache
def _has_gpu() -> bool:
    return not missing()


@functools.cache
def old_driver() -> str:
    """Return what to do where a GPU is not used as its driver is too old for CuPy; else an empty text."""
    why = "" if _has_gpu() else missing()
    return why if why.startswith("the driver") else ""


def missing() -> str:
    """Return why no GPU can be used here and what to do, for an error; an empty text where one can."""
    try:
        import cupy
    except Exception:  # also where a library that it needs is missing
        return f"CuPy is missing; {INSTALL}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        if getattr(error, "status", None) == OLD_DRIVER:
            return "the driver is too old for this CuPy; pip install -e '.[cuda12]' in place of cuda13"
        return f"CuPy sees no GPU ({' '.join(str(error).split())}); nvidia-smi shows whether there is one"
    return "" if count else "CuPy sees no GPU; nvidia-smi shows whether there is one"


@functools.cache
def _make(name: str) -> Backend:
    if name != "cupy":
        return Backend()
    made = CupyBackend()
    register(made.xp.ndarray, made)
    return made


def available() -> list[str]:
    """List the names of the backends that work on this machine."""
    return ["numpy", "cupy"] if _has_gpu() else ["numpy"]


def wanted(name: str | None = None) -> str:
    """Return ``name``, by default what ``DISTGNN_BACKEND`` says; ``auto`` where nothing is asked for."""
    return name or os.environ.get("DISTGNN_BACKEND", "auto")


def get(name: str | None = None) -> Backend:
    """Return the backend called ``name``, by default what ``DISTGNN_BACKEND`` says.

    ``auto`` takes a GPU if there is one. ArgumentError: unknown name, or ``cupy`` asked for where no GPU
    answers.
    """
    name = wanted(name)
    if name not in ("auto", "numpy", "cupy"):
        raise ArgumentError("backend", name, "no such backend; choose auto, numpy or cupy")
    if name == "cupy" and not _has_gpu():
        raise ArgumentError("backend", name, f"{missing()}; or use numpy")
    return _make("cupy" if name != "numpy" and _has_gpu() else "numpy")


def register(kind: type, on: Backend) -> None:
    """Tell :func:`of` that a backend makes arrays of this type."""
    _backends[kind] = on


def known(array: Any) -> Backend | None:
    """Return the backend of an array that one of them has made, or could have; None for anything else."""
    return _backends.get(type(array))


def of(array: Any) -> Backend:
    """Return the backend an array lives on."""
    if (on := known(array)) is not None:
        return on
    return _make("numpy" if isinstance(array, (np.ndarray, np.generic)) else "cupy")


_backends: dict[type, Backend] = {np.ndarray: _make("numpy")}


def as_array(x: Any) -> Any:
    """Return an array of any backend as it is, and anything else as an array of NumPy."""
    return x if type(x) in _backends else np.asarray(x)


def module(array: Any) -> Any:
    """Return ``numpy``, ``cupy`` or what has their functions for arrays of another backend."""
    return of(array).xp

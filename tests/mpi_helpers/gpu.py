"""The values of the fixture ``backend``: NumPy, and a GPU's CuPy or, where none is, its stand-in.

The stand-in (``tests/fake_cupy``) is importable only while a test runs on it: for all other tests there is no
GPU. A test on it fails where work on streams was in no order, or MPI was given memory too early.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpi_helpers import communicators

FOLDER = Path(__file__).resolve().parents[1] / "fake_cupy"
NUMPY, AWARE, STAGED, NCCL = "numpy", "cupy", "cupy-staged", "cupy-nccl"
#: All arrays travel by `comm`; what is built of it names no copies. `tests/device` trains by every algorithm.
STAGED_ROOMS = ("comm",)

_modules: dict[str, Any] = {}  # of the stand-in, while no test runs on it


@functools.cache
def real() -> bool:
    """Tell whether this process has CuPy and a GPU, or was given the stand-in as if it had them."""
    from distgnn.arrays import backend

    return "cupy" in backend.available()


def backends(metafunc: pytest.Metafunc) -> list[str]:
    """Return the values for a test. Staged copies differ only where messages travel."""
    if real():
        from distgnn.arrays import backend

        return backend.available()
    room = metafunc.definition.path.parent.name
    staged = [STAGED] if "comm" in metafunc.fixturenames and room in STAGED_ROOMS else []
    return [NUMPY, AWARE, *staged]


@contextmanager
def backend(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the backend of this name; for CuPy's, let MPI take device pointers or not, or NCCL all arrays."""
    from distgnn.arrays import backend as backends

    if name == NUMPY:
        yield backends.get(NUMPY)
        return
    if real():
        yield backends.get(name)
        return
    aware(name == AWARE, monkeypatch)
    with stand_in(), monkeypatch.context() as patch:
        made = backends.get("cupy")
        if name == NCCL:
            patch.setenv("DISTGNN_TRANSPORT", "nccl")
            patch.setattr(made, "devices", lambda: [f"0000:{communicators.WORLD.Get_rank() + 1:02X}:00.0"])
        yield made


def aware(answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MPI take device pointers, or not: host memory is what the stand-in's pointers point to."""
    from distgnn.comm import transport

    monkeypatch.setattr(transport, "_cuda_aware_once", lambda: answer)


@contextmanager
def stand_in() -> Iterator[Any]:
    """Put the stand-in in the place of CuPy; fail at the end if it saw a hazard."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler here (g++, or what CXX names) to emulate a GPU with")
    from distgnn import progress
    from distgnn.arrays import backend as backends
    from distgnn.arrays.cupy_backend import CupyBackend
    from distgnn.comm.staging import staging

    sys.path.insert(0, os.fspath(FOLDER))
    sys.modules.update(_modules)
    backends._has_gpu.cache_clear()
    asked = importlib.import_module("cupy.stand_in")
    asked.reset(functools.partial(progress.watch, advance=lambda: time.sleep(1e-4)))
    communicators.witness.append(asked.given_to_mpi)
    try:
        yield asked
        assert not asked.hazards(), "\n".join(asked.hazards())
    finally:
        asked.reset()
        CupyBackend.bound = None
        staging.cache_clear()  # which memory is lent again would depend on the tests before
        communicators.witness.remove(asked.given_to_mpi)
        sys.path.remove(os.fspath(FOLDER))
        for module in [m for m in sys.modules if m.partition(".")[0] in ("cupy", "cupyx")]:
            _modules[module] = sys.modules.pop(module)
        backends._has_gpu.cache_clear()


def forget_messages() -> None:
    """Take messages that a test has given up from the stand-in's list of those under way."""
    if not real():
        sys.modules["cupy.stand_in"].forget_messages()

"""The values of the fixture ``backend``: NumPy, and a GPU's CuPy or, where none is, its stand-in.

The stand-in (``tests/fake_cupy``) is importable only while a test runs on it: for all other tests there is no
GPU. A test on it fails where work on streams was in no order, or MPI was given memory too early.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpi_helpers import communicators

FOLDER = Path(__file__).resolve().parents[1] / "fake_cupy"
NUMPY, AWARE, STAGED = "numpy", "cupy", "cupy-staged"
#: Of each test on the stand-in: how many cases at most in a launch, of cheap tests (those on one rank, and of
#: `comm`) and of others, and on how many ranks.
CHEAP_CASES, MOST_CASES = 2, 1
RANKS = {AWARE: (1, 2, 3, 4), STAGED: (2, 3, 4)}
#: What is built of these has no copies of its own to stage; `tests/device` trains by every algorithm.
STAGED_ROOMS = ("comm", "operators")

_modules: dict[str, Any] = {}  # of the stand-in, while no test runs on it


@functools.cache
def real() -> bool:
    """Whether this process has CuPy and a GPU, or was given the stand-in as if they were."""
    from distgnn.arrays import backend

    return "cupy" in backend.available()


def backends(metafunc: pytest.Metafunc) -> list[str]:
    """The values for a test. Staged copies are another thing only where something travels."""
    if real():
        from distgnn.arrays import backend

        return backend.available()
    room = metafunc.definition.path.parent.name
    staged = [STAGED] if "comm" in metafunc.fixturenames and room in STAGED_ROOMS else []
    return [NUMPY, AWARE, *staged]


def selection(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """(taken, left out): tests on the stand-in are few, and nothing slow: so many cases of each, those that
    have the most values of its parameters, on two, three or four ranks by its name. On a GPU all are taken.
    """
    if real():
        return items, []
    cases: dict[tuple[str, str], list[tuple[pytest.Item, set[tuple[str, str]]]]] = {}
    taken: set[pytest.Item] = set()
    for item in items:
        name = parameters(item).get("backend", NUMPY)
        if name not in RANKS:
            taken.add(item)
        elif size(item) in RANKS[name] and not item.get_closest_marker("slow"):
            cases.setdefault((item.nodeid.partition("[")[0], name), []).append((item, values(item)))
    for (test, _), some in cases.items():
        first = by_name(test, {size(item) for item, _ in some})
        some.sort(key=lambda case, first=first: size(case[0]) != first)  # type: ignore[misc]
        cheap = first == 1 or some[0][0].path.parent.name == "comm"
        taken.update(covering(some)[: CHEAP_CASES if cheap else MOST_CASES])
    return [item for item in items if item in taken], [item for item in items if item not in taken]


def parameters(item: pytest.Item) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def size(item: pytest.Item) -> int:
    """Of its ``comm``."""
    found = parameters(item).get("comm", 1)
    return found if isinstance(found, int) else 1


def values(item: pytest.Item) -> set[tuple[str, str]]:
    """Of its parameters but the backend."""
    return {("", "")} | {(key, repr(value)) for key, value in parameters(item).items() if key != "backend"}


def by_name(test: str, sizes: set[int]) -> int:
    """One of these numbers, another for another test."""
    return sorted(sizes)[zlib.crc32(test.encode()) % len(sizes)]


def covering(cases: list[tuple[pytest.Item, set[tuple[str, str]]]]) -> list[pytest.Item]:
    """Cases that together have all values, first those with the most new ones."""
    known: set[tuple[str, str]] = set()
    chosen = []
    for news in range(max(len(values) for _, values in cases), 0, -1):
        for item, values in cases:
            if len(values - known) >= news:
                known |= values
                chosen.append(item)
    return chosen


@contextmanager
def backend(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend of this name; of CuPy's, MPI is told to take device pointers or not to."""
    from distgnn.arrays import backend as backends

    if name == NUMPY:
        yield backends.get(NUMPY)
        return
    if real():
        yield backends.get(name)
        return
    aware(name == AWARE, monkeypatch)
    with stand_in():
        yield backends.get("cupy")


def aware(answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI takes device pointers, or does not: host memory is what the stand-in's are."""
    from distgnn.comm import transport

    monkeypatch.setattr(transport, "_cuda_aware_once", lambda: answer)


@contextmanager
def stand_in() -> Iterator[Any]:
    """The stand-in as the machine's CuPy, and what tests ask it. Fails at the end if it saw a hazard."""
    from distgnn import progress
    from distgnn.arrays import backend as backends
    from distgnn.comm.staging import staging

    sys.path.insert(0, os.fspath(FOLDER))
    sys.modules.update(_modules)
    backends._has_gpu.cache_clear()
    asked = importlib.import_module("cupy.stand_in")
    asked.reset(progress.poll)
    communicators.witness.append(asked.given_to_mpi)
    try:
        yield asked
        assert not asked.hazards(), "\n".join(asked.hazards())
    finally:
        asked.reset()
        backends.CupyBackend.bound = None
        staging.cache_clear()  # which memory is lent again would depend on the tests before
        communicators.witness.remove(asked.given_to_mpi)
        sys.path.remove(os.fspath(FOLDER))
        for module in [m for m in sys.modules if m.partition(".")[0] in ("cupy", "cupyx")]:
            _modules[module] = sys.modules.pop(module)
        backends._has_gpu.cache_clear()


def forget_messages() -> None:
    """What a test has given up is no longer under way, as far as the stand-in is concerned."""
    if not real():
        sys.modules["cupy.stand_in"].forget_messages()

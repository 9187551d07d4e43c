"""Clocks and ceilings: candidates are timed in turns, so that other load of the machine hits all alike."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.arrays import backend
from distgnn.arrays.timing import seconds as seconds_of

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def in_turns(
    candidates: Mapping[str, Callable[[], object]], seconds: float = 1.0, least: int = 3, clock: str = "wall",
    most: int = 8,
) -> dict[str, list[float]]:  # fmt: skip
    """Time each call by name: all in turns for `seconds` and at least `least` turns, after one to warm up.

    In a turn, a candidate is called as often as fits into one call of the slowest, up to `most` times: the
    faster a call, the more of them it takes for one that nothing disturbs. The clock "cpu" counts the time of
    all threads of this process, for a machine that others use.
    """
    once = {name: max(seconds_of(run), 1e-9) for name, run in candidates.items()}
    calls = {name: min(max(int(max(once.values()) / took), 1), most) for name, took in once.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    started, turns = time.perf_counter(), 0
    while turns < least or time.perf_counter() - started < seconds:
        for name, run in candidates.items():
            samples[name] += [seconds_of(run, clock=CLOCKS[clock]) for _ in range(calls[name])]
        turns += 1
    return samples


def copy_bandwidth(clock: str = "wall", size: int = 1 << 28) -> float:
    """Measure bytes read and written per second by a copy that fits no cache: the ceiling of streaming."""
    source, target = (backend.get("numpy").empty((size // 8,), np.float64) for _ in range(2))
    source[:] = 1.0
    return 2 * size / min(in_turns({"copy": lambda: np.copyto(target, source)}, 0.5, 5, clock)["copy"])


def cache_bandwidth(clock: str = "wall", size: int = 1 << 23) -> float:
    """Measure bytes per second that one thread reads from the last-level cache: the ceiling of gathers."""
    x = backend.get("numpy").empty((size // 4,), np.float32)
    x[:] = 1.0
    return size / min(in_turns({"read": lambda: np.dot(x, x)}, 0.3, 20, clock)["read"])


def dense_rate(clock: str = "wall", rows: int = 4096, width: int = 128) -> float:
    """Measure operations per second of NumPy's BLAS: (rows, width) times (width, width), as in a layer."""
    A, B = (backend.get("numpy").zeros((count, width), np.float32) for count in (rows, width))
    C = backend.get("numpy").empty((rows, width), np.float32)
    return (
        2 * A.size * width / min(in_turns({"gemm": lambda: np.matmul(A, B, out=C)}, 0.2, 20, clock)["gemm"])
    )


def blas() -> str:
    """Name the BLAS that NumPy was built with."""
    built: Any = np.show_config(mode="dicts")
    library = built["Build Dependencies"]["blas"]
    return f"{library.get('name', 'unknown')} {library.get('version', '')}".strip()


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[int, int]:
    """Return the bytes of the caches of data by level, as Linux tells; empty where nothing does."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            sizes[int(level)] = int(size.removesuffix("K")) << 10
    return sizes


def last_level_cache() -> int:
    """Return the bytes of the largest cache, 32 MiB if the system doesn't say."""
    return max(caches().values(), default=1 << 25)


def machine() -> str:
    """Describe this machine in one line."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        family, number = fields.get("cpu family", "?"), fields.get("model", "?")
        model = f"{fields.get('model name', '')} (family {family}, model {number})"
    except OSError:
        model = platform.processor() or platform.machine()
    cache = f"{last_level_cache() >> 20} MiB last-level cache"
    return f"{model}, {os.cpu_count()} cores, {cache}, {platform.system()}"

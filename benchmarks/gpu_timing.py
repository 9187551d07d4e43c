"""Shared parts of the programs that measure one GPU: kernels timed without the host, and reports."""

from __future__ import annotations

import argparse
import math
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import table
from distgnn.arrays import backend

Work = Callable[[], Any]
COPIES = 8  # of a call in a CUDA graph


class Replay:
    """A call as a CUDA graph of several, which the host launches at once; as it is where none can be made.

    The call is made before, so that all is compiled, planned and chosen.

    Attributes:
        captured: whether it is a graph; without, times have the host's in them.
    """

    def __init__(self, on: Any, work: Work, copies: int = COPIES) -> None:
        self.xp, self.pool, self.each = on.xp, on.pool(), copies
        for _ in range(3):
            work()
        on.synchronize()
        try:
            with on.memory_of(self.pool):  # kept as long as the graph, which works in it
                work()
                on.synchronize()
                with on.captured() as graphs:
                    for _ in range(copies):
                        work()
            (graph,) = graphs
            self.launch: Work = graph.launch
            self.captured = True
        except Exception as error:
            print(f"not captured, timed with the host: {type(error).__name__}: {error}", file=sys.stderr)
            self.launch, self.each, self.captured = work, 1, False

    def milliseconds(self, launches: int) -> float:
        """Return the time of one call, from events around so many launches."""
        start, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        start.record()
        for _ in range(launches):
            self.launch()
        end.record()
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(start, end)) / launches / self.each


def medians(on: Any, works: dict[str, Work], rounds: int = 5, least_ms: float = 10) -> dict[str, float]:
    """Measure median milliseconds of every call, by name; of one that was not captured, by name and `*`.

    In a round all take turns, so that clocks and heat treat them alike; in a turn launches fill `least_ms`.
    """
    replays = {name: Replay(on, work) for name, work in works.items()}
    launches = {}
    for name, replay in replays.items():
        once = replay.milliseconds(1) * replay.each
        launches[name] = max(1, min(1000, math.ceil(least_ms / max(once, 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(rounds):
        for name, replay in replays.items():
            times[name].append(replay.milliseconds(launches[name]))
    return {name + "*" * (not replays[name].captured): float(np.median(ms)) for name, ms in times.items()}


def bound(program: str) -> Any:
    """Return CuPy's backend, this process bound to the first device; exit with 2 where there is none."""
    if "cupy" not in backend.available():
        print(f"{program}: no GPU here, or no CuPy", file=sys.stderr)
        raise SystemExit(2)
    on = backend.get("cupy")
    on.bind(0)
    return on


def device_name(xp: Any) -> str:
    """Name the card, and the versions that it runs with."""
    runtime = xp.cuda.runtime
    name = runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()
    versions = f"CUDA {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()}"
    return f"{name}, {versions}, CuPy {xp.__version__}, Python {platform.python_version()}"


class Report:
    """A report that is printed, and appended to ``--out``, line by line: a run may be cut off."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.file: Path | None = args.out
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)

    def say(self, *lines: str) -> None:
        """Print lines."""
        text = "\n".join(lines) + "\n"
        print(text, end="", flush=True)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(text)

    def begin(self, args: argparse.Namespace, device: str) -> None:
        """Print the date, the command and the machine."""
        self.say(table.heading(args) + f"; {device}", "")


def milliseconds(ms: float) -> str:
    """Write a time with four figures, an absent one as nothing."""
    return "" if math.isnan(ms) else f"{ms:.4f}" if ms < 1 else f"{ms:.3f}"

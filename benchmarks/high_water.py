"""Most memory that a process has held from a moment on: VmHWM of Linux, begun anew by clear_refs."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS, ANEW = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def begin() -> int | None:
    """Let go of what is free, begin the mark anew, and return the bytes that are held; None: not known."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        ANEW.write_text("5")
    except (AttributeError, OSError):  # another C library, another system, or one that forbids it
        return None
    return status("VmRSS")


def rise(run: Callable[[], Any]) -> int | None:
    """Return bytes by which memory was above its start, at its peak, while `run` ran; None: not known."""
    before = begin()
    run()
    return above(before)


def above(before: int | None) -> int | None:
    """Return how far the mark is above what :func:`begin` returned, in bytes."""
    return None if before is None else status("VmHWM") - before


def status(name: str) -> int:
    """Read a line of /proc/self/status, in bytes."""
    lines = STATUS.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def mib(size: float | None) -> str:
    """Write a number of bytes for a table."""
    return "not known" if size is None else f"{size / 2**20:.0f}"

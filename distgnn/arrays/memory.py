"""Memory of this machine: what a process may fill, with the limits of its control groups, and gives back."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import numpy as np

#: Bytes from which on pages of 2 MiB are asked for, as NumPy does.
HUGE = 4 << 20


def mapped(nbytes: int) -> np.ndarray:
    """Make bytes of zeros in pages of their own, which the system has back when the last view of them goes.

    The C library keeps most of what an array leaves behind, for arrays to come.
    """
    pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8, nbytes)


def trim() -> None:
    """Give the system what the C library keeps of arrays that are gone, where it is glibc."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def of_node(root: Path = Path("/")) -> int:
    """Return the bytes of memory of the node, or of the narrowest control group around this process.

    Args:
        root: of the file system, for tests.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *_limits(root)])


def of_process() -> int | None:
    """Return the bytes that the system lets this process have (``ulimit -v``); None: no such limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups of this process and of those around them, of both versions."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, group = [*line.split(":", 2), "", ""][:3]
        folder, name = ("memory", "memory.limit_in_bytes") if names else ("", "memory.max")
        if names and "memory" not in names.split(","):
            continue
        own = PurePosixPath(group.lstrip("/"))
        for around in (own, *own.parents):  # in a container that path may not exist; the root does
            limit = _text(root / "sys/fs/cgroup" / folder / around / name).strip()
            if limit.isdecimal():
                yield int(limit)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""

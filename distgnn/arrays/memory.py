"""The memory of this machine that a process may fill, with the limits of its control groups."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


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

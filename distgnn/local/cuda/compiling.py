"""Kernels compiled once per node: the first process that needs one compiles it, the others read its copy.

CuPy keeps what it has compiled on disk (``CUPY_CACHE_DIR``), but processes that miss there at once compile
all at once. From CuPy 14.2 on it also finds kernels with template arguments there again.
"""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distgnn import progress

PAUSE = 0.005  # seconds between two looks at a lock


def folder() -> Path | None:
    """Return the folder in which compiled kernels are kept, the same as CuPy's; None where none is kept.

    ``CUPY_CACHE_DIR`` names it, and ``CUPY_CACHE_IN_MEMORY=1`` keeps none, as CuPy reads both.
    """
    in_memory = os.environ.get("CUPY_CACHE_IN_MEMORY", "").strip()
    if in_memory.isdecimal() and int(in_memory) == 1:
        return None
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


@contextmanager
def in_turn(what: str) -> Iterator[None]:
    """Let one process of this user and node at a time into the contexts of this name.

    Messages under way are driven meanwhile. Where nothing can be locked, all go in at once. The system frees
    the lock of a process that died.
    """
    try:
        import fcntl

        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # a link may lead to a file of the user's
        name = f"distgnn-compiling-{os.getuid()}"
        file = os.open(os.path.join(tempfile.gettempdir(), name), flags, 0o600)
    except (ImportError, OSError):
        yield
        return
    try:
        while os.fstat(file).st_uid == os.getuid():  # another user's may stay locked for ever
            try:  # a byte per name
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, zlib.crc32(what.encode()))
                break
            except (BlockingIOError, PermissionError):
                progress.poll()
                time.sleep(PAUSE)
            except OSError:
                break
        yield
    finally:
        os.close(file)

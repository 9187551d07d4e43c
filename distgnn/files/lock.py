"""A lock that lets one process write a path at a time."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from distgnn.errors import UserError
from distgnn.files.leftovers import AnyPath

log = logging.getLogger(__name__)
# The disk takes no bytes, locked or not.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
_OPENED = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # a link may lead to a file of the user's


@contextmanager
def locked(path: AnyPath) -> Iterator[bool]:
    """Lock `path` for writing; yield True if the lock is held, False if this system has no locks.

    The lock is on a file ``.NAME.lock`` beside `path`. The file names its process and is removed at the end.
    The system frees the lock of a process that died. On a file system without locks a warning is logged.

    Raises UserError if another process writes `path`, or if the disk is full.
    """
    target, name = Path(os.path.realpath(path)), lock_file(path)
    file = _acquired(target, name)
    try:
        yield file is not None
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                name.unlink()  # while this process holds the lock, no other does
            file.close()


def lock_file(path: AnyPath) -> Path:
    """Return the path of the file that is locked while `path` is written."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.lock")


def check_unlocked(path: AnyPath) -> None:
    """Raise UserError if another process writes `path` now."""
    if lock_file(path).exists():
        with locked(path):
            pass


def _acquired(target: Path, name: Path) -> IO[str] | None:
    while True:
        file, held = None, False
        try:
            import fcntl

            file = _opened(name)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same(file, name):  # else its last owner removed the file before this lock
                held = True
                if file.writable():
                    file.truncate(0)
                    file.write(f"process {os.getpid()} on {socket.gethostname()}")
                    file.flush()
                return file
        except BlockingIOError:
            assert file is not None
            file.seek(0)
            writer = file.read(200) or "another process"
            file.close()
            problem = f"{writer} writes it now; wait for that, or give another name"
            raise UserError(f"{target}: {problem}") from None
        except (ImportError, OSError) as error:
            if file is not None:
                with contextlib.suppress(OSError):
                    if held:
                        name.unlink()
                with contextlib.suppress(OSError):  # closing writes the buffer
                    file.close()
            if isinstance(error, OSError) and error.errno in _FULL:
                raise UserError(f"cannot write {target}: {error.strerror}") from None
            log.warning("%s: cannot be locked here (%s); take care that nobody else writes it", target, error)
            return None
        file.close()


def _opened(name: Path) -> IO[str]:
    """Open the lock file, made if need be; a file of another user is opened read-only, to be locked."""
    try:
        return open(os.open(name, _OPENED, 0o666), "r+", encoding="utf-8")
    except PermissionError:
        return open(os.open(name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), encoding="utf-8")


def _same(file: IO[str], name: Path) -> bool:
    """Return True if the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), name.stat())
    except FileNotFoundError:
        return False

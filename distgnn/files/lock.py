"""One writer at a time."""

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
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # nothing can be written, locked or not
_OPENED = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # a link may lead to something of worth


@contextmanager
def locked(path: AnyPath) -> Iterator[bool]:
    """Be the only one who writes `path`; yields whether that is certain.

    The lock is on a file ``.NAME.lock`` beside it, which says who has it and goes at the end. The system
    frees the lock of a process that died. Where it has none for these files, a warning says so.
    UserError: somebody else writes it, or the disk is full.
    """
    target, name = Path(os.path.realpath(path)), lock_file(path)
    file = _acquired(target, name)
    try:
        yield file is not None
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                name.unlink()  # while it is locked, so nobody has it
            file.close()


def lock_file(path: AnyPath) -> Path:
    """Where the lock of `path` is, while it is written."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.lock")


def check_unlocked(path: AnyPath) -> None:
    """UserError if somebody writes `path` now."""
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
            if _same(file, name):  # else who had it has removed it in between
                held = True
                if file.writable():
                    file.truncate(0)
                    file.write(f"process {os.getpid()} on {socket.gethostname()}")
                    file.flush()
                return file
        except BlockingIOError:
            assert file is not None
            file.seek(0)
            who = file.read(200) or "another process"
            file.close()
            problem = f"{who} writes it now; wait for that, or give another name"
            raise UserError(f"{target}: {problem}") from None
        except (ImportError, OSError) as error:
            if file is not None:
                with contextlib.suppress(OSError):
                    if held:
                        name.unlink()
                with contextlib.suppress(OSError):  # it writes what it holds
                    file.close()
            if isinstance(error, OSError) and error.errno in _FULL:
                raise UserError(f"cannot write {target}: {error.strerror}") from None
            log.warning("%s: cannot be locked here (%s); take care that nobody else writes it", target, error)
            return None
        file.close()


def _opened(name: Path) -> IO[str]:
    """The lock file, made if need be; of another user, who may not let us write it, only to be locked."""
    try:
        return open(os.open(name, _OPENED, 0o666), "r+", encoding="utf-8")
    except PermissionError:
        return open(os.open(name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), encoding="utf-8")


def _same(file: IO[str], name: Path) -> bool:
    """Is the open file still the one of this name?"""
    try:
        return os.path.samestat(os.fstat(file.fileno()), name.stat())
    except FileNotFoundError:
        return False

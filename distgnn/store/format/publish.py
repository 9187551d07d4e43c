"""A directory that appears whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distgnn.errors import UserError
from distgnn.files import leftovers
from distgnn.files.leftovers import AnyPath
from distgnn.files.lock import lock_file, locked
from distgnn.store.format.manifest import sync_folder

log = logging.getLogger(__name__)

# Errors of a full, forbidden or broken disk, or of a mount point: the user can mend them.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}
_DISK |= {errno.EIO, errno.EBUSY, errno.ESTALE, errno.EXDEV}

# Of renameat2(2): relative to the working directory; both names keep a file.
_AT_FDCWD, _EXCHANGE = -100, 2


@contextmanager
def new_directory(
    out: AnyPath, *, force: bool, replaceable: Callable[[Path], bool], what: str = "store"
) -> Iterator[Path]:
    """Yield an empty sibling of `out`, which takes its name when the block ends.

    After an exception the sibling is removed. With `force` it replaces a directory that `replaceable`
    recognises. The caller makes the files durable. Files that killed runs have left of `out` are put back or
    removed first.

    Raises UserError if `out` exists (without `force`, or is not `replaceable`), its parent does not exist,
    another process writes it, or the disk is full.
    """
    target = Path(os.path.realpath(out))
    checks = {"force": force, "replaceable": replaceable, "what": what}
    check_target(out, **checks)  # type: ignore[arg-type]
    with writing(out), locked(target) as alone:
        if alone:
            _heal(target)
        check_target(out, **checks)  # type: ignore[arg-type]
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        try:
            yield folder
            mask = os.umask(0o022)
            os.umask(mask)
            folder.chmod(0o777 & ~mask)  # mkdtemp makes it private
            sync_folder(folder)
            check_target(out, **checks)  # type: ignore[arg-type]
            _replace(folder, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # the replaced directory, or the failed one


@contextmanager
def writing(out: AnyPath) -> Iterator[None]:
    """Turn errors of a full or forbidden disk inside into a UserError that names `out`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        raise UserError(f"cannot write {out}: {os.strerror(error.errno)}") from error


def check_target(
    out: AnyPath, *, force: bool, replaceable: Callable[[Path], bool], what: str = "store"
) -> None:
    """Raise the UserError that `new_directory` would raise, before any work is done."""
    target = Path(os.path.realpath(out))
    if not target.parent.is_dir():
        raise UserError(f"{out}: directory {target.parent} does not exist")
    if not os.path.lexists(target) or _is_empty(target):
        return
    if not force:
        _tidy(target)
        raise UserError(f"{out} exists; force=True replaces it, or give another name")
    if not target.is_dir() or not replaceable(target):
        kind = f"a distgnn {what}, which force=True replaces"
        raise UserError(f"{out} exists and is not {kind}; give another name")


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _tidy(target: Path) -> None:
    """Remove leftovers of killed runs beside a directory that stays, unless another process writes it now."""
    if lock_file(target).exists() or leftovers.beside(target, "tmp") or leftovers.beside(target, "old"):
        with suppress(UserError), locked(target) as alone:
            if alone:
                _heal(target)


def _heal(target: Path) -> None:
    """Put back a directory that a killed run has moved aside, and remove its other leftovers."""
    old = leftovers.moved_aside(target)
    if old is not None:
        os.rename(old, target)
        log.warning("%s: put back, a run was killed while it replaced it", target)
    leftovers.remove(target, [*leftovers.beside(target, "tmp"), *leftovers.beside(target, "old")])


def _replace(folder: Path, target: Path) -> None:
    """Put `folder` in the place of `target`.

    If the system can't exchange two names in one step, there is no `target` for a moment. If the run is
    killed in that moment, `_heal` puts the old directory back.
    """
    if not os.path.lexists(target) or _is_empty(target):
        os.rename(folder, target)  # rename(2) replaces an empty directory
    elif not _exchange(folder, target):
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        os.rename(target, old)
        try:
            os.rename(folder, target)
        except BaseException:
            os.rename(old, target)
            raise
        sync_folder(target.parent)
        gone = old.with_suffix(".tmp")  # a half-removed directory must not be put back
        os.rename(old, gone)
        shutil.rmtree(gone, ignore_errors=True)
    sync_folder(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two directories in one step; return False where the system can't."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # no Linux, or an old C library
        return False
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))

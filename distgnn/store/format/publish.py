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

# What a full, forbidden or broken disk says, or a mount point: the user's to mend, not a bug.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}
_DISK |= {errno.EIO, errno.EBUSY, errno.ESTALE, errno.EXDEV}

# Of renameat2(2): relative to the working directory; both names keep a file.
_AT_FDCWD, _EXCHANGE = -100, 2


@contextmanager
def new_directory(
    out: AnyPath, *, force: bool, replaceable: Callable[[Path], bool], what: str = "store"
) -> Iterator[Path]:
    """Yield an empty sibling of `out`, which takes its name when the block ends and vanishes on an exception.

    With `force` it replaces a directory that `replaceable` recognises. The caller makes the files durable.
    What killed runs have left of `out` is put back or removed first.
    UserError: `out` exists (without `force`, or as something else), its parent does not, somebody else writes
    it, or no room.
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
            shutil.rmtree(folder, ignore_errors=True)  # what was replaced, or what failed


@contextmanager
def writing(out: AnyPath) -> Iterator[None]:
    """A full or forbidden disk inside is a UserError that names `out`."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # of HDF5's, some have the number in the message only
        said = (code for code in _DISK if f"errno = {code}," in str(error))
        number = getattr(error, "errno", None) or next(said, None)
        if number not in _DISK:
            raise
        raise UserError(f"cannot write {out}: {os.strerror(number)}") from error


def check_target(
    out: AnyPath, *, force: bool, replaceable: Callable[[Path], bool], what: str = "store"
) -> None:
    """The UserError that `new_directory` would raise, before anything is done."""
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
    """Remove what killed runs have left beside a directory that stays, unless somebody writes it now."""
    if lock_file(target).exists() or leftovers.beside(target, "tmp") or leftovers.beside(target, "old"):
        with suppress(UserError), locked(target) as alone:
            if alone:
                _heal(target)


def _heal(target: Path) -> None:
    """Put back what a killed run has moved aside, and remove what else such runs have left."""
    old = leftovers.moved_aside(target)
    if old is not None:
        os.rename(old, target)
        log.warning("%s: put back, a run was killed while it replaced it", target)
    leftovers.remove(target, [*leftovers.beside(target, "tmp"), *leftovers.beside(target, "old")])


def _replace(folder: Path, target: Path) -> None:
    """Put `folder` in the place of `target`. Where the system can't exchange them in one step, there is none
    for a moment; `_heal` puts the old one back if that moment is the last."""
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
        gone = old.with_suffix(".tmp")  # half removed, it is nothing to be put back
        os.rename(old, gone)
        shutil.rmtree(gone, ignore_errors=True)
    sync_folder(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change names in one step; False where the system or the file system can't."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # no Linux, or an old C library
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))

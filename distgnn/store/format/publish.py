"""A directory that appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from distgnn.errors import UserError
from distgnn.store.format.manifest import AnyPath, sync_folder

# What a full or forbidden disk says: the user's to mend, not a bug.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def new_directory(
    out: AnyPath, *, force: bool, replaceable: Callable[[Path], bool], what: str = "store"
) -> Iterator[Path]:
    """Yield an empty sibling of `out`, which takes its name when the block ends and vanishes on an exception.

    With `force` it replaces a directory that `replaceable` recognises. The caller makes the files durable.
    UserError: `out` exists (without `force`, or as something else), its parent does not, or no room.
    """
    target = Path(os.path.realpath(out))
    check_target(out, force=force, replaceable=replaceable, what=what)
    with writing(out):
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        try:
            yield folder
            mask = os.umask(0o022)
            os.umask(mask)
            folder.chmod(0o777 & ~mask)  # mkdtemp makes it private
            sync_folder(folder)
            check_target(out, force=force, replaceable=replaceable, what=what)
            _rename(folder, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # gone already if it was renamed


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
        raise UserError(f"{out} exists; force=True replaces it, or give another name")
    if not target.is_dir() or not replaceable(target):
        kind = f"a distgnn {what}, which force=True replaces"
        raise UserError(f"{out} exists and is not {kind}; give another name")


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _rename(folder: Path, target: Path) -> None:
    """Put `folder` in the place of `target`; the old directory is kept until the new one is there."""
    old = None
    if target.exists() and not _is_empty(target):  # rename(2) replaces an empty directory
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        os.rename(target, old)
    try:
        os.rename(folder, target)
    except BaseException:
        if old is not None:
            os.rename(old, target)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(target.parent)

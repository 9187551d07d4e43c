"""Files and directories that killed runs leave beside and in the directories that they wrote."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)
AnyPath = str | os.PathLike[str]


def beside(target: Path, suffix: str) -> list[Path]:
    """List the siblings ``.NAME.????????.SUFFIX`` of a directory: unfinished ("tmp") or replaced ("old")."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}\.{suffix}")
    try:
        return sorted(path for path in target.parent.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def moved_aside(path: AnyPath) -> Path | None:
    """Find the directory that stood at `path`, if a run was killed between two renames that replace it."""
    target = Path(os.path.realpath(path))
    if os.path.lexists(target):
        return None
    return next((old for old in beside(target, "old") if old.is_dir() and os.listdir(old)), None)


def remove(target: Path, stale: Sequence[Path]) -> None:
    """Remove these files and directories, and log their names in one line."""
    for path in stale:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if stale:
        names = ", ".join(path.name for path in stale)
        log.warning("%s: removed what a run that was killed had left: %s", target, names)

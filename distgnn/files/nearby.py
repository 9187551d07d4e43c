"""A hint for a name of a file that is not there."""

from __future__ import annotations

import os
from pathlib import Path

from distgnn.errors import did_you_mean


def did_you_mean_path(path: Path) -> str:
    """``; did you mean PATH?`` of the file beside it that is called most like it; nothing where none is."""
    try:
        names = [name for name in os.listdir(path.parent) if not name.startswith(".")]
    except OSError:
        return ""
    folder = "" if path.parent == Path() else f"{path.parent}/"
    return did_you_mean(path.name, names, f"{folder}{{}}")

"""A hint for a name of a file that is not there."""

from __future__ import annotations

import os
from pathlib import Path

from distgnn.errors import did_you_mean


def did_you_mean_path(path: Path) -> str:
    """Return ``; did you mean PATH?`` of the file beside it that has the nearest name, if any."""
    try:
        names = [name for name in os.listdir(path.parent) if not name.startswith(".")]
    except OSError:
        return ""
    folder = "" if path.parent == Path() else f"{path.parent}/"
    return did_you_mean(path.name, names, f"{folder}{{}}")

"""Where the files that are not Python lie."""

from __future__ import annotations

from pathlib import Path


def kernels_folder() -> Path:
    """The kernel sources: in the package where installed, beside it in a working tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"

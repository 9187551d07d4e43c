"""Public names of a package, imported on first use: those of its stub, which type checkers read too."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LINE = re.compile(r"^from (\.[\w.]*) import (\w+) as \2$", re.MULTILINE)


def names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose ``__init__.py`` is this file.

    The stub beside it, ``__init__.pyi``, has a line ``from .room.module import name as name`` for each name.
    """
    homes = {name: home for home, name in _LINE.findall(Path(file).with_suffix(".pyi").read_text())}

    def get(name: str) -> Any:
        if name not in homes:
            problem = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(problem, name=name, obj=sys.modules[package])  # Python adds the nearest
        if homes[name] == ".":
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(package + homes[name]), name)

    public = sorted(homes)
    return get, lambda: public, public

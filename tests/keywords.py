"""Keyword arguments of public functions as type checkers see them: ``distgnn/*/keywords.py``.

`python tests/keywords.py` writes the files, from the code that takes the arguments; ``tests/test_types.py``
holds them equal.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from distgnn import gallery
from distgnn.gallery import GeneratedGraph
from distgnn.store import prepare
from distgnn.store.from_arrays import prepare as from_arrays
from distgnn.store.source import ImportOptions
from distgnn.train.fit import ELSEWHERE
from distgnn.train.settings import Settings, kinds

ROOT = Path(__file__).resolve().parents[1] / "distgnn"
DTYPE = 'Literal["float32", "float64"] | type[np.floating[Any]] | np.dtype[Any]'
HEAD = '''"""Keyword arguments of {of}, for type checkers; ``tests/keywords.py`` writes this file."""

# ruff: noqa: F401

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import numpy as np

    from distgnn.partition import Wanted
'''

Types = Mapping[str, str]


def of_settings() -> Types:
    """Return the types that a setting takes from Python: what its field says, and what becomes that."""
    return {field.name: _of_field(field) for field in fields(Settings)}


def _of_field(field: Field[Any]) -> str:
    facts, names = field.metadata, kinds(field)
    if facts.get("choices"):
        words = "Literal[" + ", ".join(f'"{word}"' for word in facts["choices"]) + "]"
        names = [words] if facts["least"] is None else [names[0], words]
    elif names[0].startswith("Sequence["):
        names = [names[0][len("Sequence[") : -1], names[0]]  # a number stands for a list of one
    elif facts.get("metavar") in ("FILE", "DIR"):
        names = [*names, "os.PathLike[str]"]
    names = [DTYPE] if field.name == "dtype" else names
    return " | ".join([*names, *["None"] * (field.default is None)])


def of_signature(*functions: Any) -> Types:
    """Return the types of the keyword arguments of functions; the first function with a name counts."""
    found: dict[str, str] = {}
    for function in functions:
        for name, one in inspect.signature(function).parameters.items():
            if one.kind is one.KEYWORD_ONLY:
                found.setdefault(name, DTYPE if name == "dtype" else one.annotation)
    return found


def without(types: Types, names: Iterable[str]) -> Types:
    return {name: kind for name, kind in types.items() if name not in names}


def tables() -> Mapping[str, tuple[str, Mapping[str, Types]]]:
    """Return by room whose arguments its file has, and types by the head of a class."""
    settings, outside = of_settings(), ("seed", *ELSEWHERE)
    imported = {field.name: str(field.type) for field in fields(ImportOptions) if field.repr}
    stored = of_signature(prepare) | without(imported, ("features", "labels"))
    graphs = {"RMat": gallery.RMat, "Road": gallery.RoadMap, "Sbm": gallery.PlantedPartition}
    drawn = {f"{name}Options": of_signature(kind.__init__, GeneratedGraph.__init__)
             for name, kind in graphs.items()}  # fmt: skip
    drawn["RoadOptions"] = without(drawn["RoadOptions"], ["directed"])
    trained = {"FitSettings": without(settings, outside)}
    trained["AllSettings(FitSettings)"] = {name: settings[name] for name in outside}
    return {
        "train": ("fit and Settings", trained),
        "store": ("prepare", {"PrepareOptions": without(stored, inspect.signature(from_arrays).parameters)}),
        "gallery": ("rmat, sbm and road", drawn),
    }


def text(of: str, classes: Mapping[str, Types]) -> str:
    """Write a file of keyword arguments."""
    body = ""
    for head, types in classes.items():
        name, _, base = head.partition("(")
        body += f"\n\nclass {name}({base.removesuffix(')') or 'TypedDict'}, total=False):\n"
        body += "".join(f"    {argument}: {kind}\n" for argument, kind in types.items())
    return HEAD.format(of=of) + body


def main() -> None:
    for room, table in tables().items():
        (ROOT / room / "keywords.py").write_text(text(*table))


if __name__ == "__main__":
    main()

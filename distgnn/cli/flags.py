"""Flags of settings, from the fields of :class:`~distgnn.train.settings.Settings`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Iterator
from dataclasses import Field
from itertools import groupby
from typing import Any

from distgnn.cli.values import checked, count, fetching, natural, numbers, widths
from distgnn.train.fields import kinds, public
from distgnn.train.settings import Settings

FIELDS = {field.name: field for field in public(Settings)}
#: The reader of a value, by the annotation of its field without None.
READERS: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "Sequence[int]": widths, "Sequence[float]": numbers,
    "bool | str": fetching, "bool | int | str": checked,
}  # fmt: skip
WHOLE = {0: natural, 1: count}


def in_groups(parser: argparse.ArgumentParser, names: Container[str]) -> Iterator[tuple[Any, str]]:
    """Yield some settings with the group of the parser for the flag of each, made with its first flag."""
    asked = [field for field in FIELDS.values() if field.name in names]
    for title, fields in groupby(asked, key=lambda field: field.metadata["group"]):
        group = parser.add_argument_group(title)
        yield from ((group, field.name) for field in fields)


def add_setting(group: Any, name: str, help: str = "") -> None:
    """Add the flag of a setting to a parser, or to a group of one, with the setting's help or this."""
    field = FIELDS[name]
    group.add_argument(f"--{name.replace('_', '-')}", **_options(field), help=help or field.metadata["help"])


def _options(field: Field) -> dict[str, Any]:
    """Return what ``add_argument`` takes for a field, but its help."""
    facts, types = field.metadata, " | ".join(kinds(field))
    default: Any = list(field.default) if isinstance(field.default, tuple) else field.default
    if types == "bool":
        action: Any = argparse.BooleanOptionalAction if facts["switch"] else "store_true"
        return {"action": action, "default": default}
    options: dict[str, Any] = {"default": default, "type": READERS.get(types), "metavar": facts["metavar"]}
    if facts["least"] is not None:
        options["type"] = WHOLE[facts["least"]]
    if facts["known"]:
        options["choices"] = (*facts["known"], *([facts["none"]] if facts["none"] else ()))
    if types.startswith("bool"):  # the flag alone is True
        options |= {"nargs": "?", "const": True}
    return options

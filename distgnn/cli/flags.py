"""Flags of settings, from the fields of :class:`~distgnn.train.settings.Settings`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Iterator
from dataclasses import Field
from functools import partial
from itertools import groupby
from typing import Any

from distgnn.cli.values import checked, count, fetching, natural, numbers, widths
from distgnn.train.settings import KINDS, Settings, kinds, public

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
        options["type"] = partial(WHOLE[facts["least"]], words=facts["choices"])
    elif facts["known"]:
        options["choices"] = facts["known"]
    if types.startswith("bool"):  # the flag alone is True
        options |= {"nargs": "?", "const": True}
    return options


HEADS = ("flag", "value", "default", "meaning")


def rows() -> dict[str, list[list[str]]]:
    """Return the rows of the table of settings in ``docs/commands.md`` by group, with the columns HEADS."""
    table: dict[str, list[list[str]]] = {}
    for field in FIELDS.values():
        flag, facts = f"--{field.name.replace('_', '-')}", field.metadata
        names = f"`{flag}`, `--no-{flag[2:]}`" if facts["switch"] else f"`{flag}`"
        default = "" if field.default is None or field.default is False else f"`{_typed(field.default)}`"
        table.setdefault(facts["group"], []).append([names, _values(field), default, facts["help"]])
    return table


def _values(field: Field) -> str:
    """Describe what a setting takes; nothing for a switch."""
    least, types = field.metadata["least"], kinds(field)
    words = ", ".join(f"`{word}`" for word in field.metadata["known"])
    if least is not None:
        return f"{KINDS[types[0]][1]}, at least {least}{words and f', or {words}'}"
    if words:
        return words
    if "bool" in types:
        return " or ".join(f"`{word}`" for word in (field.metadata["metavar"] or "").split("|") if word)
    return KINDS[types[0]][1]


def _typed(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_typed, value))
    return "yes" if value is True else f"{value:g}" if isinstance(value, float) else str(value)

"""Fields of settings: each has its default, help, range and choices in one place, from which the flags of the
command line, the checks of values and the table in ``docs/commands.md`` are made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distgnn.errors import ArgumentError, offered


def setting(
    group: str, default: Any, help: str, *, metavar: str | None = None, least: int | None = None,
    choices: Sequence[str] = (), known: Sequence[str] = (), switch: bool = False
) -> Any:  # fmt: skip
    """Define a field of a settings class.

    Args:
        group: the heading under which ``--help`` shows the flag.
        help: one line without the default, unless None stands for one: then "(default: ...)" names it.
        metavar: the name of the value in ``--help``.
        least: the smallest whole number that is taken.
        choices: all texts that are taken.
        known: the texts that the command line takes. Python may give others, which the user of the setting
            checks, as a registry may hold more.
        switch: whether a Boolean has a flag ``--no-NAME`` beside ``--NAME``.
    """
    facts = {"group": group, "help": help, "metavar": metavar, "least": least, "choices": tuple(choices)}
    facts |= {"known": tuple(known or choices), "switch": switch}
    return dataclasses.field(default=default, metadata=facts)


def public(settings: Any) -> list[dataclasses.Field]:
    """List the fields of a settings class, or of an object of it, that have a flag."""
    return [field for field in dataclasses.fields(settings) if field.metadata]


def check_fields(settings: Any) -> None:
    """Raise ArgumentError for the first field whose value has another type or is out of range."""
    for field in dataclasses.fields(settings):
        if field.metadata.get("least") is None:
            _check_type(field, getattr(settings, field.name))
    for field in public(settings):
        value, least = getattr(settings, field.name), field.metadata["least"]
        choices = field.metadata["choices"]
        if value is None and _may_be_none(field):
            continue
        if choices and value not in choices:
            raise ArgumentError(field.name, value, offered(value, choices))
        if least is not None and (not _is_whole(value) or value < least):
            raise ArgumentError(field.name, value, f"expected a whole number, at least {least}")


def kinds(field: dataclasses.Field) -> list[str]:
    """List the types that a field may have, as its annotation has them, but for None."""
    return [name for name in str(field.type).split(" | ") if name != "None"]


def _check_type(field: dataclasses.Field, value: Any) -> None:
    if value is None and _may_be_none(field):
        return
    names = kinds(field)
    if not any(KINDS[name][0](value) for name in names):
        raise ArgumentError(field.name, repr(value), f"expected {' or '.join(KINDS[n][1] for n in names)}")


def _may_be_none(field: dataclasses.Field) -> bool:
    return str(field.type).endswith(" | None")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float)


def _all(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def fit(value: Any) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(map(fits, value))

    return fit


#: By annotation: the test of a value, and the name of such a value in errors. A Boolean is no number.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (_is_whole, "a whole number"),
    "float": (_is_number, "a number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "Mapping[str, int]": (lambda value: isinstance(value, Mapping), "a mapping"),
    "Sequence[int]": (_all(_is_whole), "a whole number or several"),
    "Sequence[float]": (_all(_is_number), "a number or several"),
}

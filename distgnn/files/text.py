"""Text files from outside, in JSON and TOML: regular files of a bounded size, depth and number of digits."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from typing import Any

from distgnn.files.leftovers import AnyPath

SETTINGS_BYTES = 1 << 20  # of a file of settings or of a machine
DEPTH = 16  # tables and lists within each other
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_DOTTED = re.compile(rf"(?:[\w-]+[ \t]*\.[ \t]*){{{DEPTH}}}")  # tomllib takes quadratic time for many parts


def read_regular(path: AnyPath, most: int) -> str:
    """Read the UTF-8 text of a regular file.

    Raises:
        OSError: no file, or one that may not be read.
        ValueError: another kind of file (a pipe would wait, a device never ends), more than `most` bytes, or
            no UTF-8.
    """
    with open(path, "rb", opener=_at_once) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("it is no regular file")
        content = file.read(min(facts.st_size, most) + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it begins with the byte order mark of UTF-16; save it as UTF-8")
    return content.decode("utf-8")


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for a writer, as opening a pipe would."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def parse_json(text: str) -> Any:
    """Parse JSON; ValueError for a key that comes twice, for other wrong text, and for deep nesting."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"the key {name!r} comes twice")
        made[name] = value
    return made


def read_toml(path: AnyPath) -> dict[str, Any]:
    """Read a TOML file of at most SETTINGS_BYTES, DEPTH levels and numbers of 64 bits.

    It may begin with the byte order mark of UTF-8.

    Raises:
        OSError: no file, or one that may not be read.
        ValueError: another kind of file, or other text.
    """
    text = read_regular(path, SETTINGS_BYTES).removeprefix("\ufeff")
    try:
        if _DOTTED.search(_QUOTED.sub("", text)):
            raise RecursionError
        content = tomllib.loads(text)
        _check(content, DEPTH)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def _check(value: Any, levels: int) -> None:
    """Raise RecursionError for deeper nesting, ValueError for integers that TOML has not."""
    if isinstance(value, (dict, list)):
        if not levels:
            raise RecursionError
        for part in value.values() if isinstance(value, dict) else value:
            _check(part, levels - 1)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a whole number has more than 64 bits")

"""Settings of a command from four places: flag, over environment ``DISTGNN_FLAG_NAME``, over a TOML file, over the default.

Works for any parser: a value from the environment or the file goes through the flag's own type and choices and becomes its
default.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distgnn.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False, "": False}


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give a command its ``--config FILE``."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with settings named like the flags, at top level or in a table named like the command",
    )


def apply(
    parser: argparse.ArgumentParser,
    command: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    commands: Iterable[str] = (),
) -> None:
    """Make what the ``--config`` file and the environment say the defaults of ``parser``.

    Args:
        parser: the command's own parser, complete.
        command: its name; the file's table of this name belongs to it, tables of the other ``commands`` are left alone.
        argv: the words after the command, looked at for ``--config`` only.

    Raises:
        UserError: unreadable file, unknown key, or a value that the flag refuses; names the file or variable.
    """
    flags = _flags(parser)
    finder = type(parser)(prog=parser.prog, add_help=False)
    finder.add_argument("--config", default=environ.get("DISTGNN_CONFIG"))
    path = finder.parse_known_args(list(argv))[0].config
    if path:
        for name, value in _read(path, command, commands).items():
            if name.replace("_", "-") not in flags:
                known = ", ".join(sorted(flags))
                raise UserError(f"{path}: unknown key {name!r} for {command}; known keys: {known}")
            _set(parser, flags[name.replace("_", "-")], value, path)
    for name, action in flags.items():
        variable = "DISTGNN_" + name.upper().replace("-", "_")
        if variable in environ:
            _set(parser, action, environ[variable], variable)


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The settable flags by their long name without dashes."""
    flags = {}
    for action in parser._actions:
        names = [option[2:] for option in action.option_strings if option.startswith("--")]
        if names and names[0] not in ("help", "version", "config"):
            flags[names[0]] = action
    return flags


def _read(path: str, command: str, commands: Iterable[str]) -> dict[str, Any]:
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--config {path}: cannot read it ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--config {path}: not valid TOML: {error}") from error
    tables = {name for name in (command, *commands) if isinstance(content.get(name), dict)}
    own = content[command] if command in tables else {}
    return {name: value for name, value in content.items() if name not in tables} | own


def _set(parser: argparse.ArgumentParser, action: argparse.Action, value: Any, source: str) -> None:
    parser.set_defaults(**{action.dest: _convert(parser, action, value, source)})
    action.required = False


def _convert(parser: argparse.ArgumentParser, action: argparse.Action, value: Any, source: str) -> Any:
    """``value`` as ``action`` would have stored it, had it been given as a flag."""
    flag = action.option_strings[-1] if value is False else action.option_strings[0]
    if action.nargs == 0:
        switch = _WORDS.get(str(value).lower())
        if switch is None or not isinstance(value, (bool, str)):
            raise UserError(f"{source}: {action.option_strings[0]} is a switch: true or false, not {value!r}")
        if not isinstance(action, argparse.BooleanOptionalAction):
            return action.const if switch else not action.const
        words = [next(name for name in action.option_strings if name.startswith("--no-") != switch)]
    elif action.nargs is None or action.nargs == "?":
        words = [f"{flag}={_text(value)}"]
    else:
        words = [flag, *(value.split() if isinstance(value, str) else map(_text, value))]
    probe = type(parser)(prog=parser.prog, add_help=False)
    probe._add_action(copy.copy(action))
    try:
        return getattr(probe.parse_args(words), action.dest)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _text(value: Any) -> str:
    """A TOML value as on the command line: ``[15, 10]`` is ``15,10``, ``{rows = 4, reps = 2}`` is ``rows=4,reps=2``."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return str(value)

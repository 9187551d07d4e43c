"""``distgnn --print-completion SHELL``: a script that completes commands, flags and choices in a shell."""

from __future__ import annotations

from argparse import Action, ArgumentParser

#: By metavar: what a shell completes in place of a value.
_PATHS = {"STORE": "directory", "DIR": "directory", "CHECKPOINT": "directory", "SRC": "file", "OUT": "file",
          "LOG": "file", "FILE": "file", "FILE.svg": "file", "NAME|FILE": "file"}  # fmt: skip


def shells() -> list[str]:
    """List the shells."""
    import shtab

    return [*shtab.SUPPORTED_SHELLS]


def script(parser: ArgumentParser, shell: str) -> str:
    """Write the script of a shell for a program whose commands are subparsers."""
    import shtab

    kinds = {"directory": shtab.DIRECTORY, "file": shtab.FILE}
    for action in _actions(parser):
        if action.metavar in _PATHS:
            action.complete = kinds[_PATHS[str(action.metavar)]]  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _actions(parser: ArgumentParser) -> list[Action]:
    """List the actions of a parser and of its subparsers."""
    inner = [parser for action in parser._actions if isinstance(action.choices, dict)
             for parser in action.choices.values()]  # fmt: skip
    return [*parser._actions, *(action for parser in inner for action in _actions(parser))]

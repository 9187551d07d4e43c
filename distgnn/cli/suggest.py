"""Hints at the end of a parser's complaint: the command, flag or choice that may have been meant."""

from __future__ import annotations

import re
from argparse import ArgumentParser

from distgnn.errors import did_you_mean

_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)")
_NUMBERS = re.compile(r"( ?[\d.e-]+)+")


def hint(parser: ArgumentParser, message: str) -> str:
    """Return what may have been meant where argparse says this; nothing where nothing is near."""
    choice, unknown = _CHOICE.search(message), _UNKNOWN.fullmatch(message)
    if choice is not None:
        known = [word.strip().strip("'") for word in choice[2].split(",")]
        return did_you_mean(choice[1], known)
    if unknown is None:
        return ""
    if _NUMBERS.fullmatch(unknown[1]):
        return ": several numbers of an option are written 64,32"
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    words = (word.partition("=")[0] for word in unknown[1].split())
    return next((near for word in words if word.startswith("-") and (near := did_you_mean(word, flags))), "")

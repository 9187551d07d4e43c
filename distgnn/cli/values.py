"""Values of flags: the types that argparse calls, which refuse what they can't read."""

from __future__ import annotations

from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any

#: What a switch may be set to in a file or the environment.
SWITCH = dict.fromkeys(("0", "false", "no", "off", ""), False)
SWITCH |= dict.fromkeys(("1", "true", "yes", "on"), True)


class Words(str):
    """Words between commas that the command line gave."""


class AddedUp(Action):
    """A list between commas to which every further use of its flag adds."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, words: Any, flag: Any = None) -> None:
        before = getattr(namespace, self.dest, None)
        more = isinstance(before, Words) and before is not self.default
        setattr(namespace, self.dest, Words(f"{before},{words}" if more else words))


def natural(text: str, words: Sequence[str] = ()) -> Any:
    """Parse an int that is at least 0, or one of these words."""
    return _whole(text, 0, words)


def count(text: str, words: Sequence[str] = ()) -> Any:
    """Parse an int that is at least 1, or one of these words."""
    return _whole(text, 1, words)


def _whole(text: str, least: int, words: Sequence[str]) -> int | str:
    if text.strip() in words:
        return text.strip()
    if not text.strip().removeprefix("+").isdecimal() or int(text) < least:
        others = "".join(f", or {word}" for word in words)
        raise ArgumentTypeError(f"expected a whole number, at least {least}{others}, not {text!r}")
    return int(text)


def fetching(text: str) -> bool | str:
    """Read "auto", "cover", or a switch as files and the environment write it."""
    word = text.strip().lower()
    if word not in ("auto", "cover") and word not in SWITCH:
        problem = f"expected auto, cover, yes or no, not {text!r} (without a value it must come after STORE)"
        raise ArgumentTypeError(problem)
    return SWITCH.get(word, word)


def checked(text: str) -> bool | int | str:
    """Parse "all", a number of updates, or a switch as files and the environment write it."""
    word = text.strip().lower()
    if word == "all" or (word in SWITCH and word not in ("0", "1")):
        return SWITCH.get(word, word)
    try:
        return natural(word) or False
    except ArgumentTypeError:
        problem = f"expected all or a number of updates, not {text!r} (without one it must come after STORE)"
        raise ArgumentTypeError(problem) from None


def widths(text: str) -> list[int]:
    """Parse "64" or "64,32"."""
    try:
        return [count(word) for word in text.split(",")]
    except ArgumentTypeError:
        raise ArgumentTypeError(f"expected whole numbers, at least 1, as in 64,32, not {text!r}") from None


def numbers(text: str) -> list[float]:
    """Parse "5e-4" or "5e-4,0"."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected numbers, as in 5e-4,0, not {text!r}") from None

"""Texts on standard output and standard error: escaped, in any locale, dropped where nobody takes them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO

_lost: list[IO[str]] = []


def printable(text: object, kept: str = "") -> str:
    """Replace characters that do not print, such as ESC and marks of direction, by escapes.

    `kept`: such characters that stay.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def show(*texts: object, error: bool = False) -> None:
    """Print texts on standard output, or with `error` on standard error; see :func:`write`."""
    write(sys.stderr if error else sys.stdout, *texts)


def write(stream: IO[str] | None, *texts: object) -> None:
    """Write texts, each with a line end, at once: :func:`printable`, and in characters of the locale.

    Line ends within a text stay. A stream that takes no more, such as a closed pipe, gets no more. The
    stream is None where the process was started without.
    """
    if stream is None:
        return
    text = "\n".join(printable(line, kept="\t") for text in texts for line in str(text).split("\n"))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):  # ValueError: the program has closed it
        _lost.append(stream)
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # for what is left, at exit


def lost() -> bool:
    """Tell whether a text could not be printed."""
    return bool(_lost)


def ready() -> None:
    """Open the standard streams that this process was started without, as a daemon may be.

    Else the next file that it opens stands in for one, and gets what libraries print.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))

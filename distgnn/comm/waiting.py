"""Waits for other ranks, and a watch that reports those that take long.

A rank notes what it waits for, at the cost of an entry in a table. A thread of the process, the *watch*,
reads the table twice a second. After ``DISTGNN_STALL`` seconds, and a moment in which ranks ask each other
(see ``notices.py``), it says what the rank waits for, and which ranks have not come.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from distgnn.comm import launch

#: Seconds between two looks of the watch.
LOOK = 0.5

_HERE = str(Path(__file__).resolve().parents[1])  # the package
#: Modules of Python between the package and the program: context managers, and what runs modules.
PYTHON = ("contextlib", "functools", "runpy", "threading")
_waits: dict[int, Wait] = {}  # by thread
_stop = threading.Event()
_watch: threading.Thread | None = None
_limit = float("inf")  # seconds


class Wait:
    """A wait for other ranks: a context around the call that waits. One inside another counts as that one.

    Args:
        operation, group, matrix: what the ledger calls them.

    Attributes:
        absent: gives the ranks of the job that have not come, as far as is known.
    """

    __slots__ = ("absent", "group", "matrix", "operation", "outer", "reported", "since", "thread")

    def __init__(self, operation: str, group: str, matrix: str = "") -> None:
        self.operation, self.group, self.matrix = operation, group, matrix
        self.reported = False
        self.absent: Callable[[], Sequence[int]] = list

    def __enter__(self) -> Wait:
        self.thread = threading.get_ident()
        self.outer = _waits.get(self.thread)
        if self.outer is None:
            self.since = time.monotonic()
            _waits[self.thread] = self
        return self

    def __exit__(self, *_: object) -> None:
        if self.outer is None:
            del _waits[self.thread]

    def __str__(self) -> str:
        matrix = f" of {self.matrix}" if self.matrix else ""
        line = called_at(self.thread)
        return f"{self.operation}{matrix} over {self.group}{f', called at {line}' if line else ''}"

    def overdue(self) -> bool:
        """Tell whether the rank has waited for so long that it says so."""
        return time.monotonic() > self.since + _limit

    def _missing(self) -> str:
        from distgnn.comm.agree import ranges  # which imports MPI

        absent = self.absent()
        return f"; {ranges(absent)} {'have' if len(absent) > 1 else 'has'} not come" if absent else ""


def current() -> Wait | None:
    """Return the wait that this thread is in, if any."""
    return _waits.get(threading.get_ident())


def start() -> None:
    """Start the watch of this process, if it does not run."""
    global _watch, _limit
    if _watch is None:
        _limit = launch.stall_limit()
        _watch = threading.Thread(target=_look, name="distgnn watch", daemon=True)
        with contextlib.suppress(RuntimeError):  # no memory for a thread
            _watch.start()


def stop() -> None:
    """Stop the watch, before MPI ends."""
    _stop.set()
    if _watch is not None and _watch.is_alive():
        _watch.join()


def _look() -> None:
    while not _stop.wait(LOOK):
        for wait in list(_waits.values()):
            waited = time.monotonic() - wait.since
            if waited > _limit + LOOK and not wait.reported:
                wait.reported = True
                launch.say(f"has waited {waited:.0f} s for other ranks in {wait}{wait._missing()}")


def called_at(thread: int) -> str:
    """Return ``FILE line N: TEXT`` of the program's line that called this package.

    Empty where no line outside of the package did, as in the ``distgnn`` command.
    """
    _, line = _call(thread)
    if line is None:
        return ""
    text = linecache.getline(line.f_code.co_filename, line.f_lineno).strip()
    return f"{Path(line.f_code.co_filename).name} line {line.f_lineno}{f': {text}' if text else ''}"


def call_of(thread: int) -> str:
    """Return the name of the function of this package that the program called."""
    function, _ = _call(thread)
    return "" if function is None else function.f_code.co_name


def _call(thread: int) -> tuple[FrameType | None, FrameType | None]:
    """Return the frames of the package's function that the program called, and of the program's line."""
    function: FrameType | None = None
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_HERE):
            function = frame
        elif function is not None and frame.f_globals.get("__name__") not in PYTHON:
            return function, frame
        frame = frame.f_back
    return function, None

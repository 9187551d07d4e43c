"""Stages of long work, and watchers that follow them.

Code that works opens a :func:`stage` and advances it, or goes through its items by :func:`followed`. A
:class:`Watcher` is notified of every step, such as the command line's progress bar on rank 0. A library
without a watcher prints nothing. Under ``mpiexec`` each rank has stages of its own share.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Stage:
    """Work with a name, of which ``done`` units of ``total`` are done.

    Attributes:
        total: the number of units, None if unknown; unit: its name in the plural, as ``edges``, or ``B``.
        began: start by ``time.monotonic``; note: the state of the work, in words for people.
        stopped: an error or an interrupt ended the stage before its work was done.
    """

    def __init__(self, name: str, total: int | None = None, unit: str = "") -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done, self.note, self.began = 0, "", time.monotonic()
        self.stopped = False

    def __call__(self, count: int = 1, note: str = "") -> None:
        """Add ``count`` units to those done, and notify the watchers."""
        self.to(self.done + count, note)

    def to(self, done: int, note: str = "") -> None:
        """Set the number of units done, and notify the watchers."""
        self.done, self.note = done, note
        for watcher in _watchers:
            watcher.advanced(self)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Watcher(Protocol):
    """An observer of all stages of this process. Stages may begin within others."""

    def begun(self, stage: Stage) -> None: ...
    def advanced(self, stage: Stage) -> None: ...
    def ended(self, stage: Stage) -> None: ...


_watchers: list[Watcher] = []


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Notify the watcher of every stage inside the context."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def stage(name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
    """Open a stage for the time of the context."""
    opened = Stage(name, total, unit)
    log.debug("%s begins", name)
    for watcher in _watchers:
        watcher.begun(opened)
    try:
        yield opened
    except BaseException:
        opened.stopped = True
        raise
    finally:
        for watcher in _watchers:
            watcher.ended(opened)
        amount = f"{opened.done} {opened.unit} in " if opened.done else ""
        outcome = "stopped, " if opened.stopped else ""
        level = logging.INFO if opened.seconds >= 0.1 else logging.DEBUG
        log.log(level, "%s: %s%s%.2f s", name, outcome, amount, opened.seconds)


def followed(
    items: Iterable[T],
    name: str,
    total: int | None = None,
    unit: str = "",
    size: Callable[[T], int] | None = None,
) -> Iterator[T]:
    """Yield the items as a stage that ends after the last one; ``size``: units of an item, default 1."""
    with stage(name, total, unit) as advance:
        for item in items:
            yield item
            advance(1 if size is None else size(item))

"""Work that takes long, in stages: what is done, and how much of it.

Who works opens a :func:`stage` and advances it, or goes through its items by :func:`followed`. Who watches is
told, as the command line is on rank 0; where nobody does, as in a library, nothing is said. Under ``mpiexec``
each rank has stages of its own share.
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
    """Work of this name, of which ``done`` units of ``total`` are done.

    Attributes:
        total: None where it is not known; unit: in the plural, as ``edges``, or ``B`` for bytes.
        began: by ``time.monotonic``; note: how it stands, for people.
    """

    def __init__(self, name: str, total: int | None = None, unit: str = "") -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done, self.note, self.began = 0, "", time.monotonic()

    def __call__(self, count: int = 1, note: str = "") -> None:
        """So many more units are done."""
        self.to(self.done + count, note)

    def to(self, done: int, note: str = "") -> None:
        """So many units are done by now."""
        self.done, self.note = done, note
        for watcher in _watchers:
            watcher.advanced(self)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Watcher(Protocol):
    """Is told of all stages of this process. Stages may begin within others."""

    def begun(self, stage: Stage) -> None: ...
    def advanced(self, stage: Stage) -> None: ...
    def ended(self, stage: Stage) -> None: ...


_watchers: list[Watcher] = []


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Inside, the watcher is told."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def stage(name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
    """A stage, for the time of the context."""
    one = Stage(name, total, unit)
    log.debug("%s begins", name)
    for watcher in _watchers:
        watcher.begun(one)
    try:
        yield one
    finally:
        for watcher in _watchers:
            watcher.ended(one)
        amount = f"{one.done} {one.unit} in " if one.done else ""
        level = logging.INFO if one.seconds >= 0.1 else logging.DEBUG
        log.log(level, "%s: %s%.2f s", name, amount, one.seconds)


def followed(
    items: Iterable[T],
    name: str,
    total: int | None = None,
    unit: str = "",
    size: Callable[[T], int] | None = None,
) -> Iterator[T]:
    """The items, as a stage that is over after the last one; ``size``: units of an item, default 1."""
    with stage(name, total, unit) as advance:
        for item in items:
            yield item
            advance(1 if size is None else size(item))

"""Books of a rank: the ledgers and regions that are open, and the memory that is held."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from distgnn.ledger.regions import Region


class BeyondRoom(Exception):
    """More memory was counted than a rank may hold; ``nbytes``: how much."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


@dataclass
class Books:
    """The books of one rank.

    Attributes:
        open: the ledgers that are open; regions: timed regions that are open, the outermost first; pending:
            what adds the seconds of regions that are over, whose marks nobody has read; held: bytes of memory
            by purpose; most: bytes beyond which :func:`held` raises :class:`BeyondRoom`.
    """

    open: list[Any] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    pending: list[Callable[[], None]] = field(default_factory=list)
    held: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    most: float = math.inf


#: One for the whole process, but in :func:`apart`.
_books: ContextVar[Books] = ContextVar("books", default=Books())  # noqa: B039


def books() -> Books:
    """Return the books that this thread keeps."""
    return _books.get()


@contextmanager
def apart(books: Books | None = None) -> Iterator[Books]:
    """Keep books of their own, new or these, for what this thread does inside. Other threads keep theirs."""
    before, books = _books.get(), books or Books()
    _books.set(books)
    try:
        yield books
    finally:
        _books.set(before)


def settle() -> None:
    """Add the seconds of all regions that are over; waits for a device that has not come to their end."""
    books = _books.get()
    pending, books.pending = books.pending, []
    for add in pending:
        add()


def held(purpose: str, nbytes: int) -> None:
    """Note that memory of this purpose was taken, or with a negative number given back."""
    books = _books.get()
    books.held[purpose] += nbytes
    total = sum(books.held.values())
    for ledger in books.open:
        if total > sum(ledger.peak.values()):
            ledger.peak = dict(books.held)
    if total > books.most:
        raise BeyondRoom(total)


def holds(owner: object, purpose: str, nbytes: int) -> None:
    """Note that ``owner`` holds memory of this purpose, as long as it lives."""
    held(purpose, nbytes)
    weakref.finalize(owner, _let_go, _books.get().held, purpose, nbytes).atexit = False


def _let_go(held: dict[str, int], purpose: str, nbytes: int) -> None:
    held[purpose] -= nbytes

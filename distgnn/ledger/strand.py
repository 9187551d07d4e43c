"""Timed regions of work that is done in turns with other work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distgnn.ledger.rank_books import books as current
from distgnn.ledger.regions import HOST, Region


class Strand:
    """A strand of work, which goes on now and then: its regions stay open while others are entered and left.

    The seconds between its turns are not its regions'. Those of its turns are not of the regions around them.
    """

    def __init__(self) -> None:
        self.regions, self.pauses = list[Region](), list[tuple[Region, Region]]()

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Go on with the regions of this strand; others pause."""
        books = current()
        others, pauses = books.regions, _paused(books.regions)
        books.regions = self.regions
        _over(self.pauses)
        try:
            yield
        finally:
            self.regions, self.pauses = books.regions, _paused(books.regions)
            books.regions = others
            _over(pauses)


def _paused(regions: list[Region]) -> list[tuple[Region, Region]]:
    """Begin pauses of open regions, the outermost first; return pairs of a region and its pause.

    The innermost of each clock pauses, which takes its seconds off those around it. One of the host takes
    them off those of devices around it, too.
    """
    pauses: list[tuple[Region, Region]] = []
    for region in reversed(regions):
        if all(region.clock != pause.clock for _, pause in pauses):
            pauses.append((region, Region(region.clock)))
        if region.clock is HOST:
            break
    return pauses


def _over(pauses: list[tuple[Region, Region]]) -> None:
    """End pauses, whose seconds are not the regions'."""
    for region, pause in pauses:
        pause.end()
        region.inside.append(pause)

"""Bulks of minibatches of which the next one is made behind the training of the one before.

A bulk is made in steps, between which messages travel (see ``comm/steps.py``). Those of the next bulk are
spread evenly over the *points* of a training, to which all ranks come, and where all take as many steps: the
order of messages is that of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from distgnn.comm.steps import Steps, abandon
from distgnn.errors import TrainingError
from distgnn.ledger import Strand

T = TypeVar("T")
#: Points of a training at each item: before its features are waited for, before it is trained, and after.
POINTS = 3


class Behind(AbstractContextManager["Behind[T]"], Generic[T]):
    """The items of bulks, one after another. A context, at the end of which nothing is under way.

    Where it is left by an error of one rank, messages under way are abandoned. Where no more items are
    wanted, on all ranks alike, the step of a bulk that has begun is ended.

    Args:
        bulks: each makes a list in steps. An item is asked for after the first point of the one before it,
            the first one before any point.
        ahead: make the next bulk while the items of one are used. Otherwise when they have been.
    """

    def __init__(self, bulks: Iterable[Steps[list[T]]], ahead: bool) -> None:
        self.bulks, self.ahead = (_Making(bulk) for bulk in bulks), ahead
        self.coming: _Making[T] | None = None
        self.steps, self.points, self.point = 0, 1, 0  # of the bulk before; while it is used; come to

    def __iter__(self) -> Iterator[T]:
        """Give the items; each is forgotten then."""
        before = 1  # items in whose place there is one point
        while (bulk := self.coming or next(self.bulks, None)) is not None:
            bulk.go_on()
            items, self.steps, bulk.made = [*reversed(bulk.made)], bulk.taken, []
            self.coming = next(self.bulks, None) if self.ahead else None
            self.points, self.point = POINTS * (len(items) - before) + before, 0
            before = 0
            while items:
                yield items.pop()

    def go_on(self) -> None:
        """Take the steps that are due at this point. Collective."""
        self.point += 1
        if self.coming is not None:
            self.coming.go_on(-(-self.steps * self.point // self.points))

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> None:
        if self.coming is not None:
            self.coming.end(None if isinstance(error, (GeneratorExit, TrainingError)) else error)


class _Making(Generic[T]):
    """A list that is made in steps. Attributes: taken: of its steps; made: the list, in the end."""

    def __init__(self, steps: Steps[list[T]]) -> None:
        self.steps, self.strand = steps, Strand()
        self.taken, self.over, self.made = 0, False, list[T]()

    def go_on(self, most: float = float("inf")) -> None:
        """Take steps, so many in all at most, or all that are left."""
        with self.strand.resumed():
            while not self.over and self.taken < most:
                try:
                    next(self.steps)
                    self.taken += 1
                except StopIteration as end:
                    self.over, self.made = True, end.value

    def end(self, error: BaseException | None) -> None:
        """Receive what is under way, or with an error of this rank abandon it."""
        with self.strand.resumed():
            if error is None:
                self.steps.close()
            else:
                abandon(self.steps, error)

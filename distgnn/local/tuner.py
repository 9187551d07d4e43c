"""Choosing among ways to do the same thing by timing each, in calls that have to be made anyway."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

#: In the pattern of a block of too few products to try ways in: one of a minibatch. It takes the first.
FLEETING = "fleeting"

trials = 0  # of all tuners of this process so far


class Tuner(Generic[T]):
    """Picks the fastest of some ways, which all give the same bits.

    The first calls use the ways in turn. Times are read after the last of them: nothing waits for a GPU
    before.

    Args:
        ways: the expected best first.
        label: for the log.
        mark, seconds: a mark on a clock, and the time between two of them.
        rounds: times that every way is timed, after a call to warm up; the best of them counts.
        gain: another way must take at most this share of the first one's time.
    """

    def __init__(
        self, ways: Sequence[T], label: str, mark: Callable[[], Any], seconds: Callable[[Any, Any], float],
        rounds: int = 3, gain: float = 1.0,
    ) -> None:  # fmt: skip
        self.ways, self.label, self.mark, self.seconds = list(ways), label, mark, seconds
        self.trials, self.gain = (1 + rounds) * len(self.ways), gain
        self.choice: T | None = self.ways[0] if len(self.ways) == 1 else None
        self.marks: list[tuple[Any, Any]] = []

    def run(self, work: Callable[[T], Any]) -> None:
        """Do ``work`` in the chosen way, or in the one whose turn it is."""
        if self.choice is not None:
            work(self.choice)
            return
        global trials
        trials += 1
        start = self.mark()
        work(self.ways[len(self.marks) % len(self.ways)])
        self.marks.append((start, self.mark()))
        if len(self.marks) == self.trials:
            self._choose()

    def _choose(self) -> None:
        count = len(self.ways)
        seconds = [self.seconds(start, end) for start, end in reversed(self.marks[count:])][::-1]
        best = [min(seconds[i::count]) for i in range(count)]
        fastest = best.index(min(best))
        self.choice = self.ways[fastest if best[fastest] <= self.gain * best[0] else 0]
        self.marks = []
        table = ", ".join(f"{way} {time:.3g}" for way, time in zip(self.ways, best, strict=True))
        log.info("%s: takes %s (seconds: %s)", self.label, self.choice, table)

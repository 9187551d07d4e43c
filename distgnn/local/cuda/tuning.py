"""Choosing among ways to do the same thing by trying each in turn, in calls that have to be made anyway."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

ROUNDS = 3  # times that every candidate is timed; the best of them counts


class Tuner(Generic[T]):
    """Picks the fastest of some candidates.

    The first calls use the candidates in turn, between two events on the stream, and read the events only
    when all have
    been recorded: nothing waits until then, nothing is computed twice, and no scratch memory is needed.

    Args:
        candidates: the ways, the expected best first.
        label: for the log.
    """

    def __init__(self, candidates: Sequence[T], label: str) -> None:
        self.candidates, self.label = list(candidates), label
        self.choice: T | None = self.candidates[0] if len(self.candidates) == 1 else None
        self.calls = 0
        self.events: list[tuple[Any, Any]] = []

    def run(self, xp: Any, work: Callable[[T], None]) -> None:
        """Do ``work`` in the chosen way, or in the one whose turn it is."""
        if self.choice is not None:
            work(self.choice)
            return
        candidate = self.candidates[self.calls % len(self.candidates)]
        self.calls += 1
        if self.calls <= len(self.candidates):  # compiles and warms up
            work(candidate)
            return
        start, end = xp.cuda.Event(), xp.cuda.Event()
        start.record()
        work(candidate)
        end.record()
        self.events.append((start, end))
        if len(self.events) == ROUNDS * len(self.candidates):
            self._decide(xp)

    def _decide(self, xp: Any) -> None:
        self.events[-1][1].synchronize()
        milliseconds = [xp.cuda.get_elapsed_time(start, end) for start, end in self.events]
        best = [min(milliseconds[i :: len(self.candidates)]) for i in range(len(self.candidates))]
        self.choice = self.candidates[best.index(min(best))]
        self.events = []
        table = ", ".join(f"{way} {ms:.4g}" for way, ms in zip(self.candidates, best, strict=True))
        log.info("%s: takes %s (milliseconds: %s)", self.label, self.choice, table)

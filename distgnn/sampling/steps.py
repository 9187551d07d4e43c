"""The three steps of Algorithm 1, timed where a ledger asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

from distgnn import ledger

PROBABILITY, DRAW, EXTRACT = "probability", "draw", "extract"

Item = TypeVar("Item")


def step(name: str) -> AbstractContextManager[None]:
    """Time a step."""
    return ledger.timed("sampling", name)


def timed(name: str, items: Iterator[Item]) -> Iterator[Item]:
    """The same items; making each of them is the step, what is done with it is not."""
    end = object()
    while True:
        with step(name):
            item = next(items, end)
        if item is end:
            return
        yield item  # type: ignore[misc]

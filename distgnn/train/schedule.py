"""Which rank trains which minibatch, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Turn(NamedTuple):
    """What all ranks do at once: one minibatch each."""

    numbers: tuple[int | None, ...]  # by rank, that of its minibatch in the epoch
    updates: bool  # whether an update of the weights follows


def turns(minibatches: int, per_update: int, ranks: int) -> list[Turn]:
    """An epoch: its minibatches in groups of `per_update` (the last has what is left), each group dealt out
    to the ranks one by one. Updates do not depend on the number of ranks.
    """
    found = []
    for first in range(0, minibatches, per_update):
        group = range(first, min(first + per_update, minibatches))
        for start in range(0, len(group), ranks):
            dealt = group[start : start + ranks]
            numbers = (*dealt, *[None] * (ranks - len(dealt)))
            found.append(Turn(numbers, start + ranks >= len(group)))
    return found


def bulks(all_turns: list[Turn], size: int) -> Iterator[list[Turn]]:
    """So many turns at a time: what a rank samples in them, it samples together."""
    for first in range(0, len(all_turns), size):
        yield all_turns[first : first + size]

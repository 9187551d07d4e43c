"""The turns of an epoch: the minibatch that each rank trains in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Turn(NamedTuple):
    """A step that all ranks take at once, with one minibatch each."""

    numbers: tuple[int | None, ...]  # by rank, that of its minibatch in the epoch
    updates: bool  # whether an update of the weights follows


def turns(minibatches: int, per_update: int, ranks: int) -> list[Turn]:
    """Deal the minibatches of an epoch out to the ranks, in groups of `per_update`.

    The last group has what is left. Updates do not depend on the number of ranks.
    """
    dealt_out = []
    for first in range(0, minibatches, per_update):
        group = range(first, min(first + per_update, minibatches))
        for start in range(0, len(group), ranks):
            dealt = group[start : start + ranks]
            numbers = (*dealt, *[None] * (ranks - len(dealt)))
            dealt_out.append(Turn(numbers, start + ranks >= len(group)))
    return dealt_out


def after(all_turns: list[Turn], updates: int) -> list[Turn]:
    """Return the turns that follow after so many updates."""
    ends = [number for number, turn in enumerate(all_turns, 1) if turn.updates]
    return all_turns[ends[updates - 1] if updates else 0 :]


def bulks(all_turns: list[Turn], size: int) -> Iterator[list[Turn]]:
    """Yield the turns in bulks of `size`: a rank samples the minibatches of a bulk together."""
    for first in range(0, len(all_turns), size):
        yield all_turns[first : first + size]

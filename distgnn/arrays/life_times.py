"""Places in few buffers for arrays of which it is known when they are in use.

An array may lie where others lay that are over, several narrow ones in the place of a wide one. The largest
come first, each in the smallest gap that is free throughout its life (greedy by size: Pisarchyk and Lee,
Efficient memory management for deep neural net inference, arXiv 2001.03288).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from distgnn.layout import Range

#: Bytes at a multiple of which an array begins within its buffer: a cache line, and what a GPU reads at once.
ALIGNMENT = 256


class Place(NamedTuple):
    """Number of a buffer, and the byte at which an array begins in it."""

    buffer: int
    start: int


@dataclass
class Life:
    """Bytes of an array, and the events between which it is in use."""

    size: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """Tell whether both arrays are in use at some time."""
        return self.first < other.last and other.first < self.last


@dataclass
class Lives:
    """Arrays that are borrowed and given back, as it happens.

    Attributes:
        arrays: in the order in which they were borrowed; events: how many there were.
    """

    arrays: list[Life] = field(default_factory=list)
    events: int = 0

    def begin(self, size: int) -> int:
        """Note that an array was borrowed, and return its number."""
        self.arrays.append(Life(size, self._event(), 1 << 62))
        return len(self.arrays) - 1

    def end(self, number: int) -> None:
        """Note that an array was given back. Others than those that were borrowed are left alone."""
        if 0 <= number < len(self.arrays):
            self.arrays[number].last = self._event()

    def _event(self) -> int:
        self.events += 1
        return self.events


class Plan(NamedTuple):
    """Bytes and places of arrays. ``sizes``: bytes of the buffers, the largest first."""

    sizes: list[int]
    places: list[tuple[int, Place]]


def plan(lives: Sequence[Life]) -> Plan:
    """Place arrays so that those that are in use at the same time are apart.

    Of equal ones first come those that are borrowed first, or those that are in use for longest, whichever
    takes fewer bytes.
    """
    first = sorted(range(len(lives)), key=lambda number: -lives[number].size)
    longest = sorted(first, key=lambda n: (-lives[n].size, lives[n].first - lives[n].last))
    return min(_placed(lives, first), _placed(lives, longest), key=lambda plan: sum(plan.sizes))


def _placed(lives: Sequence[Life], order: Sequence[int]) -> Plan:
    """Place arrays one after another, each in the smallest gap."""
    sizes: list[int] = []
    places: dict[int, Place] = {}
    for number in order:
        life = lives[number]
        taken: list[list[Range]] = [[] for _ in sizes]
        for other, (buffer, start) in places.items():
            if life.meets(lives[other]):
                taken[buffer].append((start, start + lives[other].size))
        gap = smallest_gap(life.size, zip(sizes, taken, strict=True))
        if gap is None:
            gap = Place(len(sizes), 0)
            sizes.append(life.size)
        places[number] = gap
    return Plan(sizes, [(life.size, places[number]) for number, life in enumerate(lives)])


def smallest_gap(size: int, buffers: Iterable[tuple[int, Iterable[Range]]]) -> Place | None:
    """Return the smallest gap for so many bytes in buffers of these sizes, of which ranges are taken."""
    gaps = (
        (length, Place(number, start))
        for number, (whole, taken) in enumerate(buffers)
        for start, length in _gaps(whole, taken)
        if length >= size
    )
    return min(gaps, default=(0, None))[1]


def _gaps(size: int, taken: Iterable[Range]) -> Iterator[tuple[int, int]]:
    """Yield the start and the length of each gap between ranges."""
    end = 0
    for first, last in [*sorted(taken), (size, size)]:
        if first > end:
            yield end, first - end
        end = max(end, -(-last // ALIGNMENT) * ALIGNMENT)

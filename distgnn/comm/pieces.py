"""Rows that travel in pieces, packed or unpacked one at a time, in the few rooms that an exchange has.

Only a host does so. On a device kernels run in the order in which they are queued: what is packed while
messages are driven would wait for the products queued before. There each message has a room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Borrow

Array = Any


def rows_at_a_time(width: int) -> int:
    """Return how many rows of so many numbers a piece has. Both ends of a message cut it so."""
    return max(TUNING.packed_numbers // max(width, 1), 1)


@dataclass(frozen=True)
class Pieces:
    """Rows to be sent that are packed when their turn comes, or to be received that are unpacked then.

    Args:
        shape: rows and columns of all; dtype: in the rooms.
        move: ``move(rows, room)`` packs these rows, a slice, into a room of their shape, or unpacks them.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    move: Callable[[slice, Array], object]

    @property
    def size(self) -> int:
        """Return how many numbers there are."""
        return self.shape[0] * self.shape[1]

    def cuts(self) -> list[slice]:
        """List the rows of each piece."""
        step = rows_at_a_time(self.shape[1])
        return [slice(first, min(first + step, self.shape[0])) for first in range(0, self.shape[0], step)]


@dataclass
class Piece:
    """Rows in a room. ``wire``: what MPI has of them; ``left``: messages that are not complete."""

    pieces: Pieces
    rows: slice
    room: Array
    array: Array
    wire: Array = None
    left: int = 0


def rooms(borrow: Borrow, moved: Sequence[Pieces], in_turn: bool) -> list[Array]:
    """Borrow rooms of one dimension from a workspace: for a few pieces, or for all rows, one by rank."""
    some = [pieces for pieces in moved if pieces.size]
    if not some:
        return []
    if not in_turn:
        ends = [0, *accumulate(pieces.size for pieces in some)]
        whole = borrow((ends[-1],), some[0].dtype)
        return [whole[first:last] for first, last in pairwise(ends)]
    count = min(TUNING.packed_at_a_time, sum(len(pieces.cuts()) for pieces in some))
    numbers = max(min(rows_at_a_time(pieces.shape[1]) * pieces.shape[1], pieces.size) for pieces in some)
    whole = borrow((count * numbers,), some[0].dtype)
    return [whole[room * numbers : (room + 1) * numbers] for room in range(count)]


def parts(wire: Array, width: int) -> Iterator[Array]:
    """Give the pieces of an array of one dimension that has rows of this width."""
    step = rows_at_a_time(width) * max(width, 1)
    for first in range(0, wire.size, step):
        yield wire[first : first + step]

"""Memory that is used again.

A fresh large array costs a page fault every 4 KiB, often as much as the product.

A :class:`Workspace` keeps arrays from epoch to epoch (MG-GCN section 4.2): buffers that are borrowed and
given back, of which an L-layer network of one width has L + 1 out at a time, beside the two panels that a
pipelined product receives into; and rooms: buffers that belong to a name, in the same memory every time.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from distgnn import ledger
from distgnn.arrays import life_times
from distgnn.arrays.backend import Backend
from distgnn.arrays.life_times import Lives, Place, Plan

Array = Any
Take = Callable[[str, tuple[int, ...], Any], Array]
Borrow = Callable[[tuple[int, ...], Any], Array]

_workspaces: weakref.WeakSet[Workspace] = weakref.WeakSet()


def retire_all() -> None:
    """Let no workspace lend memory again that it has lent: messages that nobody waits for may use it."""
    for workspace in list(_workspaces):
        workspace.retire()


#: Times that life times of a pass are shown: one that is never like another would be shown each time.
MOST_SHOWN = 3


@dataclass(eq=False)
class _Buffer:
    """Bytes of which parts are lent. ``lent``: where each ends, by where it begins."""

    memory: Array
    lent: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return int(self.memory.size)

    def has_room(self, first: int, last: int) -> bool:
        apart = (stop <= first or start >= last for start, stop in self.lent.items())
        return last <= self.size and all(apart)


class _Loan(NamedTuple):
    """Array that is lent. ``number``: its own among these lives, where there are any."""

    buffer: _Buffer
    start: int
    lives: Lives | None
    number: int


class Note(NamedTuple):
    """Address of an array that was borrowed, and its bytes; 0 where it was given back."""

    address: int
    size: int


class Workspace:
    """Buffers of one backend. Not shared between threads.

    Args:
        purpose: of what is borrowed, for the ledger.

    Attributes:
        reserved: bytes of all buffers, lent or not; borrowed: of those without a name.
    """

    def __init__(self, backend: Backend, purpose: str = "layers") -> None:
        self.backend, self.purpose = backend, purpose
        self.reserved = self.borrowed = 0
        self._named: dict[str, Array] = {}
        self._held: set[str] = set()
        self._buffers: list[_Buffer] = []
        self._lent: dict[int, _Loan] = {}  # by address
        self._lives: Lives | None = None  # of the pass under way
        self._followed: tuple[Iterator[tuple[int, Place]], list[_Buffer]] | None = None
        self._strayed = False  # from what was shown
        self._plans: dict[Hashable, Plan] = {}
        self._shown = Counter[Hashable]()
        self._notes: list[Note] | None = None
        _workspaces.add(self)

    @contextmanager
    def rooms(self) -> Iterator[Take]:
        """Lend rooms as long as the context lasts: it gives ``take(name, shape, dtype)``.

        ``take`` returns an array of any content, in the same memory every time.

        Raises:
            RuntimeError: from ``take``, where another context holds a room of this name.
        """
        mine: set[str] = set()

        def take(name: str, shape: tuple[int, ...], dtype: Any) -> Array:
            if name in self._held - mine:
                raise RuntimeError(f"the room {name!r} of the workspace is in use")
            mine.add(name)
            self._held.add(name)
            return self._room(name, shape, dtype)

        try:
            yield take
        finally:
            self._held -= mine

    def named(self) -> dict[str, int]:
        """Return the bytes of the rooms, by name."""
        return {name: int(memory.size) for name, memory in self._named.items()}

    def _room(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if name not in self._named or self._named[name].size < size:
            if name in self._named:
                self._count(name, -self._named.pop(name).size)
            self._named[name] = self._make(size, name)
        return self._named[name][:size].view(dtype).reshape(shape)

    @contextmanager
    def repeated(self, key: Hashable) -> Iterator[None]:
        """Place what is borrowed inside by life times, which passes of an equal key share.

        The first pass shows them: each array has memory of its own then, as long as it is borrowed. Later
        passes have as few buffers as these need. One that borrows otherwise shows its own.
        """
        plan = self._plans.pop(key, None)
        if self._lives is not None or self._shown[key] == MOST_SHOWN:  # it is never the same
            yield
            return
        if plan is None:
            self._shown[key] += 1
            self._let_go(self._whole())
        else:
            self._followed = iter(plan.places), self._buffers_of(plan.sizes)
        lives = self._lives = Lives()
        self._strayed = False
        try:
            yield
            if plan is None:
                plan = life_times.plan(lives.arrays)
                self._let_go(self._whole())
            if not self._strayed:
                self._plans[key] = plan
        finally:
            self._lives = self._followed = None

    @contextmanager
    def once(self) -> Iterator[None]:
        """Leave what is borrowed inside out of the life times that a pass shows: later ones lack it."""
        lives, self._lives = self._lives, self._lives if self._followed else None
        try:
            yield
        finally:
            self._lives = lives

    def borrow(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Borrow a C-contiguous array of any content, until it is given back.

        It is the smallest gap in a buffer that is large enough, else a new buffer in place of the largest.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size == 0:
            return self.backend.empty(shape, dtype)
        buffer, start = self._planned(size) or self._found(size)
        buffer.lent[start] = start + size
        array = buffer.memory[start : start + size].view(dtype).reshape(shape)
        number = -1 if self._lives is None else self._lives.begin(size)
        address = self.backend.address(array)
        self._lent[address] = _Loan(buffer, start, self._lives, number)
        self._note(address, size)
        return array

    def _planned(self, size: int) -> tuple[_Buffer, int] | None:
        """Return where the next array of this size lies in a pass like one before, if it is free there."""
        if self._followed is None:
            return None
        places, buffers = self._followed
        for length, (number, start) in places:
            if length == size and buffers[number].has_room(start, start + size):
                return buffers[number], start
        self._strayed, self._followed = True, None
        return None

    def _found(self, size: int) -> tuple[_Buffer, int]:
        """Return a gap in a buffer, or a new one; while life times are shown, none that is larger."""
        showing = self._lives is not None and not self._strayed
        some = [buffer for buffer in self._buffers if not showing or buffer.size == size]
        gap = life_times.smallest_gap(size, ((buffer.size, buffer.lent.items()) for buffer in some))
        if gap is not None:
            return some[gap.buffer], gap.start
        self._let_go(self._whole() if showing else self._whole()[-1:])
        return self._made(size), 0

    def _whole(self) -> list[_Buffer]:
        """List the buffers of which nothing is lent, the smallest first."""
        return sorted((buffer for buffer in self._buffers if not buffer.lent), key=lambda buffer: buffer.size)

    def _buffers_of(self, sizes: Sequence[int]) -> list[_Buffer]:
        """Return free buffers of these sizes or more, new ones in place of all others where some lack."""
        free, chosen = self._whole(), list[_Buffer | None]()
        for size in sizes:
            fit = next((buffer for buffer in free if buffer.size >= size), None)
            chosen.append(fit)
            free = [buffer for buffer in free if buffer is not fit]
        self._let_go(free if None in chosen else [])
        return [buffer or self._made(size) for buffer, size in zip(chosen, sizes, strict=True)]

    def _made(self, size: int) -> _Buffer:
        self._buffers.append(_Buffer(self._make(size, self.purpose)))
        return self._buffers[-1]

    def _let_go(self, buffers: Iterable[_Buffer]) -> None:
        for buffer in buffers:
            self._buffers.remove(buffer)
            self._count(self.purpose, -buffer.size)
            if self._followed is not None and buffer in self._followed[1]:
                self._strayed, self._followed = True, None

    def give_back(self, array: Array) -> None:
        """Take back what :meth:`borrow` lent; anything else is left alone."""
        self._returned(array)

    @contextmanager
    def lend(self, shape: tuple[int, ...], dtype: Any) -> Iterator[Array]:
        """Lend an array of :meth:`borrow` for as long as the context lasts."""
        with self.lending() as borrow:
            yield borrow(shape, dtype)

    @contextmanager
    def lending(self) -> Iterator[Borrow]:
        """Lend arrays as long as the context lasts: it gives ``borrow(shape, dtype)``, as :meth:`borrow`."""
        arrays: list[Array] = []

        def borrow(shape: tuple[int, ...], dtype: Any) -> Array:
            arrays.append(self.borrow(shape, dtype))
            return arrays[-1]

        try:
            yield borrow
        finally:
            for array in arrays:
                self.give_back(array)

    @contextmanager
    def noted(self) -> Iterator[list[Note]]:
        """Give notes of what is borrowed and given back inside, for :meth:`lend_again`."""
        outer, self._notes = self._notes, []
        try:
            yield self._notes
        finally:
            self._notes = outer

    def lend_again(self, notes: Iterable[Note]) -> None:
        """Borrow and give back as before: arrays of the same bytes, in the same order."""
        again: dict[int, Array] = {}
        for address, size in notes:
            if size:
                again[address] = self.borrow((size,), np.uint8)
            elif address in again:
                self.give_back(again.pop(address))

    def _note(self, address: int, size: int) -> None:
        if self._notes is not None:
            self._notes.append(Note(address, size))

    def forget(self, array: Array) -> None:
        """Forget a borrowed array that won't be given back, with all of its buffer."""
        for loan in self._returned(array):
            self._let_go([loan.buffer] if loan.buffer in self._buffers else [])

    def clear(self) -> None:
        """Let go of all memory that is not lent."""
        for name in list(self._named):
            self._count(name, -self._named.pop(name).size)
        self._let_go(self._whole())

    def retire(self) -> None:
        """Let go of all memory, lent or not: none of it is lent again.

        Copies of a device end first, as memory that is let go may be allocated again.
        """
        self.backend.finish()
        self.clear()
        self._lent.clear()
        self._let_go([*self._buffers])

    def _returned(self, array: Array) -> list[_Loan]:
        """End the loan of this array, and return it, if there is any."""
        address = self.backend.address(array) if array.size else None
        if address not in self._lent:
            return []
        loan = self._lent.pop(address)
        self._note(address, 0)
        del loan.buffer.lent[loan.start]
        if loan.lives is not None:
            loan.lives.end(loan.number)
        return [loan]

    def _make(self, size: int, purpose: str) -> Array:
        self._count(purpose, size)
        return self.backend.room(size)

    def _count(self, purpose: str, size: int) -> None:
        self.reserved += size
        self.borrowed += size if purpose == self.purpose else 0
        ledger.held(purpose, size)

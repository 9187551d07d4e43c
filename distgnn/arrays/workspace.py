"""Memory that is used again.

A fresh large array costs a page fault every 4 KiB, often as much as the product.

A :class:`Workspace` keeps arrays from epoch to epoch (MG-GCN section 4.2): buffers that are borrowed and
given back, of which an L-layer network has L + 1 out at a time, and rooms: buffers that belong to a name,
such as the two panels that a pipelined product receives into.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays.backend import Backend

Array = Any
Take = Callable[[str, tuple[int, ...], Any], Array]

_workspaces: weakref.WeakSet[Workspace] = weakref.WeakSet()


def retire_all() -> None:
    """Let no workspace lend memory again that it has lent: messages that nobody waits for may use it."""
    for workspace in list(_workspaces):
        workspace.retire()


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
        self._free: list[Array] = []  # the smallest first
        self._lent: dict[int, Array] = {}
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

    def _room(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if name not in self._named or self._named[name].size < size:
            if name in self._named:
                self._count(name, -self._named.pop(name).size)
            self._named[name] = self._make(size, name)
        return self._named[name][:size].view(dtype).reshape(shape)

    def borrow(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Borrow a C-contiguous array of any content, until it is given back.

        It is the smallest free buffer that is large enough, else a new one in place of the largest.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size == 0:
            return self.backend.empty(shape, dtype)
        index = bisect_left(self._free, size, key=len)
        if index < len(self._free):
            chosen = self._free.pop(index)
        else:
            if self._free:
                self._count(self.purpose, -self._free.pop().size)
            chosen = self._make(size, self.purpose)
        self._lent[self.backend.address(chosen)] = chosen
        return chosen[:size].view(dtype).reshape(shape)

    def give_back(self, array: Array) -> None:
        """Take back what :meth:`borrow` lent; anything else is left alone."""
        for buffer in self._returned(array):
            insort(self._free, buffer, key=len)

    @contextmanager
    def lend(self, shape: tuple[int, ...], dtype: Any) -> Iterator[Array]:
        """Lend an array of :meth:`borrow` for as long as the context lasts."""
        array = self.borrow(shape, dtype)
        try:
            yield array
        finally:
            self.give_back(array)

    def forget(self, array: Array) -> None:
        """Forget a borrowed array that won't be given back."""
        for buffer in self._returned(array):
            self._count(self.purpose, -buffer.size)

    def clear(self) -> None:
        """Let go of all memory that is not lent."""
        for name in list(self._named):
            self._count(name, -self._named.pop(name).size)
        while self._free:
            self._count(self.purpose, -self._free.pop().size)

    def retire(self) -> None:
        """Let go of all memory, lent or not: none of it is lent again.

        Copies of a device end first, as memory that is let go may be allocated again.
        """
        self.backend.finish()
        self.clear()
        while self._lent:
            self._count(self.purpose, -self._lent.popitem()[1].size)

    def _returned(self, array: Array) -> list[Array]:
        """Return the buffer that this array was lent from, if any."""
        address = self.backend.address(array) if array.size else None
        return [self._lent.pop(address)] if address in self._lent else []

    def _make(self, size: int, purpose: str) -> Array:
        self._count(purpose, size)
        return self.backend.empty((size,), np.uint8)

    def _count(self, purpose: str, size: int) -> None:
        self.reserved += size
        self.borrowed += size if purpose == self.purpose else 0
        ledger.held(purpose, size)

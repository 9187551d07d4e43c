"""Sums over a group of ranks of what a product makes, begun for its first rows while the next are multiplied.

Plexus section 5.2 ("blocked aggregation") cuts the product into row blocks and all-reduces each when it is
there; here the sum of a block travels while the host multiplies the next one. Every sum is a reduce-scatter
and an all-gather by messages straight from rank to rank, the words of the bandwidth-optimal form. A number is
added up in the order of the ranks wherever it stands, so that results depend neither on the blocks nor on the
MPI, and are bitwise equal on all ranks. Small products are MPI's to sum. On a GPU, whose one stream runs a
sum after the products queued before, little is hidden yet.

What becomes of two ranks' chunk of two numbers each:

    rank 0     a0 a1        a0+b0 a1           a0+b0 a1+b1
    rank 1     b0 b1        b0    a1+b1        a0+b0 a1+b1
             reduce-scatter          all-gather
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from distgnn import ledger, progress
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.layout import partition

Array = Any


_TAGS = 32768  # MPI promises as many


class Sums:
    """All-reduces of arrays that are handed over one after another, the same on all ranks of the group; a
    context, at the end of which all are complete. With the grid's ``overlap`` they go on while the caller
    computes, else each is complete on return.
    """

    def __init__(self, grid: Grid, group: Comm) -> None:
        self.grid, self.group = grid, group
        # chunks, tags, and whether the numbers are there
        self.waiting: deque[tuple[Array, int, Callable[[], bool]]] = deque()
        self.active: list[_Chunk] = []
        self.free = list(range(TUNING.sums_under_way))  # rooms for what is received

    def __enter__(self) -> Sums:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        progress.unregister(self._drive)
        if kind is None:
            self._finish()
        else:
            for chunk in self.active:
                chunk.abandon()
            _abandoned.append(self)  # MPI may still use the memory

    def start(self, array: Array) -> None:
        """Begin to sum a C-contiguous array in place; it is the sum when the context ends."""
        self.group.charge_allreduce(array)
        if self.group.size == 1 or not array.size:
            return
        flat = array.reshape(-1)
        step = min(max(TUNING.sum_chunk // flat.itemsize, 1), self.group.count_limit)
        # before the mark: nothing queued after it may use memory that is free now
        for room in range(TUNING.sums_under_way):
            self._room(min(step, flat.size), flat.dtype, room)
        there = self.grid.backend.mark()
        for first in range(0, flat.size, step):
            self.waiting.append((flat[first : first + step], self.group.reserve_tags(1) % _TAGS, there))
        if self.grid.overlap:
            progress.unregister(self._drive)
            progress.register(self._drive)
            self._drive()
        else:
            self._finish()

    def _finish(self) -> None:
        if not (self.waiting or self.active):
            return
        with ledger.timed("comm", "allreduce", self.group.name):
            progress.wait(lambda: not (self.waiting or self.active), self._advance)

    def _drive(self) -> None:
        with ledger.timed("comm", "allreduce", self.group.name):
            self._advance()

    def _advance(self) -> bool:
        """Take every chunk as far as it goes, and begin others. Has anything been completed?"""
        before = len(self.waiting), sum(chunk.steps_left for chunk in self.active)
        for chunk in self.active:
            chunk.advance()
        self._retire()
        while self.waiting and self.free and self.waiting[0][2]():
            flat, tag, _ = self.waiting.popleft()
            room = self.free.pop(0)
            self.active.append(_Chunk(self.group, flat, room, self._room(flat.size, flat.dtype, room), tag))
            self._retire()
        return (len(self.waiting), sum(chunk.steps_left for chunk in self.active)) != before

    def _retire(self) -> None:
        """Chunks that are complete give their rooms to others."""
        self.free += [chunk.room for chunk in self.active if not chunk.steps_left]
        self.active = [chunk for chunk in self.active if chunk.steps_left]

    def _room(self, size: int, dtype: Any, room: int) -> Array:
        """Memory for what the others have of this rank's part of a chunk, where MPI receives and sums are
        made.
        """
        shape = (self.group.size - 1, -(-size // self.group.size))
        if self.group.direct:
            return self.grid.workspace.take(f"sum {room}", shape, dtype)
        return self.grid.backend.pinned(shape, dtype)


_abandoned: list[Sums] = []


class _Chunk:
    """The all-reduce of one chunk, in three steps: exchange everybody's numbers of each part, add up,
    exchange the sums.

    Attributes:
        room: which of the rooms it uses; steps_left: until it is complete.
    """

    def __init__(self, group: Comm, flat: Array, room: int, received: Array, tag: int) -> None:
        self.group, self.flat, self.room, self.tag = group, flat, room, tag
        self.begun = time.perf_counter()
        self.wire = group.wire(flat, send=True)
        bounds = partition(flat.size, group.size)
        self.parts = [self.wire[first:last] for first, last in zip(bounds, bounds[1:], strict=False)]
        self.others = [(group.rank + shift) % group.size for shift in range(1, group.size)]
        self.own = self.parts[group.rank]
        self.given = dict(zip(self.others, received[:, : self.own.size], strict=True)) | {
            group.rank: self.own
        }
        self.receives: list[MPI.Request] = []
        self.steps = self._run()
        self.steps_left = 3
        self.advance()

    def advance(self) -> None:
        """As far as it goes."""
        self.steps_left = next(self.steps, 0)

    def abandon(self) -> None:
        """Let go of what has not come."""
        for request in self.receives:
            if request != MPI.REQUEST_NULL:
                request.Cancel()

    def _run(self) -> Iterator[int]:
        """Yields how many steps are left, whenever something has to be waited for."""
        requests = self._exchange(lambda rank: self.given[rank], lambda rank: self.parts[rank])
        while not MPI.Request.Testall(requests):
            yield 3
        self._add()
        summed = self.group.backend.mark()
        while not summed():
            yield 2
        requests = self._exchange(lambda rank: self.parts[rank], lambda rank: self.own)
        while not MPI.Request.Testall(requests):
            yield 1
        self.group.unwire(self.wire, self.flat)
        ledger.flight(
            "allreduce",
            self.group.name,
            self.begun,
            time.perf_counter(),
            2 * (self.flat.nbytes - self.own.nbytes),
        )

    def _exchange(self, into: Callable[[int], Array], what: Callable[[int], Array]) -> list[MPI.Request]:
        self.receives = [self.group.start_receive(into(rank), rank, self.tag) for rank in self.others]
        return self.receives + [self.group.start_send(what(rank), rank, self.tag) for rank in self.others]

    def _add(self) -> None:
        """Everybody's numbers in the order of the ranks, into the own part."""
        total, last = self.given[0], self.group.size - 1
        for rank in range(1, self.group.size):
            into = self.own if rank == last or self.group.rank == 0 else total
            np.add(total, self.given[rank], out=into)
            total = into

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
    """All-reduces, and reduces to one rank, of arrays that are handed over one after another, the same on all
    ranks of the group; a context, at the end of which all are complete. With the grid's ``overlap`` they go on
    while the caller computes, else each is complete on return.
    """

    def __init__(self, grid: Grid, group: Comm) -> None:
        self.grid, self.group = grid, group
        self.streams: dict[int | None, _Stream] = {}  # by root: the sums of different roots pass each other
        self.operation = "allreduce"

    def __enter__(self) -> Sums:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        progress.unregister(self._drive)
        if kind is None:
            self._finish()
        else:
            for stream in self.streams.values():
                for chunk in stream.active:
                    chunk.abandon()
            _abandoned.append(self)  # MPI may still use the memory

    def start(self, array: Array, root: int | None = None) -> None:
        """Begin to sum a C-contiguous array in place; it is the sum when the context ends. With ``root`` it
        is the sum on that rank only; on the others it must stay as it is until then.

        Cost: an all-reduce's words, or with ``root`` as many as the array has, sent by every other rank.
        """
        group = self.group
        if root is None:
            group.charge_allreduce(array)
        else:
            self.operation = "reduce"
            group.charge_reduce(array, root)
        if group.size == 1 or not array.size:
            return
        flat = array.reshape(-1)
        step = min(max(TUNING.sum_chunk // flat.itemsize, 1), group.count_limit)
        if root is not None:  # so that what the root receives fits the rooms of an all-reduce
            step = -(-step // group.size)
        stream = self.streams.setdefault(root, _Stream())
        # before the mark: nothing queued after it may use memory that is free now
        if root in (None, group.rank):
            for room in range(TUNING.sums_under_way):
                self._room(min(step, flat.size), flat.dtype, root, room)
        there = self.grid.backend.mark()
        for first in range(0, flat.size, step):
            stream.waiting.append((flat[first : first + step], group.reserve_tags(1) % _TAGS, there))
        if self.grid.overlap:
            progress.unregister(self._drive)
            progress.register(self._drive)
            self._drive()
        else:
            self._finish()

    def finish(self, root: int) -> None:
        """Until all that was started with this root is complete; its arrays may then be used again."""
        stream = self.streams.get(root)
        if stream is not None and (stream.waiting or stream.active):
            with ledger.timed("comm", self.operation, self.group.name):
                progress.wait(lambda: not (stream.waiting or stream.active), self._advance)

    def _under_way(self) -> bool:
        return any(stream.waiting or stream.active for stream in self.streams.values())

    def _finish(self) -> None:
        if not self._under_way():
            return
        with ledger.timed("comm", self.operation, self.group.name):
            progress.wait(lambda: not self._under_way(), self._advance)

    def _drive(self) -> None:
        with ledger.timed("comm", self.operation, self.group.name):
            self._advance()

    def _advance(self) -> bool:
        """Take every chunk as far as it goes, and begin others. Has anything been completed?"""
        before = [stream.steps_left() for stream in self.streams.values()]
        for root, stream in self.streams.items():
            for chunk in stream.active:
                chunk.advance()
            stream.retire()
            while stream.waiting and stream.free and stream.waiting[0][2]():
                flat, tag, _ = stream.waiting.popleft()
                room = stream.free.pop(0)
                received = (
                    self._room(flat.size, flat.dtype, root, room) if root in (None, self.group.rank) else None
                )
                stream.active.append(_Chunk(self.group, flat, room, received, tag, root))
                stream.retire()
        return [stream.steps_left() for stream in self.streams.values()] != before

    def _room(self, size: int, dtype: Any, root: int | None, room: int) -> Array:
        """Memory for what the others have of this rank's part of a chunk, where MPI receives and sums are
        made.
        """
        name, rows = ("sum", -(-size // self.group.size)) if root is None else ("sum at root", size)
        shape = (self.group.size - 1, rows)
        if self.group.direct:
            return self.grid.workspace.take(f"{name} {room}", shape, dtype)
        return self.grid.backend.pinned(shape, dtype)


class _Stream:
    """The sums with one root: each begins after those before it, a few at a time."""

    def __init__(self) -> None:
        # chunks, tags, and whether the numbers are there
        self.waiting: deque[tuple[Array, int, Callable[[], bool]]] = deque()
        self.active: list[_Chunk] = []
        self.free = list(range(TUNING.sums_under_way))  # rooms for what is received

    def retire(self) -> None:
        """Chunks that are complete give their rooms to others."""
        self.free += [chunk.room for chunk in self.active if not chunk.steps_left]
        self.active = [chunk for chunk in self.active if chunk.steps_left]

    def steps_left(self) -> tuple[int, int]:
        """Goes down with everything that is completed."""
        return len(self.waiting), sum(chunk.steps_left for chunk in self.active)


_abandoned: list[Sums] = []


class _Chunk:
    """The sum of one chunk. An all-reduce exchanges everybody's numbers of each part, adds up, and exchanges
    the sums; a reduce sends everybody's numbers to the root, which adds them up.

    Attributes:
        room: which of the rooms it uses; steps_left: until it is complete.
    """

    def __init__(
        self, group: Comm, flat: Array, room: int, received: Array | None, tag: int, root: int | None
    ) -> None:
        self.group, self.flat, self.room, self.tag, self.root = group, flat, room, tag, root
        self.begun = time.perf_counter()
        self.wire = group.wire(flat, send=True)
        bounds = partition(flat.size, group.size)
        self.parts = [self.wire[first:last] for first, last in zip(bounds, bounds[1:], strict=False)]
        self.others = [(group.rank + shift) % group.size for shift in range(1, group.size)]
        self.own = self.parts[group.rank] if root is None else self.wire
        self.given: dict[int, Array] = {group.rank: self.own}
        if received is not None:
            self.given |= zip(self.others, received[:, : self.own.size], strict=True)
        self.receives: list[MPI.Request] = []
        self.steps = self._allreduce() if root is None else self._reduce(root)
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

    def _allreduce(self) -> Iterator[int]:
        """Yields how many steps are left, whenever something has to be waited for."""
        requests = self._receive(self.given, self.others) + self._send(self.parts, self.others)
        while not MPI.Request.Testall(requests):
            yield 3
        self._add()
        summed = self.group.backend.mark()
        while not summed():
            yield 2
        requests = self._receive(self.parts, self.others) + [
            self.group.start_send(self.own, rank, self.tag) for rank in self.others
        ]
        while not MPI.Request.Testall(requests):
            yield 1
        self._complete("allreduce", 2 * (self.flat.nbytes - self.own.nbytes))

    def _reduce(self, root: int) -> Iterator[int]:
        if self.group.rank != root:
            request = self.group.start_send(self.wire, root, self.tag)
            while not request.Test():
                yield 2
            ledger.flight("reduce", self.group.name, self.begun, time.perf_counter(), self.wire.nbytes)
            return
        requests = self._receive(self.given, self.others)
        while not MPI.Request.Testall(requests):
            yield 2
        self._add()
        summed = self.group.backend.mark()
        while not summed():
            yield 1
        self._complete("reduce", 0)

    def _receive(self, into: Any, ranks: list[int]) -> list[MPI.Request]:
        self.receives = [self.group.start_receive(into[rank], rank, self.tag) for rank in ranks]
        return list(self.receives)

    def _send(self, what: Any, ranks: list[int]) -> list[MPI.Request]:
        return [self.group.start_send(what[rank], rank, self.tag) for rank in ranks]

    def _complete(self, operation: str, nbytes: int) -> None:
        self.group.unwire(self.wire, self.flat)
        ledger.flight(operation, self.group.name, self.begun, time.perf_counter(), nbytes)

    def _add(self) -> None:
        """Everybody's numbers in the order of the ranks, into the own part."""
        total, last = self.given[0], self.group.size - 1
        for rank in range(1, self.group.size):
            into = self.own if rank == last or self.group.rank == 0 else total
            np.add(total, self.given[rank], out=into)
            total = into

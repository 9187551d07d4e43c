"""Sums over a group of ranks, which travel while the caller computes (see ``operators/summed.py``).

A sum is a reduce-scatter and an all-gather by messages straight from rank to rank, or a message from every
other rank to the root. A number is added up in the order of the ranks wherever it stands, so that results
depend neither on the blocks nor on the MPI, and are bitwise equal on all ranks. On a GPU, sums run beside the
products queued before and after.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from distgnn import ledger, progress
from distgnn.arrays.backend import DONE, Mark
from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Take
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.staging import staging
from distgnn.layout import partition

Array = Any

#: The shape of a step that goes straight from rank to rank, unlike a sum of MPI's.
STRAIGHT = (1,)


class Sums(AbstractContextManager["Sums"]):
    """All-reduces, and reduces to one rank, of arrays handed over one after another, the same on all ranks of
    the group; a context, at the end of which all are complete. With the grid's ``overlap`` they go on while
    the caller computes, else each is complete on return.
    """

    def __init__(self, grid: Grid, group: Comm) -> None:
        self.grid, self.group = grid, group
        self.series: dict[int | None, _Series | _Queue] = {}  # by root: sums of different roots pass others
        self._rooms = ExitStack()

    def __enter__(self) -> Sums:
        self._take = self._rooms.enter_context(self.grid.workspace.rooms())
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        failed = True
        try:
            if kind is None:
                for series in self.series.values():
                    series.finish()
                failed = False
            else:
                self.group.fail()  # other ranks may have begun sums that this rank has not
        finally:
            for series in self.series.values():
                series.flight.close(failed)
            self._rooms.close()

    def start(self, array: Array, root: int | None = None) -> None:
        """Begin to sum a C-contiguous array in place; it is the sum when the context ends. With ``root`` it
        is the sum on that rank only; on the others it must stay as it is until then.

        Cost: an all-reduce's words, or with ``root`` as many as the array has, sent by every other rank.
        """
        if root is None:
            self.group.charge_share("allreduce", "sums", array, STRAIGHT)
        else:
            self.group.charge_whole("reduce", "sums", array, root, shape=STRAIGHT)
        if self.group.size == 1 or not array.size:
            return
        if root not in self.series:
            kind = _Queue if self.group.by_nccl(array) else _Series
            self.series[root] = kind(self.grid, self.group, root, self._take)
        self.series[root].start(array.reshape(-1))

    def finish(self, root: int | None) -> None:
        """Until all that was started with this root is complete; its arrays may then be used again."""
        if root in self.series:
            self.series[root].finish()


class _Queue:
    """The sums with one root that NCCL makes: queued, and over when the stream that computes says so."""

    def __init__(self, grid: Grid, group: Comm, root: int | None, take: Take) -> None:
        self.grid, self.group, self.root = grid, group, root
        self.operation = "allreduce" if root is None else "reduce"
        self.flight = group.flight(self.operation, "sums")
        self.summed: Mark = DONE

    def start(self, flat: Array) -> None:
        group, nccl = self.group, self.group.nccl
        assert nccl is not None
        share = flat.nbytes * (group.size - 1) // group.size
        nbytes = 2 * share if self.root is None else flat.nbytes * (self.root != group.rank)
        begun = time.perf_counter()
        self.summed = nccl.allreduce(flat) if self.root is None else nccl.reduce(flat, self.root)
        self.flight.after(self.summed, partial(self.flight.landed, begun, nbytes))
        if self.grid.overlap:
            progress.register(self.flight.drive)
        else:
            self.finish()

    def finish(self) -> None:
        on, group = self.grid.backend, self.group
        with ledger.timed("comm", self.operation, group.name, "sums", synchronize=on.synchronize):
            on.follow(self.summed)
        self.flight.drive()
        self.flight.waited()


class _Series:
    """The sums with one root: each chunk begins after those before it, a few are under way."""

    def __init__(self, grid: Grid, group: Comm, root: int | None, take: Take) -> None:
        self.grid, self.group, self.root, self.take = grid, group, root, take
        operation = "allreduce" if root is None else "reduce"
        self.flight = group.flight(operation, "sums", self._advance)
        self.waiting: deque[tuple[Array, int, Mark]] = deque()  # chunks, tags, when the numbers are there
        self.copied: Mark = DONE  # of the last copy of a sum to where it belongs
        self.active: list[tuple[int, Iterator[None]]] = []  # rooms, and the steps of the sums
        self.free = list(range(TUNING.sums_under_way))  # rooms for what is received

    def start(self, flat: Array) -> None:
        step = min(max(TUNING.sum_chunk // flat.itemsize, 1), self.group.count_limit)
        if self.root is not None:  # so that what the root receives fits the rooms of an all-reduce
            step = -(-step // self.group.size)
        for room in range(TUNING.sums_under_way if self.group.direct else 0):
            self._room(min(step, flat.size), flat.dtype, room)  # free now: nothing queued later may use it
        if not self.group.moves:
            return
        there = self.grid.backend.mark()
        for first in range(0, flat.size, step):
            self.waiting.append((flat[first : first + step], self.group.reserve_tags(1), there))
        if self.grid.overlap:
            progress.register(self.flight.drive)
            self.flight.drive()
        else:
            self.finish()

    def finish(self) -> None:
        self.flight.until(lambda: not (self.waiting or self.active))
        self.flight.waited()
        self.grid.backend.follow(self.copied)

    def _advance(self) -> None:
        """Take every chunk as far as it goes, and begin others."""
        self.active = [chunk for chunk in self.active if self._under_way(*chunk)]
        while self.waiting and self.free and self.waiting[0][2]():
            flat, tag, _ = self.waiting.popleft()
            room = self.free.pop(0)
            steps = self._sum(flat, self._room(flat.size, flat.dtype, room), tag)
            if self._under_way(room, steps):
                self.active.append((room, steps))

    def _under_way(self, room: int, steps: Iterator[None]) -> bool:
        """Is it, after another step? A chunk that is complete gives its room to others."""
        if next(steps, self) is None:
            return True
        self.free.append(room)
        return False

    def _sum(self, flat: Array, room: Array, tag: int) -> Iterator[None]:
        group, flight, begun = self.group, self.flight, time.perf_counter()
        wire = group.wire(flat)
        filled = group.fill(wire, flat, DONE)
        while not filled():
            yield
        if self.root is None:
            bounds = partition(flat.size, group.size)
            parts = {rank: wire[bounds[rank] : bounds[rank + 1]] for rank in range(group.size)}
            sum_up, nbytes = group.add_and_share, 2 * (flat.nbytes - parts[group.rank].nbytes)
        else:
            parts, sum_up = {self.root: wire}, group.add
            nbytes = flat.nbytes if self.root != group.rank else 0
        own = parts[group.rank].size if len(room) else 0
        received = dict(zip(group.others(), room[:, :own], strict=True)) if len(room) else {}
        yield from sum_up(flight, parts, received, tag)
        if received:
            self.copied = group.unwire(wire, flat, DONE)
            group.release(room)
        group.release(wire, self.copied)
        flight.landed(begun, nbytes)

    def _room(self, size: int, dtype: Any, room: int) -> Array:
        """Memory for what the others have of this rank's part of a chunk; sums are made there."""
        name, width = ("sum", -(-size // self.group.size)) if self.root is None else ("sum at root", size)
        shape = (self.group.size - 1 if self.root in (None, self.group.rank) else 0, width)
        if self.group.direct:
            return self.take(f"{name} {room}", shape, dtype)
        return staging(self.grid.backend).borrow(shape, dtype)

"""Sums over a group of ranks, which travel while the caller computes (see ``operators/summed.py``).

A sum is a reduce-scatter and an all-gather by messages straight from rank to rank, or a message from every
other rank to the root. A number is added up in the order of the ranks wherever it stands, so that results
depend neither on the blocks nor on the MPI, and are bitwise equal on all ranks. On a GPU, sums run beside the
products queued before and after.

Where products travel in 16 bits, each rank's numbers are rounded, added up in float32, and an all-reduce
rounds the sums, all of them on all ranks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from distgnn import progress
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import DONE, Mark
from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Take, Workspace
from distgnn.comm.flight import Flight
from distgnn.comm.staging import staging
from distgnn.comm.wires import Wires
from distgnn.layout import Range, partition

Array = Any

#: The shape of a step that goes straight from rank to rank, unlike a sum of MPI's.
STRAIGHT = (1,)


class Sums(AbstractContextManager["Sums"]):
    """All-reduces, and reduces to one rank, of arrays handed over one after another.

    The order is the same on all ranks of the group. A context, at the end of which all sums are complete.

    Args:
        group: the ranks; workspace: lends memory for what they send.
        overlap: sums go on while the caller computes, else each is complete on return.
    """

    def __init__(self, group: Wires, workspace: Workspace, overlap: bool = True) -> None:
        self.group, self.workspace, self.overlap = group, workspace, overlap
        self.series: dict[int | None, Series] = {}  # by root: sums of different roots pass others
        self._rooms = ExitStack()

    def __enter__(self) -> Sums:
        self._take = self._rooms.enter_context(self.workspace.rooms())
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
        """Begin to sum a C-contiguous array in place; it is the sum when the context ends.

        With ``root`` it is the sum on that rank only; on the others it must stay as it is until then.

        Cost: an all-reduce's words, or with ``root`` as many as the array has, sent by every other rank.
        """
        group = self.group
        if root is None:
            size = group.wire_type(array).itemsize
            group.charge.share("allreduce", "sums", array, STRAIGHT, by_tiers=True, itemsize=size)
        else:
            nbytes = group.wire_bytes(array)
            group.charge.whole("reduce", "sums", array, root, shape=STRAIGHT, nbytes=nbytes)
        if group.narrows(array):
            group.charge.converted(2 * array.size)
        if group.size == 1 or not array.size:
            return
        if root not in self.series:
            self.series[root] = self._series(array, root)
        self.series[root].start(array.reshape(-1))

    def in_turn(self, blocks: Sequence[Range]) -> Iterator[Range]:
        """Give the row blocks of an array, for the caller to compute and :meth:`start` one after another."""
        yield from blocks

    def finish(self, root: int | None) -> None:
        """Wait until all that was started with this root is complete; its arrays may then be used again."""
        if root in self.series:
            self.series[root].finish()

    def _series(self, array: Array, root: int | None) -> Series:
        """Make the sums with this root."""
        return Series(self.group, root, self.overlap, self._take)


class Series:
    """The sums with one root: each chunk begins after those before it, a few are under way."""

    def __init__(self, group: Wires, root: int | None, overlap: bool, take: Take) -> None:
        self.group, self.root, self.overlap, self.take = group, root, overlap, take
        operation = "allreduce" if root is None else "reduce"
        self.flight = group.flight(operation, "sums", self._advance)
        self.waiting: deque[tuple[Array, int, Mark]] = deque()  # chunks, tags, when the numbers are there
        self.copied: Mark = DONE  # of the last copy of a sum to where it belongs
        self.active: list[tuple[int, Iterator[None]]] = []  # rooms, and the steps of the sums
        self.free = list(range(TUNING.sums_under_way))  # rooms for what is received

    def start(self, flat: Array) -> None:
        """Begin to sum an array of one dimension."""
        chunk = max(TUNING.sum_chunk, TUNING.sum_chunk_on_device * self.group.backend.on_device)
        step = min(max(chunk // flat.itemsize, 1), self.group.count_limit)
        if self.root is not None:  # so that what the root receives fits the rooms of an all-reduce
            step = -(-step // self.group.size)
        for room in range(TUNING.sums_under_way if self.group.direct else 0):
            self._room(min(step, flat.size), flat, room)  # free now: nothing queued later may use it
        self._begin(flat, step)

    def _begin(self, flat: Array, step: int) -> None:
        """Begin to sum an array in chunks of ``step`` numbers."""
        there = self.group.backend.mark()
        for first in range(0, flat.size, step):
            self.waiting.append((flat[first : first + step], self.group.reserve_tags(1), there))
        if self.overlap:
            progress.register(self.flight.drive)
            self.flight.drive()
        else:
            self.finish()

    def finish(self) -> None:
        """Wait until all sums are complete."""
        self.flight.until(lambda: not (self.waiting or self.active))
        self.flight.waited()
        self.group.backend.follow(self.copied)

    def _advance(self) -> None:
        """Take every chunk as far as it goes, and begin others."""
        self.active = [chunk for chunk in self.active if self._under_way(*chunk)]
        while self.waiting and self.free and self.waiting[0][2]():
            flat, tag, _ = self.waiting.popleft()
            room = self.free.pop(0)
            steps = self._sum(flat, self._room(flat.size, flat, room), tag)
            if self._under_way(room, steps):
                self.active.append((room, steps))

    def _under_way(self, room: int, steps: Iterator[None]) -> bool:
        """Take another step.

        Return whether the chunk is still under way; a complete one gives its room to others.
        """
        if next(steps, self) is None:
            return True
        self.free.append(room)
        return False

    def _sum(self, flat: Array, room: Array, tag: int) -> Iterator[None]:
        group, flight, begun = self.group, self.flight, time.perf_counter()
        wire = group.wire(flat, narrow=True)
        filled = group.fill(wire, flat, DONE)
        while not filled():
            yield
        if self.root is None:
            bounds = partition(flat.size, group.size).tolist()
            parts = {rank: wire[bounds[rank] : bounds[rank + 1]] for rank in range(group.size)}
            sum_up, nbytes = add_and_share, 2 * (wire.nbytes - parts[group.rank].nbytes)
        else:
            parts, sum_up = {self.root: wire}, add_together
            nbytes = wire.nbytes if self.root != group.rank else 0
        total = self._total(flat, room.shape[1]) if len(room) and wire.dtype != flat.dtype else None
        yield from sum_up(group, flight, parts, room, tag, total)
        if len(room):
            self._end(flat, wire, total)
            if not group.direct:
                staging(group.backend).give_back(room)
        group.release(wire, self.copied)
        flight.landed(begun, nbytes)

    def _total(self, flat: Array, width: int) -> Array:
        """Return memory for sums of numbers that come in 16 bits: the array's own, where MPI has that."""
        if self.group.direct:
            return flat[:width]
        return staging(self.group.backend).borrow((width,), flat.dtype)

    def _end(self, flat: Array, wire: Array, total: Array | None) -> None:
        """Bring the sum to where it belongs: of a root as it is, of others as it travelled."""
        group = self.group
        if total is None or self.root is None:
            self.copied = group.unwire(wire, flat, DONE)
        elif not group.direct:
            self.copied = group.backend.carry(total, flat, DONE)
        if total is not None and not group.direct:
            staging(group.backend).give_back(total, self.copied)

    def _room(self, size: int, like: Array, room: int) -> Array:
        """Lend memory for what the others have of this rank's part of a chunk; sums are made there."""
        name, width = ("sum", -(-size // self.group.size)) if self.root is None else ("sum at root", size)
        shape = (self.group.size - 1 if self.root in (None, self.group.rank) else 0, width)
        if self.group.direct:
            return self.take(f"{name} {room}", shape, self.group.wire_type(like))
        return staging(self.group.backend).borrow(shape, self.group.wire_type(like))


def add(
    group: Wires, flight: Flight, parts: Mapping[int, Array], room: Array, tag: int,
    total: Array | None = None,
) -> Iterator[None]:  # fmt: skip
    """Call :func:`add_together` for the parts of all ranks: a reduce-scatter, by tiers where there are."""
    tiers = group.tiers
    if tiers is None:
        yield from add_together(group, flight, parts, room, tag, total)
        return
    for node in tiers.nodes:  # whose parts are summed inside this one, each where its place is
        due = {mate: parts[rank] for mate, rank in zip(tiers.inside, node, strict=True)}
        yield from add_together(group, flight, due, room, tag, total)
    yield from add_together(group, flight, {rank: parts[rank] for rank in tiers.across}, room, tag, total)


def add_together(
    group: Wires, flight: Flight, parts: Mapping[int, Array], room: Array, tag: int,
    total: Array | None = None,
) -> Iterator[None]:  # fmt: skip
    """Send the part of every other rank in ``parts`` to it; add up what these ranks have of the own part.

    The sum is made in place and in the order of the ranks. With a part of one rank only, all ranks have one
    of it. Yields while something must be waited for.

    Args:
        room: (ranks, numbers) for what others send, left as scratch.
        total: float32 memory for the sum of numbers of 16 bits; the part then gets it rounded.
    """
    others = [r for r in group.others() if len(parts) == 1 or r in parts]
    own = parts.get(group.rank)
    received = {} if own is None else {r: room[i, : own.size] for i, r in enumerate(others)}
    yield from flight.swap(received, {r: part for r, part in parts.items() if r != group.rank}, tag)
    if received and own is not None:
        by_rank, on = {**received, group.rank: own}, backends.of(own)
        numbers = [by_rank[rank] for rank in sorted(by_rank)]
        with on.beside("sums"):
            if total is not None and group.narrow is not None:
                group.narrow.add_up(numbers, total[: own.size])
                group.narrow.into(total[: own.size], own, "sums")
            else:
                _add_up(numbers, own)
            added = on.mark()
        while not added():
            yield


def _add_up(numbers: Sequence[Array], own: Array) -> None:
    """Compute in ``own``, one of the arrays, their sum in their order. The others are left as scratch."""
    total = numbers[0]
    for number in numbers[1:]:
        into = own if number is numbers[-1] or numbers[0] is own else total
        total = np.add(total, number, out=into)


def add_and_share(
    group: Wires, flight: Flight, parts: Mapping[int, Array], room: Array, tag: int,
    total: Array | None = None,
) -> Iterator[None]:  # fmt: skip
    """Call :func:`add` for the parts of all ranks, then give all sums to all ranks: an all-reduce.

    Two ranks with two numbers each:

        rank 0     a0 a1        a0+b0 a1           a0+b0 a1+b1
        rank 1     b0 b1        b0    a1+b1        a0+b0 a1+b1
                 reduce-scatter          all-gather
    """
    yield from add(group, flight, parts, room, tag, total)
    tiers = group.tiers
    yield from _share(group, flight, {r: parts[r] for r in tiers.across} if tiers else parts, tag)
    if tiers is None:
        return
    for node in tiers.nodes:
        held = {mate: parts[rank] for mate, rank in zip(tiers.inside, node, strict=True)}
        yield from _share(group, flight, held, tag)


def _share(group: Wires, flight: Flight, parts: Mapping[int, Array], tag: int) -> Iterator[None]:
    """Send the own part to the others in ``parts``, and receive theirs."""
    away = {rank: parts[rank] for rank in group.others() if rank in parts}
    yield from flight.swap(away, dict.fromkeys(away, parts[group.rank]), tag)

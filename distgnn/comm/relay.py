"""Broadcasts of many panels at once, around the ring of a group's ranks, while something else is computed
(MG-GCN section 4.3).

The root of a panel sends it to its successor, and every rank hands it on to its own successor until the root
would be next: rank 1's panel in a group of four goes 1 → 2 → 3 → 0. Panels travel in segments, so that
handing on begins before a panel has arrived. Every rank receives a panel once and every link carries it once,
which is the bandwidth-optimal form that the ledger charges; the trees by which MPI libraries broadcast send
it log p times through the root's link. Several panels are under way together, so that in the steady state all
links are busy, as in a ring all-gather.

A rank takes the panels in an order of its own, its *turns*, into a few buffers, two as a rule. Panels never
wait for each other in a circle if a rank's turns are the same as its predecessor's but for panels of the rank
itself, which may come at any time as they need no buffer: a rank's t-th receive waits for an earlier one to
be multiplied and handed on, and for the predecessor to have the panel, as its receive t or an earlier one,
and so on back to the root. Two orders are of this kind: 0, 1, 2 ... on all ranks, and the rank's own panels
first, then those of its predecessor, of the one before that, and so on, in which nobody waits at the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpi4py import MPI

from distgnn import ledger, progress
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm

Array = Any

_TAGS = 32768  # MPI promises as many


def upstream(comm: Comm, roots: Sequence[int]) -> list[int]:
    """The turns of a rank that begins with its own panels and goes on against the direction of travel;
    ``roots`` by stage.
    """
    return sorted(range(len(roots)), key=lambda stage: ((comm.rank - roots[stage]) % comm.size, stage))


class Relay:
    """One broadcast of panels, from all ranks of ``comm`` together.

    Args:
        comm: the group.
        roots: the rank that has each stage's panel; the same on all ranks.
        turns: the stages in the order in which this rank takes them (see above).
        panel: ``panel(stage, buffer)`` gives the contiguous array to send from, or to receive into using the
            given one of the buffers.
        words: payload elements of each stage's panel, for the ledger; default: the array's.
        overlap: hand on, receive and send while the taker of a panel computes. Otherwise nothing is driven
            then: a panel is received and handed on before it is given out.
        buffers: how many there are, at least 2.
    """

    def __init__(
        self, comm: Comm, roots: Sequence[int], turns: Sequence[int], panel: Callable[[int, int], Array],
        words: Sequence[int] | None = None, overlap: bool = True, buffers: int = TUNING.relay_buffers,
    ) -> None:  # fmt: skip
        self.comm, self.overlap = comm, overlap
        self.successor, self.predecessor = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self.panel, self.words = panel, words
        self.first_tag = comm.reserve_tags(len(roots))
        self.turns = [(stage, roots[stage]) for stage in turns]
        self.posted: list[_Panel] = []  # by turn
        self.active: list[_Panel] = []  # those of them that are not done with
        self.current = -1
        self.free = list(range(buffers))
        self.requests: list[MPI.Request] = []
        # of each request: the panel and the segment received, -1 for one handed on
        self.owners: list[tuple[_Panel, int]] = []

    def __iter__(self) -> Iterator[Array]:
        """The panels in turn, each valid until the next is asked for. The last call returns when everything
        is handed on.
        """
        comm, finished = self.comm, False
        try:
            # what is sent has been computed, what is received into has been read
            self._wait(comm.backend.mark())
            for turn in range(len(self.turns)):
                self.current = turn
                self._advance()
                self._wait(lambda turn=turn: turn < len(self.posted))  # type: ignore[misc]  # until a buffer is free
                panel = self.posted[turn]
                self._wait(panel.ready if self.overlap else panel.settled)
                if self.overlap:
                    progress.register(self._drive)
                yield panel.take(comm)
                progress.unregister(self._drive)
                self._wait(comm.backend.mark())  # kernels that read it may still be queued
                panel.taken = True
            self._wait(lambda: not self.requests)
            finished = True
        finally:
            progress.unregister(self._drive)
            if not finished:
                self._abandon()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Drive this relay, and all others, until something is the case. Before the first turn nothing is
        posted.
        """
        if done():
            return
        with ledger.timed("comm", "bcast", self.comm.name):
            progress.wait(done, lambda: self.current >= 0 and self._advance())

    def _drive(self) -> None:
        if self.requests or len(self.posted) < len(self.turns):
            with ledger.timed("comm", "bcast", self.comm.name):
                self._advance()

    def _advance(self) -> bool:
        """See what has completed, hand on what has arrived, and post what there is room for. Has anything
        been completed?
        """
        completed = MPI.Request.Testsome(self.requests) if self.requests else None
        if completed:
            for index in completed:
                panel, segment = self.owners[index]
                panel.complete(segment)
            left = sorted(set(range(len(self.requests))) - set(completed))
            self.requests, self.owners = [self.requests[i] for i in left], [self.owners[i] for i in left]
        for panel in self.active:
            self._hand_on(panel)
        self._post()
        return bool(completed)

    def _post(self) -> None:
        """Start the next panels: own ones are sent, of others as many received as there are buffers free."""
        for panel in [panel for panel in self.active if panel.taken and panel.settled()]:
            self.active.remove(panel)
            self.free += [panel.buffer] if panel.buffer >= 0 else []
        while len(self.posted) < len(self.turns):
            stage, root = self.turns[len(self.posted)]
            own = root == self.comm.rank
            if not own and not self.free:
                return
            buffer = -1 if own else self.free.pop(0)
            array = self.panel(stage, buffer)
            self.comm.charge_broadcast(
                array, not own, array.size if self.words is None else self.words[stage]
            )
            panel = _Panel(
                self.comm, array, len(self.posted), self.first_tag + stage, buffer, self.successor == root
            )
            self.posted.append(panel)
            self.active.append(panel)
            if not own:
                for segment, piece in enumerate(panel.segments):
                    self._under_way(
                        panel, segment, self.comm.start_receive(piece, self.predecessor, panel.tag)
                    )
            self._hand_on(panel)

    def _hand_on(self, panel: _Panel) -> None:
        """Send to the successor the segments that have arrived; without overlap not before the panel's turn."""
        if not self.overlap and panel.turn > self.current:
            return
        while panel.handed_on < panel.in_order:
            piece = panel.segments[panel.handed_on]
            panel.handed_on += 1
            if not panel.last_stop:
                self._under_way(panel, -1, self.comm.start_send(piece, self.successor, panel.tag))

    def _under_way(self, panel: _Panel, segment: int, request: MPI.Request) -> None:
        panel.under_way += 1
        self.requests.append(request)
        self.owners.append((panel, segment))

    def _abandon(self) -> None:
        """The taker gave up: let go of what can be, and keep the memory of the rest, which MPI may still use."""
        for request, (_, segment) in zip(self.requests, self.owners, strict=True):
            if segment >= 0:
                request.Cancel()
        _abandoned.append(self)


_abandoned: list[Relay] = []


class _Panel:
    """A panel of a relay as one rank sees it.

    Attributes:
        turn: when this rank takes it; buffer: which buffer it is received into, -1 for an own panel.
        last_stop: the successor is the root, or there is none.
        in_order: segments that have arrived, but for those with a gap before them; handed_on: those of them
            sent on.
        under_way: messages of this panel that are not complete; taken: the taker has done with it.
    """

    def __init__(self, comm: Comm, array: Array, turn: int, tag: int, buffer: int, last_stop: bool) -> None:
        own = buffer < 0
        self.array, self.turn, self.tag, self.buffer = array, turn, tag % _TAGS, buffer
        self.last_stop = last_stop or comm.size == 1
        self.group, self.posted_at = comm.name, time.perf_counter()
        self.wire = comm.wire(array, send=own)
        step = max(TUNING.relay_segment // self.wire.itemsize, 1)
        self.segments = [self.wire[start : start + step] for start in range(0, max(self.wire.size, 1), step)]
        self.there = [own] * len(self.segments)
        self.in_order = len(self.segments) if own else 0
        self.handed_on = self.under_way = 0
        self.taken = False

    def ready(self) -> bool:
        """It has arrived."""
        return self.in_order == len(self.segments)

    def settled(self) -> bool:
        """It has arrived and been handed on: its memory is nobody else's business."""
        return self.handed_on == len(self.segments) and not self.under_way

    def complete(self, segment: int) -> None:
        """A message has completed: the receipt of a segment, or a sending (-1)."""
        self.under_way -= 1
        if segment < 0:
            return
        self.there[segment] = True
        while self.in_order < len(self.there) and self.there[self.in_order]:
            self.in_order += 1
        if self.ready():
            ledger.flight("bcast", self.group, self.posted_at, time.perf_counter(), self.wire.nbytes)

    def take(self, comm: Comm) -> Array:
        """The array, complete, where products read it."""
        if self.buffer >= 0:
            comm.unwire(self.wire, self.array)
        return self.array

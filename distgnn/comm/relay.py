"""Broadcasts of many panels at once, around the ring of a group's ranks, while something else is computed
(MG-GCN section 4.3).

Every rank hands a panel on to its successor until the root would be next: rank 1's panel in a group of four
goes 1 → 2 → 3 → 0. Panels travel in segments, so that handing on begins before a panel has arrived. Every
link carries a panel once, which is the bandwidth-optimal form that the ledger charges; the trees by which MPI
libraries broadcast send it log p times through the root's link. Several panels are under way together, so
that in the steady state all links are busy, as in a ring all-gather.

A rank takes the panels in an order of its own, its *turns*, into b buffers, two as a rule. There are two
orders: one for all ranks; and *upstream*, the rank's own panels first, then those of its predecessor, of the
one before that, and so on, in which nobody waits at the start. Panels never wait for each other in a circle:

1. A rank begins to receive the panel at place p of its order, own panels not counted, when the predecessor
   has the panel, and when the panel at place p - b has been multiplied and handed on.
2. The predecessor has the panel at the same place or an earlier one, and is nearer to its root. The
   successor has the panel of place p - b at the same place, if the order is one for all ranks; upstream it is
   later by the number of this rank's own panels, so that b must be larger than any rank's number of panels.
3. So whatever a panel waits for stands at an earlier place, or at the same place nearer to the root.

In an order for all ranks the roots should descend: a panel then follows the one before it around the ring,
and takes hardly longer than upstream. Where roots ascend, a panel meets the one that is needed before it on
all of its links, and large panels take 1.5 times as long (``benchmarks/results/relay-orders.md``).

On a device, a buffer is used again when the kernels that read it are done. Nothing else waits for kernels: a
panel that has come is copied to the device while earlier ones are multiplied.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from distgnn import progress
from distgnn.arrays.backend import DONE, Mark
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm

Array = Any


def upstream(comm: Comm, roots: Sequence[int]) -> list[int]:
    """The turns, given each stage's root, of a rank that begins at home and goes on against the travel."""
    return sorted(range(len(roots)), key=lambda stage: ((comm.rank - roots[stage]) % comm.size, stage))


class Relay(AbstractContextManager[Generator[Array]]):
    """One broadcast of panels, from all ranks of ``comm`` together.

    A context, which gives the panels in turn, each valid until the next is asked for. At the end of the
    context all panels have come and are handed on, whether they were asked for or not.

    Args:
        comm: the group.
        roots: the rank that has each stage's panel; the same on all ranks.
        turns: the stages in the order in which this rank takes them (see above); a range is all ranks' order.
        panel: ``panel(stage, buffer)``, the contiguous array to send, or to receive into in that buffer.
        words: payload elements of each stage's panel, for the ledger; default: the array's.
        overlap: messages travel while the caller computes. Otherwise a panel is received and handed on before
            it is given out.
        buffers: how many there are, at least 2; by default ``TUNING.relay_buffers``.
        matrix: whose panels they are, for the ledger.

    Raises:
        ValueError: too few buffers for an order that is not one for all ranks.
    """

    def __init__(
        self, comm: Comm, roots: Sequence[int], turns: Sequence[int], panel: Callable[[int, int], Array],
        matrix: str, words: Sequence[int] | None = None, overlap: bool = True, buffers: int | None = None,
    ) -> None:  # fmt: skip
        self.comm, self.overlap, self.matrix = comm, overlap, matrix
        self.successor, self.predecessor = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self.panel, self.words = panel, words
        self.first_tag = comm.reserve_tags(len(roots))
        self.turns = [(stage, roots[stage]) for stage in turns]
        self.posted: deque[_Panel] = deque()  # in turn, until they are taken
        self.active: list[_Panel] = []  # that are not done with
        self.current, self.next = -1, 0  # the turn; the next to be posted
        self.free = list(range(buffers or TUNING.relay_buffers))
        most = max(Counter(roots).values(), default=0)
        if list(turns) != list(range(len(roots))) and len(self.free) <= most:
            raise ValueError(f"a relay of {most} panels of one rank needs {most + 1} buffers; got {buffers}")
        self.flight = comm.flight("bcast", matrix, self._post)
        self.computed: Mark = DONE

    def __enter__(self) -> Generator[Array]:
        self.panels = self._relayed() if self.comm.moves and self.comm.size > 1 else self._at_once()
        return self.panels

    def __exit__(self, kind: Any, *_: object) -> None:
        failed = True
        try:
            if kind is None:
                for _panel in self.panels:  # that nobody asked for: other ranks do
                    pass
                failed = False
            else:
                self.panels.close()  # computations drive the messages no longer
                self._leave()
        finally:
            self.flight.close(failed)

    def _relayed(self) -> Generator[Array]:
        flight, on = self.flight, self.comm.backend
        self.computed = on.mark()  # what is sent has been computed, what is received into has been read
        for turn in range(len(self.turns)):
            self.current = turn
            self._post()
            flight.until(lambda: bool(self.posted))  # until a buffer is free
            panel = self.posted.popleft()
            self._move(panel)
            flight.until(panel.ready if self.overlap else panel.settled)
            flight.waited(panel.received_bytes)
            on.follow(panel.copied)
            with flight.driven(self.overlap):
                yield panel.array
            flight.after(on.mark(), panel.finish)  # kernels that read it may still be queued
            flight.drive()  # hand on what has come, so that its buffer is free for the next
            if not self.overlap:
                on.synchronize()
        flight.until(lambda: all(panel.settled() for panel in self.active))
        for panel in self.active:
            self.comm.release(panel.wire, panel.copied)

    def _leave(self) -> None:
        """After an error: ranks that did not fail wait for what is here."""
        for panel in self.active:
            for mark, segments in panel.marks:
                progress.watch(mark)
                panel.open_to(segments)
            self._hand_on(panel, panel.count)

    def _at_once(self) -> Generator[Array]:
        """Where no messages are needed: charged and waited for in the same order."""
        begun: deque[tuple[Array, int]] = deque()
        for _ in self.turns:
            while self.next < len(self.turns) and (one := self._begin()) is not None:
                begun.append(one)
            array, buffer = begun.popleft()
            if buffer >= 0:
                self.flight.waited(array.nbytes)
            yield array
            if buffer >= 0:
                self.free.append(buffer)

    def _begin(self) -> tuple[Array, int] | None:
        """The array of the next panel, which is charged, and its buffer; None where no buffer is free."""
        stage, root = self.turns[self.next]
        own = root == self.comm.rank
        if not own and not self.free:
            return None
        buffer = -1 if own else self.free.pop(0)
        array = self.panel(stage, buffer)
        words = None if self.words is None else self.words[stage]
        self.comm.charge_whole("bcast", self.matrix, array, root, words)
        self.next += 1
        return array, buffer

    def _post(self) -> None:
        """From the first turn on, start the next panels: own ones, of others as many as buffers are free."""
        for panel in [panel for panel in self.active if panel.taken and panel.settled()]:
            self.active.remove(panel)
            self.comm.release(panel.wire, panel.copied)
            self.free += [panel.buffer] if panel.buffer >= 0 else []
        while 0 <= self.current and self.next < len(self.turns):
            turn, (stage, root) = self.next, self.turns[self.next]
            if (begun := self._begin()) is None:
                return
            last_stop = self.successor == root
            panel = _Panel(self.comm, begun[0], turn, self.first_tag + stage, begun[1], last_stop)
            self.posted.append(panel)
            self.active.append(panel)
            panel.marks = self._marks(panel)
            self._open(panel)

    def _marks(self, panel: _Panel) -> deque[tuple[Mark, int]]:
        """From which marks on MPI may have how many segments: own ones when they are computed, and copied
        where they must be; others when what they are received into has been read, unless that is a copy.
        """
        if self.comm.direct or panel.buffer >= 0:
            return deque([(self.computed if self.comm.direct else DONE, panel.count)])
        numbers = range(panel.count)
        return deque((self.comm.fill(*panel.segment(n), self.computed), n + 1) for n in numbers)

    def _open(self, panel: _Panel) -> None:
        """Let MPI have the segments of which the device says that it may."""
        while panel.marks and panel.marks[0][0]():
            panel.open_to(panel.marks.popleft()[1])
        self._move(panel)
        if panel.marks:
            self.flight.after(panel.marks[0][0], partial(self._open, panel))

    def _move(self, panel: _Panel) -> None:
        """Receive the next segments and hand on what has arrived; without overlap not before its turn."""
        while panel.asked < panel.open and panel.asked - panel.received < TUNING.relay_at_a_time:
            then = partial(self._received, panel, panel.asked)
            self.flight.receive(panel.message(panel.asked), self.predecessor, panel.tag, then)
            panel.asked += 1
        if self.overlap or panel.turn <= self.current:
            self._hand_on(panel, TUNING.relay_at_a_time)

    def _hand_on(self, panel: _Panel, most: int) -> None:
        """Send the successor what has arrived, so many segments at a time."""
        if panel.last_stop:
            panel.handed_on = panel.in_order
        while panel.handed_on < panel.in_order and panel.sending < most:
            then = partial(self._sent, panel)
            self.flight.send(panel.message(panel.handed_on), self.successor, panel.tag, then)
            panel.handed_on += 1
            panel.sending += 1

    def _received(self, panel: _Panel, segment: int) -> None:
        panel.received += 1
        if not self.comm.direct:
            panel.copied = self.comm.unwire(*panel.segment(segment), self.computed)
        panel.early.add(segment)
        while panel.in_order in panel.early:
            panel.early.remove(panel.in_order)
            panel.in_order += 1
        if panel.in_order == panel.count:
            self.flight.landed(panel.posted_at, panel.wire.nbytes)
        self._move(panel)

    def _sent(self, panel: _Panel) -> None:
        panel.sending -= 1
        self._move(panel)


class _Panel:
    """A panel of a relay as one rank sees it.

    Attributes:
        turn: when this rank takes it; buffer: which buffer it is received into, -1 for an own panel.
        last_stop: the successor is the root.
        wire: its memory for MPI; copied: the mark of the last copy from there to ``array``.
        count: of its segments; open: how many MPI may receive; asked, received, handed_on: how many are, or
            have been. marks: from which on MPI may have more of them.
        in_order: those that have arrived, but for those with a gap before them, which are ``early``.
        sending: those of them handed on that are under way; taken: the taker has done with it.
        received_bytes: of it, none of an own panel.
    """

    def __init__(self, comm: Comm, array: Array, turn: int, tag: int, buffer: int, last_stop: bool) -> None:
        own = buffer < 0
        self.array, self.turn, self.tag, self.buffer, self.last_stop = array, turn, tag, buffer, last_stop
        self.posted_at = time.perf_counter()
        self.wire, self.copied = comm.wire(array), DONE
        self.marks: deque[tuple[Mark, int]] = deque()
        size = min(max(array.nbytes // TUNING.relay_segments, TUNING.relay_segment), TUNING.largest_segment)
        self.step = max(size // array.itemsize, 1)
        self.count = max(-(-self.wire.size // self.step), 1)
        self.asked = self.received = self.count if own else 0
        self.open = self.in_order = self.handed_on = self.sending = 0
        self.early: set[int] = set()
        self.taken = False
        self.received_bytes = 0 if own else array.nbytes

    def message(self, number: int) -> Array:
        """A segment of the wire."""
        return self.wire[number * self.step : (number + 1) * self.step]

    def segment(self, number: int) -> tuple[Array, Array]:
        """A segment of the wire and of the array."""
        place = slice(number * self.step, (number + 1) * self.step)
        return self.wire[place], self.array.reshape(-1)[place]

    def open_to(self, segments: int) -> None:
        """MPI may have so many segments: own ones are there then."""
        if self.buffer < 0:
            self.in_order = segments
        else:
            self.open = segments

    def ready(self) -> bool:
        """It can be taken: it has arrived, or is an own one."""
        return self.in_order == self.count or self.buffer < 0

    def settled(self) -> bool:
        """It has arrived and been handed on: its memory is nobody else's business."""
        return self.handed_on == self.count and not self.sending

    def finish(self) -> None:
        """The taker has done with it."""
        self.taken = True

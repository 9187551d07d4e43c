"""Broadcasts of many panels at once, around the ring of a group's ranks (MG-GCN section 4.3).

Something else is computed while panels travel.

Every rank hands a panel on to its successor until the root would be next: rank 1's panel in a group of four
goes 1 → 2 → 3 → 0. The ring takes the ranks of a node one after another, whatever their numbers, so that a
panel comes to each node once. Panels travel in segments, so that handing on begins before a panel has
arrived. Every link carries a panel once, which is the bandwidth-optimal form that the ledger charges; the
trees by which MPI libraries broadcast send it log p times through the root's link. Several panels are under
way together, so that in the steady state all links are busy, as in a ring all-gather.

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

On each rank, every segment of a panel passes through these states. The panel counts its segments in each:

    state     meaning                              next state   when
    CLOSED    the device computes or reads it      OPEN         the device's mark says that it no longer does
    OPEN      MPI may receive it                   ASKED        fewer than ``relay_at_a_time`` are ASKED
    ASKED     its receive is under way             HERE         the receive completes
    HERE      it can be multiplied and sent        SENT         fewer than ``relay_at_a_time`` are SENT
    SENT      its send is under way                OVER         the send completes
    OVER      MPI has done with it

An own segment passes from CLOSED to HERE. Where the successor is the root, a segment passes to OVER instead
of HERE. Segments are received and sent in their order. A panel can be taken when no segment is before HERE.
Its buffer is free when the panel was taken and all segments are OVER.
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
from distgnn.comm.wires import Wires

Array = Any

CLOSED, OPEN, ASKED, HERE, SENT, OVER = range(6)  # the states of a segment


def upstream(comm: Wires, roots: Sequence[int]) -> list[int]:
    """List the stages, by each one's root, in the turns of a rank that begins at home and goes upstream."""
    place = {rank: place for place, rank in enumerate(comm.ring)}
    own = place[comm.rank]
    return sorted(range(len(roots)), key=lambda stage: ((own - place[roots[stage]]) % comm.size, stage))


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
        narrow: they hold features or gradients of nodes, which may travel in 16 bits.
        at_once: all others are wanted before any is used. There are as many buffers, or more.

    Raises:
        ValueError: too few buffers for an order that is not one for all ranks.
    """

    def __init__(
        self, comm: Wires, roots: Sequence[int], turns: Sequence[int], panel: Callable[[int, int], Array],
        matrix: str, words: Sequence[int] | None = None, overlap: bool = True, buffers: int | None = None,
        narrow: bool = False, at_once: bool = False,
    ) -> None:  # fmt: skip
        self.comm, self.overlap, self.matrix, self.narrow = comm, overlap, matrix, narrow
        self.at_once = at_once
        place = comm.ring.index(comm.rank)
        self.successor, self.predecessor = comm.ring[(place + 1) % comm.size], comm.ring[place - 1]
        self.panel, self.words = panel, words
        self.first_tag = comm.reserve_tags(len(roots))
        self.turns = [(stage, roots[stage]) for stage in turns]
        self.panels: dict[int, _Panel] = {}  # by turn, from when they are posted until their buffer is free
        self.current, self.next = -1, 0  # the turn; the next to be posted
        self.free = list(range(buffers or TUNING.relay_buffers))
        most = max(Counter(roots).values(), default=0)
        if list(turns) != list(range(len(roots))) and len(self.free) <= most:
            raise ValueError(f"a relay of {most} panels of one rank needs {most + 1} buffers; got {buffers}")
        self.flight = comm.flight("bcast", matrix, self._post)
        self.computed: Mark = DONE

    def __enter__(self) -> Generator[Array]:
        self.given = self._relayed() if self.comm.size > 1 else self._alone()
        return self.given

    def __exit__(self, kind: Any, *_: object) -> None:
        failed = True
        try:
            if kind is None:
                for _panel in self.given:  # that nobody asked for: other ranks do
                    pass
                failed = False
            else:
                self.given.close()  # computations drive the messages no longer
                self._leave()
        finally:
            self.flight.close(failed)

    def _relayed(self) -> Generator[Array]:
        flight, on = self.flight, self.comm.backend
        self.computed = on.mark()  # what is sent has been computed, what is received into has been read
        for turn in range(len(self.turns)):
            self.current = turn
            self._post()
            flight.until(lambda: self.current in self.panels)  # until a buffer is free
            panel = self.panels[turn]
            self._move(panel)
            flight.until(panel.ready if self.overlap else panel.settled)
            flight.waited(0 if panel.own else panel.wire.nbytes)
            on.follow(panel.copied)
            with flight.driven(self.overlap):
                yield panel.array
            flight.after(on.mark(), panel.finish)  # kernels that read it may still be queued
            flight.drive()  # hand on what has come, so that its buffer is free for the next
            if not self.overlap:
                on.synchronize()
        flight.until(lambda: all(panel.settled() for panel in self.panels.values()))
        for panel in self.panels.values():
            self.comm.release(panel.wire, panel.copied)

    def _alone(self) -> Generator[Array]:
        """Give the panels in a group of one rank, all of them its own."""
        for _ in self.turns:
            array, _ = self._begin()
            yield array

    def _leave(self) -> None:
        """Send what is here, after an error: ranks that did not fail wait for it."""
        for panel in self.panels.values():
            for mark, segments in panel.marks:
                progress.watch(mark)
                panel.open_to(segments)
            self._hand_on(panel, panel.count)

    def _blocked(self) -> bool:
        """Tell whether the next panel must wait for a buffer."""
        return not self.free and self.turns[self.next][1] != self.comm.rank

    def _begin(self) -> tuple[Array, int]:
        """Charge the next panel. Returns its array, and its buffer or -1 for an own panel."""
        stage, root = self.turns[self.next]
        buffer = -1 if root == self.comm.rank else self.free.pop(0)
        array = self.panel(stage, buffer)
        words = None if self.words is None else self.words[stage]
        nbytes = self.comm.wire_bytes(array, self.narrow)
        self.comm.charge.whole("bcast", self.matrix, array, root, words, by=self.predecessor, nbytes=nbytes)
        if self.comm.narrows(array, self.narrow):
            self.comm.charge.converted(array.size)
        self.next += 1
        return array, buffer

    def _post(self) -> None:
        """Start the next panels, from the first turn on: own ones, of others as many as buffers are free."""
        for turn, panel in [*self.panels.items()]:
            if panel.taken and panel.settled():
                del self.panels[turn]
                self.comm.release(panel.wire, panel.copied)
                self.free += [] if panel.own else [panel.buffer]
        while 0 <= self.current and self.next < len(self.turns) and not self._blocked():
            turn, (stage, root) = self.next, self.turns[self.next]
            array, buffer = self._begin()
            wire = self.comm.wire(array, self.narrow)
            tag, on_device = self.first_tag + stage, self.comm.backend.on_device
            panel = _Panel(wire, array, turn, tag, buffer, on_device)
            panel.last_stop = self.successor == root
            panel.marks = self._marks(panel)
            self.panels[turn] = panel
            self._open(panel)

    def _marks(self, panel: _Panel) -> deque[tuple[Mark, int]]:
        """Return from which marks on MPI may have how many segments.

        Own segments: when they are computed, and copied where they must be. Others: when what they are
        received into has been read, unless that is a copy.
        """
        apart = self.comm.apart(panel.wire, panel.array)
        if not (apart and panel.own):
            return deque([(DONE if apart else self.computed, panel.count)])
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
        while panel.number[OPEN] and panel.number[ASKED] < TUNING.relay_at_a_time:
            segment = panel.count - panel.number[CLOSED] - panel.number[OPEN]
            then = partial(self._received, panel, segment)
            self.flight.receive(panel.message(segment), self.predecessor, panel.tag, then)
            panel.pass_to(ASKED, segment)
        if self.overlap or panel.turn <= self.current:
            self._hand_on(panel, TUNING.relay_at_a_time)

    def _hand_on(self, panel: _Panel, most: int) -> None:
        """Send the successor what has arrived, so many segments at a time."""
        while panel.number[HERE] and panel.number[SENT] < most:
            segment = panel.number[SENT] + panel.number[OVER]
            if panel.states[segment] != HERE:
                return  # an earlier one is still to come
            then = partial(self._sent, panel, segment)
            self.flight.send(panel.message(segment), self.successor, panel.tag, then)
            panel.pass_to(SENT, segment)

    def _received(self, panel: _Panel, segment: int) -> None:
        if self.comm.apart(panel.wire, panel.array):
            panel.copied = self.comm.unwire(*panel.segment(segment), self.computed)
        panel.pass_to(HERE, segment)
        if panel.ready():
            self.flight.landed(panel.posted_at, panel.wire.nbytes)
        self._move(panel)

    def _sent(self, panel: _Panel, segment: int) -> None:
        panel.pass_to(OVER, segment)
        self._move(panel)


def _segment(nbytes: int, on_device: bool) -> int:
    """Return the bytes of a segment of a panel of so many."""
    if on_device and (least := TUNING.device_segment):
        return min(max(nbytes // 4, least), 4 * least)
    return min(max(nbytes // TUNING.relay_segments, TUNING.relay_segment), TUNING.largest_segment)


class _Panel:
    """A panel of a relay on one rank.

    Attributes:
        turn: when this rank takes it; buffer: which buffer it is received into, -1 for an own panel.
        last_stop: the successor is the root.
        wire: its memory for MPI; copied: the mark of the last copy from there to ``array``.
        states: of its segments (see above); number: of segments by state; count: of all.
        marks: from which on how many segments are no longer CLOSED.
        taken: whether the taker has done with it.
    """

    def __init__(
        self, wire: Array, array: Array, turn: int, tag: int, buffer: int, on_device: bool
    ) -> None:  # fmt: skip
        self.wire, self.array, self.turn, self.tag, self.buffer = wire, array, turn, tag, buffer
        self.own, self.last_stop, self.taken, self.copied = buffer < 0, False, False, DONE
        self.posted_at = time.perf_counter()
        self.marks: deque[tuple[Mark, int]] = deque()
        self.step = max(_segment(wire.nbytes, on_device) // wire.itemsize, 1)
        self.count = max(-(-wire.size // self.step), 1)
        self.states = [CLOSED] * self.count
        self.number = [self.count, 0, 0, 0, 0, 0]

    def message(self, number: int) -> Array:
        """Return a segment of the wire."""
        return self.wire[number * self.step : (number + 1) * self.step]

    def segment(self, number: int) -> tuple[Array, Array]:
        """Return a segment of the wire and of the array."""
        place = slice(number * self.step, (number + 1) * self.step)
        return self.wire[place], self.array.reshape(-1)[place]

    def pass_to(self, state: int, segment: int) -> None:
        """Put a segment into a later state."""
        if state == HERE and self.last_stop:
            state = OVER
        self.number[self.states[segment]] -= 1
        self.number[state] += 1
        self.states[segment] = state

    def open_to(self, segments: int) -> None:
        """Let MPI have this many segments; own ones are here then."""
        for segment in range(self.count - self.number[CLOSED], segments):
            self.pass_to(HERE if self.own else OPEN, segment)

    def ready(self) -> bool:
        """Tell whether the panel can be taken: it has arrived, or is an own one."""
        return self.own or not any(self.number[:HERE])

    def settled(self) -> bool:
        """Tell whether the panel has arrived and been handed on: MPI has done with its memory."""
        return self.number[OVER] == self.count

    def finish(self) -> None:
        """Note that the taker has done with the panel."""
        self.taken = True

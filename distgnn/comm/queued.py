"""Panels, rows and sums that NCCL moves: a relay, an exchange and sums, queued in the order of the program.

What is queued, and when, follows from the program, not from what has arrived: all ranks queue the same calls
in the same order, whatever the group. Else one rank's device would wait for another's in one call, and that
one for it in a second. The host waits for nothing.

NCCL's stream waits for a mark of the stream that computes, taken when a call is queued: what is sent is
there, and what is received into has been read. The stream that computes waits for a mark of NCCL's before it
reads what came, and before the memory is anybody else's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from distgnn import ledger, progress
from distgnn.arrays.backend import DONE, Mark
from distgnn.comm.exchange import Exchange
from distgnn.comm.flight import Flight
from distgnn.comm.nccl import Nccl, takes
from distgnn.comm.relay import Relay
from distgnn.comm.sums import Series, Sums
from distgnn.comm.wires import Wires
from distgnn.layout import partition
from distgnn.local.narrow import BITS

Array = Any


def _follow(group: Wires, flight: Flight, mark: Mark) -> None:
    """Let the stream that computes wait for a mark; the ledger is told how long it does."""
    with ledger.timed("comm", flight.operation, group.name, flight.matrix, on=group.backend):
        group.backend.follow(mark)
    flight.drive()  # so that the ledger knows what has landed


@dataclass
class _QueuedPanel:
    """A panel of a relay.

    Attributes:
        uses: how often it is still to be multiplied or handed on.
        filled: the mark from which on NCCL may read the wire; came: from which on the panel may be read.
    """

    array: Array
    wire: Array
    buffer: int
    uses: int
    filled: Mark
    came: Mark = DONE


class QueuedRelay(Relay):
    """Panels by NCCL, in the turns of a :class:`Relay`.

    In an order for all ranks, each panel is a broadcast, and where all are wanted at once, all are one call.
    Upstream, each rank has an order of its own, which sums keep to the bit, and panels go around the ring in
    steps: in one call a rank receives a panel of the k-th rank before it, and hands on one of the rank before
    that. Broadcasts, which all ranks must queue in one order, would come in another one than they are
    multiplied in, and need room for all panels.

    A step is queued when there is a buffer: when what was in it is multiplied, and handed on. In an order for
    all ranks own panels count as if they had one, so that all ranks queue as many. Without overlap a step is
    queued when its panel is asked for. All are queued at the end, after an error too: other ranks' devices
    wait for them.
    """

    def __init__(
        self, comm: Wires, roots: Sequence[int], turns: Sequence[int], *args: Any, **options: Any
    ) -> None:  # fmt: skip
        super().__init__(comm, roots, turns, *args, **options)
        self.nccl, self.buffers = comm.nccl, len(self.free)
        self.turn, self.awaited, self.step = 0, 0, 0  # asked for; not yet waited for; to be queued next
        self.held: dict[int, _QueuedPanel] = {}  # by turn
        self.rooms, self.lent = dict[int, Array](), list[Array]()  # for 16 bits: by buffer; all
        self.common = self.at_once or isinstance(turns, range)  # upstream may rise, too, on one rank
        self.steps = self._broadcasts() if self.common else self._around()
        self.handed_on = Counter(turn for _, sends in self.steps for turn in sends)

    def __exit__(self, kind: Any, *_: object) -> None:
        failed = True
        try:
            with suppress(Exception) if kind else nullcontext():
                self._finish()
                failed = kind is not None
        finally:
            self._reserve(False)
            self.flight.close(failed)

    def _broadcasts(self) -> list[tuple[list[int], list[int]]]:
        """List the turns of each step: one, or all in the order of the stages."""
        by_stage = sorted(range(len(self.turns)), key=lambda turn: self.turns[turn][0])
        return [(by_stage, [])] if self.at_once else [([turn], []) for turn in range(len(self.turns))]

    def _around(self) -> list[tuple[list[int], list[int]]]:
        """List the turns that are received and handed on, by steps around the ring."""
        ring, own = self.comm.ring, self.comm.ring.index(self.comm.rank)
        turns: dict[int, list[int]] = {rank: [] for rank in ring}
        for turn, (_, root) in enumerate(self.turns):
            turns[root].append(turn)
        most = max(map(len, turns.values()))
        moved = [[turns[ring[own - far]][k : k + 1] for k in range(most)] for far in range(len(ring))]
        return [step for go, come in pairwise(moved) for step in zip(come, go, strict=True)]

    def _relayed(self) -> Generator[Array]:
        while self.turn < len(self.turns):
            yield self._taken()
            self._over()

    def _taken(self) -> Array:
        """Return the panel of this turn, for the stream that computes."""
        self._queue()
        panel = self._panel(self.turn)
        if self.awaited == self.turn:
            self.awaited += 1
            _follow(self.comm, self.flight, panel.came)
            self.flight.waited(0 if panel.buffer < 0 else panel.wire.nbytes)
        return panel.array

    def _over(self) -> None:
        """Go to the next turn: all that reads this panel is queued."""
        self._used(self.turn)
        self.turn += 1
        if not self.overlap:
            self.comm.backend.synchronize()

    def _finish(self) -> None:
        """Take what was not asked for, and give back the memory when nothing is queued on it any more."""
        while self.turn < len(self.turns):
            self._taken()
            self._over()
        self._queue()
        _follow(self.comm, self.flight, self.nccl.last)
        for wire in self.lent:
            self.comm.release(wire, self.comm.backend.mark())

    def _post(self) -> None:
        """Do nothing: no step is queued because of what has arrived."""

    def _queue(self) -> None:
        """Queue the next steps, as far as there are buffers."""
        while self.step < len(self.steps):
            receives, sends = self.steps[self.step]
            first = min(receives, default=self.turn)
            if first > self.turn:
                room = first < self.turn + self.buffers if self.common else self.free
                if not (self.overlap and room):
                    break
            self._reserve(False)
            self.step += 1
            self._call(receives, sends)
        self._reserve(not self.common and self.step < len(self.steps))

    def _reserve(self, wanted: bool) -> None:
        """Let no other call be queued as long as steps are, at turns that differ from rank to rank."""
        assert Nccl.claimed in (None, self)
        Nccl.claimed = self if wanted else None

    def _call(self, receives: list[int], sends: list[int]) -> None:
        """Queue a step: broadcasts, or what comes and what is handed on. Arguments are turns."""
        begun = time.perf_counter()
        coming, going = [self._panel(turn) for turn in receives], [self._panel(turn) for turn in sends]
        if self.common:
            wires = [(panel.wire, self.turns[turn][1]) for turn, panel in zip(receives, coming, strict=True)]
            moved = self.nccl.bcast(*wires, after=[panel.filled for panel in coming])
        else:
            out = [(panel.wire, self.successor) for panel in going]
            into = [(panel.wire, self.predecessor) for panel in coming]
            moved = self.nccl.swap(out, into, [panel.filled for panel in going])
        for panel in coming:
            if panel.buffer >= 0:
                self._came(panel, moved, begun)
        for turn in sends:
            self._used(turn)

    def _came(self, panel: _QueuedPanel, moved: Mark, begun: float) -> None:
        apart, flat = self.comm.apart(panel.wire, panel.array), panel.array.reshape(-1)
        panel.came = self.comm.unwire(panel.wire, flat, moved) if apart else moved
        self.flight.after(moved, partial(self.flight.landed, begun, panel.wire.nbytes))

    def _panel(self, turn: int) -> _QueuedPanel:
        """Return the panel of a turn; begin those up to it that have not begun."""
        while self.next <= turn:
            uses, number = 1 + self.handed_on[self.next], self.next
            array, buffer = self._begin()
            wire = self._wire(array, buffer)
            filled = self.comm.fill(wire, array.reshape(-1), self.comm.backend.mark()) if buffer < 0 else DONE
            self.held[number] = _QueuedPanel(array, wire, buffer, uses, filled)
        return self.held[turn]

    def _wire(self, array: Array, buffer: int) -> Array:
        """Return what NCCL is given: the array, or room for its 16 bits, of which each buffer has one."""
        if not self.comm.narrows(array, self.narrow):
            return self.comm.wire(array)
        room = self.rooms.get(buffer) if buffer >= 0 else None
        if room is None or room.size < array.size:
            room = self.rooms[buffer] = self.comm.wire(array, narrow=True)
            self.lent.append(room)
        return room[: array.size]

    def _used(self, turn: int) -> None:
        """Note that a panel is multiplied or handed on: after the last time its buffer is free."""
        panel = self.held[turn]
        panel.uses -= 1
        if not panel.uses:
            del self.held[turn]
            self.free += [] if panel.buffer < 0 else [panel.buffer]


class QueuedExchange(Exchange):
    """An all-to-allv by NCCL, in one call: queued when all that this rank sends has been given."""

    def __init__(self, comm: Wires, *args: Any, **options: Any) -> None:
        self.nccl = comm.nccl  # may be made now, before anything waits to be driven
        super().__init__(comm, *args, **options)
        self.sends, self.filled = list[tuple[Array, int]](), list[Mark]()
        self.begun, self.last = False, DONE

    def send(self, array: Array, destination: int) -> None:
        """Send a contiguous array, which must stay as it is until the exchange is over."""
        if array.size:
            array = self._laid(array)
            self._tell(array)
            wire = self.comm.wire(array, self.narrow)
            self.filled.append(self.comm.fill(wire, array.reshape(-1), self.comm.backend.mark()))
            self.sent.append((array, wire))
            self.sends.append((wire, destination))

    def all_sent(self) -> None:
        """Queue it all, once."""
        if self.begun:
            return
        self.begun, begun = True, time.perf_counter()
        receives = [(delivery.wire, source) for source, delivery in self.deliveries.items()]
        self.last = self.nccl.swap(self.sends, receives, self.filled)
        for delivery in self.deliveries.values():
            flat, apart = delivery.array.reshape(-1), self.comm.apart(delivery.wire, delivery.array)
            delivery.copied = self.comm.unwire(delivery.wire, flat, self.last) if apart else self.last
            self.flight.after(self.last, partial(self.flight.landed, begun, delivery.wire.nbytes))

    def wait(self, sources: Iterable[int]) -> None:
        """Wait until what these ranks send is there, where products read it."""
        self.all_sent()
        sources = [source for source in sources if source in self.deliveries]
        wanted = [self.deliveries[source] for source in sources]
        for delivery in wanted:
            _follow(self.comm, self.flight, delivery.copied)
        self.flight.waited(sum(delivery.wire.nbytes for delivery in wanted))
        self._unpack_at_once(sources)

    def finish(self) -> None:
        """Wait until everything is sent and received."""
        self.all_sent()
        _follow(self.comm, self.flight, self.last)
        self.flight.waited()

    def _receive(self) -> None:
        """Do nothing: what is received is part of the call."""

    def _release(self) -> None:
        """Release the numbers of 16 bits, when nothing that is queued reads them any more."""
        deliveries = [(delivery.array, delivery.wire) for delivery in self.deliveries.values()]
        for delivery in self.deliveries.values():
            self.comm.backend.follow(delivery.copied)
        for array, wire in [*deliveries, *self.sent]:
            if self.comm.apart(wire, array):
                self.comm.release(wire, self.comm.backend.mark())


class QueuedSums(Sums):
    """Sums by NCCL, each of them queued when it is started."""

    def _series(self, array: Array, root: int | None) -> Series:
        return QueuedSeries(self.group, root, self.overlap, self._take)


class QueuedSeries(Series):
    """The sums with one root, of which a device makes one after another."""

    def __init__(self, group: Wires, *args: Any) -> None:
        super().__init__(group, *args)
        self.nccl = group.nccl

    def start(self, flat: Array) -> None:
        """Queue the sum of an array of one dimension. TypeError: NCCL does not sum numbers of this type."""
        if not takes(flat):
            raise TypeError(f"NCCL does not sum {flat.dtype}")
        group, nbytes, begun = self.group, self.group.wire_bytes(flat), time.perf_counter()
        away = 2 * nbytes * (group.size - 1) // group.size if self.root is None else nbytes
        if group.narrows(flat):
            self.copied = self._sum_narrow(flat)
        else:
            self.copied = (
                self.nccl.allreduce(flat) if self.root is None else self.nccl.reduce(flat, self.root)
            )
        landed = partial(self.flight.landed, begun, 0 if self.root == group.rank else away)
        self.flight.after(self.copied, landed)
        if self.overlap:
            progress.register(self.flight.drive)
        else:
            self.finish()

    def finish(self) -> None:
        """Wait until all sums are complete."""
        _follow(self.group, self.flight, self.copied)
        self.flight.waited()

    def _sum_narrow(self, flat: Array) -> Mark:
        """Send every rank the 16 bits of its part, add up the own one, and send the sums to all.

        With a root, all is its part. What others send is added in the order of the ranks, in float32.
        """
        group, on, narrow = self.group, self.group.backend, self.group.narrow
        assert narrow is not None
        bounds = self._bounds(flat.size)
        own, others = slice(*bounds[group.rank : group.rank + 2]), group.others()
        bits, came = (narrow.memory.borrow(s, BITS) for s in (flat.shape, (len(others), flat[own].size)))
        parts = [bits[bounds[r] : bounds[r + 1]] for r in range(group.size)]
        filled = narrow.fill(bits, flat, on.mark())
        mark = self.nccl.swap([(parts[r], r) for r in others], [*zip(came, others, strict=True)], [filled])
        if came.size:
            by_rank = {group.rank: parts[group.rank]} | dict(zip(others, came, strict=True))
            with on.beside("sums", mark):
                narrow.add_up([by_rank[rank] for rank in sorted(by_rank)], flat[own])
                if self.root is None:
                    narrow.into(flat[own], parts[group.rank], "sums")
                mark = on.mark()
        if self.root is None:
            mark = narrow.unwire(bits, flat, self.nccl.allgather(parts[group.rank], bits, bounds, [mark]))
        for lent in (bits, came):
            narrow.memory.give_back(lent, mark)
        return mark

    def _bounds(self, size: int) -> np.ndarray:
        """Return where the ranks' parts of an array begin and end."""
        if self.root is None:
            return partition(size, self.group.size)
        return np.where(np.arange(self.group.size + 1) > self.root, size, 0)

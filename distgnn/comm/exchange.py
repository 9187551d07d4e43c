"""An all-to-allv whose parts can be used as soon as they arrive, while something else is computed.

All receives are posted at once. Sends are started in the order in which they are given, a few at a time: with
every rank sending to the one before it first, then to the one before that, and so on, what a rank receives
comes in the order rank + 1, rank + 2, ..., each at the full rate of its link, and not everything at the end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from distgnn.arrays.backend import DONE
from distgnn.arrays.tuning import TUNING
from distgnn.comm.wires import Wires

Array = Any


class Exchange(AbstractContextManager["Exchange"]):
    """One exchange among all ranks of ``comm``; a context, at the end of which all is sent and received.

    Args:
        receives: (rank, contiguous array to receive into), at most one of each rank, which sends as many
            elements. No message is sent of none.
        matrix: whose numbers they are, for the ledger.
        overlap: go on while whoever uses a part computes. Otherwise all is there before a part is used.
        operation: the name for the ledger, "alltoall" where all ranks send each other as much.
        narrow: these are features or gradients of nodes, which may travel in 16 bits. What is sent may be
            rounded already.
        charged: the caller has charged what is received.
    """

    def __init__(
        self, comm: Wires, receives: Sequence[tuple[int, Array]], matrix: str, overlap: bool = True,
        operation: str = "alltoallv", narrow: bool = False, charged: bool = False,
    ) -> None:  # fmt: skip
        self.comm, self.overlap, self.narrow = comm, overlap, narrow
        self.tag = comm.reserve_tags(1)
        self.flight = comm.flight(operation, matrix, self._send_next)
        self.queue: deque[tuple[Array, int]] = deque()  # what is still to be sent, and to whom
        self.sending = 0
        receives = [(source, array) for source, array in receives if array.size]
        if not charged:
            nbytes = sum(comm.wire_bytes(array, narrow) for _, array in receives)
            comm.charge.exchange(operation, matrix, receives, nbytes)
        if some := sum(array.size for _, array in receives if comm.narrows(array, narrow)):
            comm.charge.converted(some)
        self.read = comm.backend.mark()  # kernels may still read what is received into
        self.deliveries = {source: self._delivery(array) for source, array in receives}
        # What is sent, and its wire. The memory of a temporary would be lent again while it is copied.
        self.sent: list[tuple[Array, Array]] = []
        if receives:
            self.flight.after(self.read if comm.direct else DONE, self._receive)

    def __exit__(self, kind: Any, *_: object) -> None:
        failed = True
        try:
            if kind is None:
                self.finish()
                self._release()
                failed = False
        finally:
            self.flight.close(failed)

    def send(self, array: Array, destination: int) -> None:
        """Send a contiguous array, which must stay as it is until the exchange is over."""
        if array.size:
            self._tell(array)
            wire = self.comm.wire(array, self.narrow)
            filled = self.comm.fill(wire, array.reshape(-1), self.comm.backend.mark())
            self.sent.append((array, wire))
            self.flight.after(filled, partial(self._enqueue, wire, destination))
            self.flight.drive()

    def all_sent(self) -> None:
        """Note that nothing more will be sent. All ranks say so at the same place, or wait for something."""

    def _tell(self, array: Array) -> None:
        """Tell the ledger of what is sent."""
        self.flight.sent(self.comm.wire_bytes(array, self.narrow))
        if self.comm.narrows(array, self.narrow):
            self.comm.charge.converted(array.size)

    def wait(self, sources: Iterable[int]) -> None:
        """Wait until what these ranks send is there, where products read it."""
        wanted = [self.deliveries[source] for source in sources if source in self.deliveries]
        self.flight.until(lambda: not any(delivery.missing for delivery in wanted))
        self.flight.waited(sum(delivery.wire.nbytes for delivery in wanted))
        for delivery in wanted:
            self.comm.backend.follow(delivery.copied)

    def finish(self) -> None:
        """Wait until everything is sent and received."""
        self.flight.until(lambda: not self._busy())
        self.flight.waited()

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Drive the messages during the computations inside; without overlap, finish them before."""
        if not self.overlap:
            self.finish()
        with self.flight.driven(self._busy()):
            yield

    def _busy(self) -> bool:
        return bool(self.flight.requests or self.queue or self.flight.marks)

    def _delivery(self, array: Array) -> _Delivery:
        return _Delivery(array, self.comm, self.narrow)

    def _receive(self) -> None:
        for source, delivery in self.deliveries.items():
            for message in self.comm.countable(delivery.wire):
                self.flight.receive(message, source, self.tag, partial(self._received, delivery))

    def _enqueue(self, wire: Array, destination: int) -> None:
        self.queue.extend((message, destination) for message in self.comm.countable(wire))

    def _release(self) -> None:
        """Release the copies, those included that nobody waited for."""
        for delivery in self.deliveries.values():
            self.comm.backend.follow(delivery.copied)
            if self.comm.apart(delivery.wire, delivery.array):
                self.comm.release(delivery.wire, delivery.copied)
        for array, wire in self.sent:
            if self.comm.apart(wire, array):
                self.comm.release(wire)

    def _received(self, delivery: _Delivery) -> None:
        delivery.missing -= 1
        if not delivery.missing:
            if self.comm.apart(delivery.wire, delivery.array):
                delivery.copied = self.comm.unwire(delivery.wire, delivery.array.reshape(-1), self.read)
            self.flight.landed(delivery.posted, delivery.wire.nbytes)

    def _send_next(self) -> None:
        while self.queue and self.sending < TUNING.exchange_sends:
            self.sending += 1
            self.flight.send(*self.queue.popleft(), self.tag, self._sent)

    def _sent(self) -> None:
        self.sending -= 1


class _Delivery:
    """The array that one rank sends, on its way to this rank.

    Attributes:
        array: where the numbers end up.
        wire: what MPI receives into.
        missing: messages that are still to come.
        copied: the mark of the copy from ``wire`` to ``array``.
    """

    def __init__(self, array: Array, comm: Wires, narrow: bool) -> None:
        self.array, self.wire, self.copied = array, comm.wire(array, narrow), DONE
        self.missing = -(-array.size // comm.count_limit)
        self.posted = time.perf_counter()

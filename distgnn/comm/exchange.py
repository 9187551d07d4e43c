"""An all-to-allv whose parts can be used as soon as they arrive, while something else is computed.

All receives are posted at once, of each rank a few. Sends are started in the order in which they are given, a
few at a time: with every rank sending to the one before it first, then to the one before that, and so on,
what a rank receives comes in the order rank + 1, rank + 2, ..., each at the full rate of its link, and not
everything at the end.

Rows may also be packed, and unpacked, in pieces, in a few rooms (see ``pieces.py``). Those that are unpacked
are received in the order in which their ranks are given, as room is there. No rank waits for another in a
circle: in the order above, a piece waits for those that come earlier on either rank. Nor do several exchanges
at a time: whatever a rank waits for, it drives all of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any

from distgnn import progress
from distgnn.arrays.backend import DONE
from distgnn.arrays.tuning import TUNING
from distgnn.comm.pieces import Piece, Pieces, parts
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
        in_pieces: what travels has two dimensions, and is cut into pieces of rows. All ranks say so, or none.
        rooms: memory for :class:`Pieces`, each room for any of them. They are sent or received, not both:
            what is received would keep the rooms that what is sent waits for.
    """

    def __init__(
        self, comm: Wires, receives: Sequence[tuple[int, Array]], matrix: str, overlap: bool = True,
        operation: str = "alltoallv", narrow: bool = False, charged: bool = False, in_pieces: bool = False,
        rooms: Sequence[Array] = (),
    ) -> None:  # fmt: skip
        self.comm, self.overlap, self.narrow = comm, overlap, narrow
        self.in_pieces, self.rooms = in_pieces, [*rooms]
        self.tag = comm.reserve_tags(1)
        self.flight = comm.flight(operation, matrix, self._send_next)
        # what is still to be sent, a message or the rows of pieces, to whom, and what follows
        self.queue: deque[tuple[Any, int, Callable[[], None]]] = deque()
        self.sending = 0
        self.unpacked: deque[tuple[int, _Delivery, deque[slice]]] = deque()  # by source, pieces to receive
        self.at_once: dict[int, Piece] = {}  # by source, what is unpacked in one piece
        receives = [(source, self._laid(array, source)) for source, array in receives if array.size]
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
        progress.register(self.flight.drive, in_waits=True)

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
        """Send a contiguous array, or :class:`Pieces`; what they read stays until the exchange is over."""
        if not array.size:
            return
        array = self._laid(array)
        self._tell(array)
        if isinstance(array, Pieces):
            self.queue.append(((array, deque(array.cuts())), destination, self._sent))
        else:
            wire = self.comm.wire(array, self.narrow)
            filled = self.comm.fill(wire, array.reshape(-1), self.comm.backend.mark())
            self.sent.append((array, wire))
            self.flight.after(filled, partial(self._enqueue, wire, array, destination))
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
        sources = [source for source in sources if source in self.deliveries]
        wanted = [self.deliveries[source] for source in sources]
        self.flight.until(lambda: not any(delivery.missing for delivery in wanted))
        self.flight.waited(sum(delivery.nbytes for delivery in wanted))
        for delivery in wanted:
            self.comm.backend.follow(delivery.copied)
        self._unpack_at_once(sources)

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
        return _Delivery(array, self._parts(array), self)

    def _receive(self) -> None:
        for source, delivery in self.deliveries.items():
            if isinstance(delivery.array, Pieces):
                self.unpacked.append((source, delivery, deque(delivery.array.cuts())))
            for message in islice(delivery.messages, TUNING.exchange_sends):
                self._receive_message(message, source, delivery)
        self._receive_pieces()

    def _receive_message(self, message: Array, source: int, delivery: _Delivery) -> None:
        self.flight.receive(message, source, self.tag, partial(self._received, source, delivery))

    def _receive_pieces(self) -> None:
        """Receive the next pieces, as many as there are rooms."""
        while self.unpacked and self.rooms:
            source, delivery, cuts = self.unpacked[0]
            piece = self._piece(delivery.array, cuts.popleft())
            piece.wire = self.comm.wire(piece.array, self.narrow)
            if not cuts:
                self.unpacked.popleft()
            for message in [*self.comm.countable(piece.wire)]:
                piece.left += 1
                self.flight.receive(message, source, self.tag, partial(self._unpack, piece, delivery))

    def _unpack(self, piece: Piece, delivery: _Delivery) -> None:
        piece.left -= 1
        if piece.left:
            return
        if self.comm.apart(piece.wire, piece.array):
            self.comm.unwire(piece.wire, piece.array.reshape(-1), self.read)
            self.comm.release(piece.wire)
        piece.pieces.move(piece.rows, piece.array)
        self.rooms.append(piece.room)
        self._receive_pieces()
        self._landed(delivery)

    def _parts(self, array: Array) -> Callable[[Array], Iterator[Array]]:
        """Return how the wire of an array is cut into messages, alike where it is sent and received."""
        if not self.in_pieces:
            return self.comm.countable
        whole = partial(parts, width=array.shape[1])
        return lambda wire: chain.from_iterable(map(self.comm.countable, whole(wire)))

    def _piece(self, pieces: Pieces, rows: slice) -> Piece:
        """Return a piece in the smallest of the rooms that has room for it."""
        shape = rows.stop - rows.start, pieces.shape[1]
        size = shape[0] * shape[1]
        fitting = [number for number, room in enumerate(self.rooms) if room.size >= size]
        room = self.rooms.pop(min(fitting, key=lambda number: self.rooms[number].size))
        return Piece(pieces, rows, room, room[:size].reshape(shape))

    def _laid(self, array: Any, source: int = -1) -> Any:
        """Return pieces that are not packed, or unpacked, in turn as an array, packed if it is sent."""
        if self.in_pieces or not isinstance(array, Pieces):
            return array
        piece = self._piece(array, slice(0, array.shape[0]))
        if source < 0:
            array.move(piece.rows, piece.array)
        else:
            self.at_once[source] = piece
        return piece.array

    def _unpack_at_once(self, sources: Iterable[int]) -> None:
        for piece in [self.at_once.pop(source) for source in sources if source in self.at_once]:
            piece.pieces.move(piece.rows, piece.array)

    def _enqueue(self, wire: Array, array: Array, destination: int) -> None:
        self.queue.extend((message, destination, self._sent) for message in self._parts(array)(wire))

    def _release(self) -> None:
        """Release the copies, those included that nobody waited for."""
        for delivery in self.deliveries.values():
            self.comm.backend.follow(delivery.copied)
            if delivery.wire is not None and self.comm.apart(delivery.wire, delivery.array):
                self.comm.release(delivery.wire, delivery.copied)
        for array, wire in self.sent:
            if self.comm.apart(wire, array):
                self.comm.release(wire)

    def _received(self, source: int, delivery: _Delivery) -> None:
        if (message := next(delivery.messages, None)) is not None:
            self._receive_message(message, source, delivery)
        if delivery.missing == 1 and self.comm.apart(delivery.wire, delivery.array):
            delivery.copied = self.comm.unwire(delivery.wire, delivery.array.reshape(-1), self.read)
        self._landed(delivery)

    def _landed(self, delivery: _Delivery) -> None:
        """Note that a message, or a piece, is there."""
        delivery.missing -= 1
        if not delivery.missing:
            self.flight.landed(delivery.posted, delivery.nbytes)

    def _send_next(self) -> None:
        while self.sending < TUNING.exchange_sends and self._packed():
            message, destination, sent = self.queue.popleft()
            self.sending += 1
            self.flight.send(message, destination, self.tag, sent)

    def _packed(self) -> bool:
        """Pack rows if they are next and there is room for them; tell whether there is a message to send."""
        if not self.queue or not isinstance(self.queue[0][0], tuple):
            return bool(self.queue)
        (pieces, cuts), destination, _ = self.queue[0]
        if not self.rooms:
            return False
        piece = self._piece(pieces, cuts.popleft())
        pieces.move(piece.rows, piece.array)
        piece.wire = self.comm.wire(piece.array, self.narrow)
        self.comm.fill(piece.wire, piece.array.reshape(-1), DONE)
        if not cuts:
            self.queue.popleft()
        messages = [*self.comm.countable(piece.wire)]
        piece.left = len(messages)
        sent = partial(self._piece_sent, piece)
        self.queue.extendleft((message, destination, sent) for message in reversed(messages))
        return True

    def _sent(self) -> None:
        self.sending -= 1

    def _piece_sent(self, piece: Piece) -> None:
        self._sent()
        piece.left -= 1
        if not piece.left:
            if self.comm.apart(piece.wire, piece.array):
                self.comm.release(piece.wire)
            self.rooms.append(piece.room)


class _Delivery:
    """Numbers that one rank sends, on their way to this rank.

    Attributes:
        array: where the numbers end up, or pieces.
        wire: what MPI receives into, but for pieces; messages: its parts that are still to be received.
        missing: messages, or pieces, that are still to come.
        copied: the mark of the copy from ``wire`` to ``array``.
    """

    def __init__(
        self, array: Array, cut: Callable[[Array], Iterator[Array]], exchange: Exchange
    ) -> None:  # fmt: skip
        comm, self.array, self.copied = exchange.comm, array, DONE
        self.nbytes = comm.wire_bytes(array, exchange.narrow)
        self.messages: Iterator[Array] = iter(())
        if isinstance(array, Pieces):
            self.wire: Array = None
            self.missing = len(array.cuts())
        else:
            self.wire = comm.wire(array, exchange.narrow)
            self.missing, self.messages = sum(1 for _ in cut(self.wire)), cut(self.wire)
        self.posted = time.perf_counter()

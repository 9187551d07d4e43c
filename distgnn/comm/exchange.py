"""An all-to-allv of which every part can be used as soon as it is there, while something else is computed.

All receives are posted at once. Sends are started in the order in which they are given, a few at a time: with
every rank sending to the one before it first, then to the one before that, and so on, what a rank receives
comes in the order rank + 1, rank + 2, ..., each at the full rate of its link, and not everything at the end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from distgnn import ledger, progress
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm

Array = Any

_TAGS = 32768  # MPI promises as many


class Exchange:
    """One exchange, from all ranks of ``comm`` together; a context, at the end of which everything has been
    sent and received.

    Args:
        comm: the group.
        receives: (rank, contiguous array to receive into), at most one of each rank, which sends as many
            elements. No message is sent of none.
        overlap: go on while whoever uses a part computes. Otherwise everything is there before the first part
            is used.
    """

    def __init__(self, comm: Comm, receives: Sequence[tuple[int, Array]], overlap: bool = True) -> None:
        self.comm, self.overlap = comm, overlap
        self.tag = comm.reserve_tags(1) % _TAGS
        self.requests: list[MPI.Request] = []
        # of each request: the part it receives a piece of, None for a send
        self.owners: list[_Part | None] = []
        self.queue: deque[tuple[Array, int]] = deque()  # pieces still to be sent, and to whom
        self.sending = 0
        receives = [(source, array) for source, array in receives if array.size]
        comm.charge_alltoallv([array for _, array in receives])
        comm.backend.synchronize()  # kernels may still read what is received into
        self.parts = {source: self._receive(source, array) for source, array in receives}

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self._abandon()

    def send(self, array: Array, destination: int) -> None:
        """Send a contiguous array, which must stay as it is until the exchange is over. Not in the order of
        anything received.
        """
        if array.size:
            self.comm.backend.synchronize()  # MPI knows nothing of the stream that computes it
            self.queue.extend(
                (piece, destination) for piece in self.comm.pieces(self.comm.wire(array, send=True))
            )
            self._drive()

    def wait(self, sources: Iterable[int]) -> None:
        """Until what these ranks send is there, where products read it."""
        parts = [self.parts[source] for source in sources if source in self.parts]
        self._until(lambda: not any(part.missing for part in parts))
        for part in parts:
            self.comm.unwire(part.wire, part.array)

    def finish(self) -> None:
        """Until everything is sent and received."""
        self._until(lambda: not (self.requests or self.queue))

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Around computations: with overlap, they drive the messages; without, those are all through before."""
        if not self.overlap:
            self.finish()
        elif self.requests or self.queue:
            progress.register(self._drive)
        try:
            yield
        finally:
            progress.unregister(self._drive)

    def _receive(self, source: int, array: Array) -> _Part:
        part = _Part(array, self.comm.wire(array, send=False))
        for piece in self.comm.pieces(part.wire):
            self.requests.append(self.comm.start_receive(piece, source, self.tag))
            self.owners.append(part)
            part.missing += 1
        return part

    def _until(self, done: Callable[[], bool]) -> None:
        """Drive this exchange, and all else that is under way, until something is the case."""
        if done():
            return
        with ledger.timed("comm", "alltoallv", self.comm.name):
            progress.wait(done, self._advance)

    def _drive(self) -> None:
        with ledger.timed("comm", "alltoallv", self.comm.name):
            self._advance()

    def _advance(self) -> bool:
        """See what has completed, and start the next sends. Has anything been completed?"""
        completed = MPI.Request.Testsome(self.requests) if self.requests else None
        if completed:
            for index in completed:
                self._complete(self.owners[index])
            left = sorted(set(range(len(self.requests))) - set(completed))
            self.requests, self.owners = [self.requests[i] for i in left], [self.owners[i] for i in left]
        while self.queue and self.sending < TUNING.exchange_sends:
            self.sending += 1
            self.requests.append(self.comm.start_send(*self.queue.popleft(), self.tag))
            self.owners.append(None)
        return bool(completed)

    def _complete(self, part: _Part | None) -> None:
        if part is None:
            self.sending -= 1
            return
        part.missing -= 1
        if not part.missing:
            ledger.flight("alltoallv", self.comm.name, part.posted, time.perf_counter(), part.wire.nbytes)

    def _abandon(self) -> None:
        """Whoever used the parts gave up: let go of what can be, and keep the memory of the rest, which MPI
        may still use.
        """
        for request, part in zip(self.requests, self.owners, strict=True):
            if part is not None:
                request.Cancel()
        _abandoned.append(self)


_abandoned: list[Exchange] = []


class _Part:
    """What one rank sends: the array it ends up in, what MPI receives into, and how many pieces are missing."""

    def __init__(self, array: Array, wire: Array) -> None:
        self.array, self.wire = array, wire
        self.missing, self.posted = 0, time.perf_counter()

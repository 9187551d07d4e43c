"""Messages at their worst: read late, delivered late, completed in any order, with delays on some ranks.

MPI may read what is sent until the send completes and may write what is received at any moment of its own,
but on one machine it does neither where messages are small. A :class:`LateComm` hands a send to MPI some
looks after ``Isend``. A receive comes into other memory; the caller's holds NaN until the receive is said to
be complete. Either is said some looks after it is. Code that uses memory too early goes wrong with any MPI.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

from distgnn import local
from mpi_helpers.communicators import TrackedComm

NOTHING = 0xFF  # each byte of an array that is being received: NaN, or -1


class Lateness:
    """Delays of messages on this rank, and errors found in their memory.

    Args:
        seed: of this rank's delays.
        looks: a send is handed over, and a message said to be complete, up to so many looks later.
        chance, seconds: of a sleep before a look or a product, and its length at most; on some ranks 0.

    Attributes:
        under_way: messages begun and not said to be complete; misused: whose memory was written meanwhile.
    """

    def __init__(self, seed: int = 0, looks: int = 0, chance: float = 0.0, seconds: float = 0.0) -> None:
        self.random, self.looks, self.seconds = random.Random(seed), looks, seconds
        self.chance = chance if self.random.random() < 0.5 else 0.0
        self.under_way = 0
        self.misused: list[str] = []

    def draw(self) -> int:
        """Draw the number of looks by which a message is late."""
        return self.random.randint(0, self.looks)

    def sleep(self) -> None:
        """Sleep, sometimes."""
        if self.random.random() < self.chance:
            time.sleep(self.random.uniform(0, self.seconds))


_lateness = Lateness()
_held: dict[tuple[int, int, int], deque[LateSend]] = {}  # by communicator, destination and tag: in order


class Late:
    """A message that MPI is given late, or that is said late to be complete."""

    @staticmethod
    def Testsome(requests: Sequence[Any]) -> list[int]:
        """Return the places of the complete requests, in any order."""
        _lateness.sleep()
        for sends in _held.values():
            if sends:
                sends[0].held -= 1
            while sends and sends[0].held < 0:
                sends.popleft().hand_over()
        order = _lateness.random.sample(range(len(requests)), len(requests))
        return [place for place in order if requests[place].complete()]


class LateSend(Late):
    """A send, which completes when MPI has been given it and has completed it, and a little later."""

    def __init__(self, comm: LateComm, array: np.ndarray, destination: int, tag: int) -> None:
        self.comm, self.array, self.place = comm, array, (destination, tag)
        self.content = zlib.crc32(array)
        self.held, self.untold = _lateness.draw(), _lateness.draw()
        self.request: MPI.Request | None = None
        _lateness.under_way += 1
        _held.setdefault((comm.py2f(), destination, tag), deque()).append(self)

    def hand_over(self) -> None:
        """Hand the message to MPI, now at the latest."""
        self._check()
        self.request = MPI.Intracomm.Isend(self.comm, self.array, *self.place)

    def complete(self) -> bool:
        """Look once."""
        if self.request is None or not self.request.Test():
            return False
        self.untold -= 1
        if self.untold >= 0:
            return False
        self._check()
        _lateness.under_way -= 1
        return True

    def Test(self) -> bool:
        """Look at this one alone, which MPI then has."""
        hand_over_all()
        return self.complete()

    def _check(self) -> None:
        before, self.content = self.content, zlib.crc32(self.array)
        if before != self.content:
            _lateness.misused.append(f"memory that was being sent to rank {self.place[0]} was written")


class LateReceive(Late):
    """A receive, whose array gets its numbers when it is said to be complete."""

    def __init__(self, comm: LateComm, array: np.ndarray, source: int, tag: int) -> None:
        self.bytes, self.source = array.reshape(-1).view(np.uint8), source
        self.bytes[...] = NOTHING
        self.room, self.untold = self.bytes.copy(), _lateness.draw()
        self.received = self.told = False
        self.status = MPI.Status()
        self.request = MPI.Intracomm.Irecv(comm, self.room, source, tag)
        _lateness.under_way += 1

    def complete(self) -> bool:
        """Look once."""
        if not self.received:
            self.received = self.request.Test(self.status)
        if self.received and not self.told:
            self.untold -= 1
            if self.untold < 0:
                self._deliver()
        return self.told

    def _deliver(self) -> None:
        if (self.bytes != NOTHING).any():
            _lateness.misused.append(f"memory that rank {self.source} was sending to was written")
        if not self.status.Is_cancelled():
            self.bytes[...] = self.room
        self.told = True
        _lateness.under_way -= 1

    def Cancel(self) -> None:
        self.request.Cancel()

    def Test(self) -> bool:
        return self.complete()


class LateCollective(Late):
    """A collective of MPI's. A look at it is one at all messages."""

    def __init__(self, request: MPI.Request) -> None:
        self.request, self.complete, self.Test = request, request.Test, request.Test


class LateComm(TrackedComm):
    """A communicator whose messages are late as :func:`late` says."""

    def Iallreduce(self, *arguments: Any) -> LateCollective:
        return LateCollective(super().Iallreduce(*arguments))

    def Isend(self, array: np.ndarray, destination: int, tag: int = 0) -> LateSend:
        return LateSend(self, array, destination, tag)

    def Irecv(self, array: np.ndarray, source: int, tag: int = 0) -> LateReceive:
        return LateReceive(self, array, source, tag)


def _after_what_is_held(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call that waits, so that MPI has all held messages before it."""

    def called(self: LateComm, *arguments: Any, **options: Any) -> Any:
        hand_over_all()
        return call(self, *arguments, **options)

    return called


_WAITING = (
    "Allgatherv", "Allreduce", "Barrier", "Bcast", "Dup", "Free", "Iallreduce", "Recv", "Reduce",
    "Reduce_scatter", "Send", "Split", "Split_type", "Ibarrier", "Ibcast", "Iallgatherv", "Ireduce",
    "Ireduce_scatter",
    "allgather", "alltoall", "bcast", "gather", "recv", "send",
)  # fmt: skip
for _name in _WAITING:
    setattr(LateComm, _name, _after_what_is_held(getattr(TrackedComm, _name)))


def hand_over_all() -> None:
    """Give MPI all that is held."""
    for sends in _held.values():
        while sends:
            sends.popleft().hand_over()
    _held.clear()


@contextmanager
def late(lateness: Lateness) -> Iterator[Lateness]:
    """Hold back messages of every :class:`LateComm`, and products, while the context lasts."""
    global _lateness

    def delayed(product: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            lateness.sleep()
            return product(*arguments, **options)

        return call

    products = {"spmm": delayed(local.spmm), "gemm": delayed(local.gemm)}
    before, _lateness = _lateness, lateness
    try:
        with mock.patch.multiple(local, **products):
            yield lateness
    finally:
        hand_over_all()
        _lateness = before

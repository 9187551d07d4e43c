"""NCCL's communicators, over messages of MPI: names, constants and signatures as CuPy has them.

A call is complete on return here; for the streams it is a piece of work as any other. While it waits for
other ranks, the host goes on driving what it has under way, as it would while a GPU waits.

Ranks that make different calls get an error, where NCCL would mix up numbers. No call returns before its
messages have been taken, as one may not on a GPU: calls on two communicators in different orders wait for
each other, which is an error after LIMIT seconds.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np

from cupy._memory import spans_at
from cupy._work import DEVICE

available = True
NCCL_UNIQUE_ID_BYTES = 128
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)
NCCL_INT8 = NCCL_CHAR = 0
NCCL_UINT8 = 1
NCCL_INT32 = NCCL_INT = 2
NCCL_UINT32 = 3
NCCL_INT64 = 4
NCCL_UINT64 = 5
NCCL_FLOAT16 = NCCL_HALF = 6
NCCL_FLOAT32 = NCCL_FLOAT = 7
NCCL_FLOAT64 = NCCL_DOUBLE = 8

_TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
_OPERATIONS: tuple[Any, ...] = (np.add, np.multiply, np.maximum, np.minimum)
_FIRST_TAG, _TAGS = 16384, 8192  # of MPI, for setting up and for numbers
LIMIT = 60.0

_created = itertools.count()
_group: list[Steps] | None = None
_depth = 0

Steps = Generator[None, None, None]
"""A call in three steps: everything begins to be sent, everything is received, everything is sent."""


def _mpi() -> Any:
    """Load MPI only when NCCL is used: CuPy is there without MPI, too."""
    from mpi4py import MPI

    return MPI


class NcclError(RuntimeError):
    """Error of NCCL."""


def get_version() -> int:
    return 22700


get_build_version = get_version


def get_unique_id() -> tuple[int, ...]:
    """Return an id with the rank of the world that made it, and the number of ids it made before."""
    number = [_mpi().COMM_WORLD.Get_rank() + 1, next(_created)]
    packed = np.array([*number, *[0] * (NCCL_UNIQUE_ID_BYTES // 4 - 2)], np.int32).view(np.int8)
    return tuple(packed.tolist())


def groupStart() -> None:
    global _group, _depth
    _depth += 1
    _group = [] if _group is None else _group


def groupEnd() -> None:
    global _group, _depth
    if _depth == 0 or _group is None:
        raise NcclError("NCCL_ERROR_INVALID_USAGE: groupEnd without groupStart")
    _depth -= 1
    if _depth == 0:
        calls, _group = _group, None
        _through(calls)


class NcclCommunicator:
    """The process as one rank of ``ndev``."""

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int) -> None:
        assert len(commId) == NCCL_UNIQUE_ID_BYTES
        origin, number = np.array(commId, np.int8).view(np.int32)[:2].tolist()
        self._rank, self._size, self._tag = rank, ndev, _FIRST_TAG + number % _TAGS
        world, origin = _mpi().COMM_WORLD, origin - 1
        if world.Get_rank() == origin:
            places = {rank: origin}
            for _ in range(ndev - 1):
                place, others_rank = _received(lambda: world.iprobe(tag=self._tag), self._tag)
                places[others_rank] = place
            self._places = [places[r] for r in range(ndev)]
            for place in self._places:
                if place != origin:
                    world.send(self._places, place, self._tag)
        else:
            world.send((world.Get_rank(), rank), origin, self._tag)
            self._places = _received(lambda: world.iprobe(origin, self._tag), self._tag, origin)
        self._tag += _TAGS
        self._requests: list[Any] = []
        self._calls = 0  # collective ones

    def destroy(self) -> None:
        self._places = []

    def abort(self) -> None:
        """Take back and throw away the messages of calls that were left."""
        self.destroy()
        world = _mpi().COMM_WORLD
        for request in self._requests:
            if request and not request.Test():
                request.Cancel()
        status = _mpi().Status()
        while (message := world.Improbe(tag=self._tag, status=status)) is not None:
            message.Recv(bytearray(status.Get_count()))  # no object: its sender may have let go of it

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def check_async_error(self) -> None:
        """Return without an error: there are none."""

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        own = _Numbers(sendbuf, count, datatype)
        out = _Numbers(recvbuf, count, datatype)
        to = dict.fromkeys(self._others(), own)
        self._call(
            f"allReduce {op}", to, own, out, stream, self._others(), lambda parts: self._reduced(op, parts)
        )

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        own = _Numbers(sendbuf, count, datatype)
        if self._rank != root:
            self._call(f"reduce {op} {root}", {root: own}, own, None, stream, [], lambda parts: None)
            return
        out = _Numbers(recvbuf, count, datatype)
        others, name = self._others(), f"reduce {op} {root}"
        self._call(name, {}, own, out, stream, others, lambda parts: self._reduced(op, parts))

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        assert count < 2**31, "CuPy has an int here"
        out, name = _Numbers(recvbuff, count, datatype), f"broadcast {root}"
        if self._rank == root:
            own, into = _Numbers(sendbuff, count, datatype), None if sendbuff == recvbuff else out
            to = dict.fromkeys(self._others(), own)
            self._call(name, to, own, into, stream, [], lambda parts: parts[root])
        else:
            self._call(name, {}, None, out, stream, [root], lambda parts: parts[root])

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self.broadcast(buff, buff, count, datatype, root, stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        own, out = _Numbers(sendbuf, recvcount * self._size, datatype), _Numbers(recvbuf, recvcount, datatype)
        parts = {rank: own.part(rank * recvcount, recvcount) for rank in range(self._size)}
        mine = parts.pop(self._rank)

        def result(received: Mapping[int, np.ndarray]) -> np.ndarray:
            return self._reduced(op, {**received, self._rank: mine.array})

        self._call(f"reduceScatter {op}", parts, own, out, stream, self._others(), result)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        own, out = _Numbers(sendbuf, count, datatype), _Numbers(recvbuf, count * self._size, datatype)
        to = dict.fromkeys(self._others(), own)

        def result(parts: Mapping[int, np.ndarray]) -> np.ndarray:
            return np.concatenate([parts[rank] for rank in range(self._size)])

        self._call("allGather", to, own, out, stream, self._others(), result)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        own = _Numbers(sendbuf, count, datatype)
        self._call("send", {peer: own}, own, None, stream, [], lambda parts: None)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        out = _Numbers(recvbuf, count, datatype)
        self._call("recv", {}, None, out, stream, [peer], lambda parts: parts[peer])

    def _others(self) -> list[int]:
        return [rank for rank in range(self._size) if rank != self._rank]

    def _reduced(self, op: int, parts: Mapping[int, np.ndarray]) -> np.ndarray:
        return functools.reduce(_OPERATIONS[op], [parts[rank] for rank in range(self._size)])

    def _call(
        self, name: str, sends: Mapping[int, _Numbers], own: _Numbers | None, out: _Numbers | None,
        stream: int, sources: list[int], result: Callable[[Mapping[int, np.ndarray]], np.ndarray | None],
    ) -> None:  # fmt: skip
        """Queue a call: what goes to whom; what is read; what is written; from whom something comes; and what
        is written, of everybody's numbers.
        """
        if not self._places:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: the communicator has ended")
        kind = name.partition(" ")[0]
        told = next(x for x in (out, own, *sends.values()) if x is not None)
        what: tuple[Any, ...] = ("move",) if kind in ("send", "recv") else (name, self._calls)
        self._calls += len(what) - 1
        what += told.count, told.dtype.name

        def steps() -> Steps:
            reads, writes = (x.spans if x is not None else [] for x in (own, out))
            DEVICE.counts["launches"] += 1
            DEVICE.launches[f"nccl {kind}"] += 1
            DEVICE.queue(f"nccl {kind}", stream, reads, writes)
            world = _mpi().COMM_WORLD
            requests = [
                world.issend((what, x.array.copy()), self._places[r], self._tag) for r, x in sends.items()
            ]
            self._requests = [one for one in self._requests if one] + requests
            parts = {} if own is None else {self._rank: own.array.copy()}
            yield
            for source in sources:
                place = self._places[source]
                its, parts[source] = _received(
                    lambda place=place: world.iprobe(place, self._tag), self._tag, place
                )
                if its != what:
                    raise NcclError(f"rank {self._rank} calls {what} where rank {source} calls {its}")
            made = result(parts)
            if out is not None and made is not None:
                out.array[...] = made
            yield
            _wait(lambda: _mpi().Request.testall(requests)[0])

        if _group is None:
            _through([steps()])
        else:
            _group.append(steps())


class _Numbers:
    """A number of values at an address."""

    def __init__(self, address: int, count: int, datatype: int) -> None:
        self.address, self.count, self.dtype = address, count, np.dtype(_TYPES[datatype])

    @property
    def array(self) -> np.ndarray:
        nbytes = self.count * self.dtype.itemsize
        return np.frombuffer((ctypes.c_char * nbytes).from_address(self.address), self.dtype)

    @property
    def spans(self) -> list[Any]:
        return spans_at(self.address, self.count * self.dtype.itemsize)

    def part(self, first: int, count: int) -> _Numbers:
        made = object.__new__(_Numbers)
        made.address, made.count, made.dtype = self.address + first * self.dtype.itemsize, count, self.dtype
        return made


def _through(calls: list[Steps]) -> None:
    """Run all calls of a group at once."""
    for _ in range(3):
        for call in calls:
            next(call, None)


def _received(there: Callable[[], bool], tag: int, source: int | None = None) -> Any:
    _wait(there)
    return _mpi().COMM_WORLD.recv(source=_mpi().ANY_SOURCE if source is None else source, tag=tag)


def _wait(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT

    def over() -> bool:
        if time.monotonic() > limit:
            raise NcclError(f"a call waits for other ranks for {LIMIT} s")
        return done()

    DEVICE.wait(over)

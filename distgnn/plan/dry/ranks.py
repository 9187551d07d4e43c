"""Ranks that are not there: communicators of a dry run, in which nothing travels and everything is counted.

They stand where one of mpi4py would, under the same groups, flights, relays, exchanges and sums, which charge
the ledger as ever. Messages of arrays without numbers arrive at once. Small Python objects decide what an
algorithm does, and so do the numbers of samplers, which are on the host: those really travel. :func:`run_all`
runs all ranks of a grid, one thread each, of which one goes on at a time, until it needs something of
another. What waits for each other in a circle is found at once. Where that would be too many ranks,
``absent.py`` takes all others to be like the one that runs.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial, reduce
from typing import Any, Generic, TypeVar

import numpy as np
from mpi4py import MPI

from distgnn import ledger, progress
from distgnn.plan.dry.shapes import ShapeArray

T = TypeVar("T")

_COMBINE = [(MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum)]


class Arrived:
    """A request that is complete."""

    @staticmethod
    def Testsome(requests: Sequence[Arrived]) -> list[int]:
        """List the places of the requests that are complete. Where none is, let other ranks go on."""
        complete = [index for index, request in enumerate(requests) if request.Test()]
        if not complete:
            requests[0].pause()
        return complete

    def pause(self) -> None:
        """Do nothing: it is complete."""

    def Test(self) -> bool:
        return True

    def Cancel(self) -> None:
        pass


class Awaited(Arrived):
    """A request for numbers, which are there when they have been sent.

    Args:
        pause: lets the other ranks go on.
    """

    def __init__(self, array: np.ndarray, mail: deque[np.ndarray], pause: Callable[[], None]) -> None:
        self.array, self.mail, self.cancelled = array, mail, False
        self.pause = pause  # type: ignore[method-assign]

    def Cancel(self) -> None:
        self.cancelled = True

    def Test(self) -> bool:
        if self.cancelled or not self.mail:
            return self.cancelled
        self.array[...] = self.mail.popleft()
        return True


class VirtualComm:
    """The methods of ``MPI.Intracomm`` in use, for arrays without numbers and small Python objects.

    ``_meet`` gives everybody's object, by rank; all else is made of it.

    Args:
        node: ranks of a node, which are consecutive; default: all.
    """

    def __init__(self, size: int, rank: int, node: int | None = None) -> None:
        self._size, self._rank, self.node = size, rank, node or size

    def Get_size(self) -> int:
        return self._size

    def Get_rank(self) -> int:
        return self._rank

    def _meet(self, thing: Any) -> list[Any]:
        raise NotImplementedError

    def Split(self, color: int = 0, key: int = 0) -> Any:
        raise NotImplementedError

    def Dup(self) -> Any:
        copy = self.Split(0, self._rank)
        copy.node = self.node
        return copy

    def Split_type(self, kind: int) -> Any:
        """Split by node."""
        return self.Split(self._rank // self.node, self._rank)

    def Free(self) -> None:
        pass

    # -- small objects ---------------------------------------------------------------------------------------

    def allgather(self, thing: T) -> list[T]:
        return self._meet(thing)

    def bcast(self, thing: T, root: int = 0) -> T:
        return self._meet(thing)[root]

    def alltoall(self, things: Sequence[T]) -> list[T]:
        return [row[self._rank] for row in self._meet(things)]

    def Barrier(self) -> None:
        self._meet(None)

    # -- arrays ----------------------------------------------------------------------------------------------

    def Irecv(self, array: Any, source: int, tag: int) -> Arrived:
        _without_numbers(array)
        return Arrived()

    def Isend(self, array: Any, destination: int, tag: int) -> Arrived:
        _without_numbers(array)
        return Arrived()

    def Recv(self, array: Any, source: int) -> None:
        self.Irecv(array, source, -1)

    def Send(self, array: Any, destination: int) -> None:
        self.Isend(array, destination, -1)

    def Bcast(self, array: Any, root: int) -> None:
        if not isinstance(array, ShapeArray):
            array[...] = self._meet(array.copy())[root]

    def Allgatherv(self, array: Any, into: Any) -> None:
        if not isinstance(array, ShapeArray):
            target, counts, places, _ = into
            for numbers, count, place in zip(self._meet(array.copy()), counts, places, strict=True):
                target[place : place + count] = numbers

    def Reduce_scatter(self, array: Any, into: Any, counts: Any, op: Any) -> None:
        _without_numbers(array)

    def Reduce(self, array: Any, into: Any, op: Any, root: int) -> None:
        _without_numbers(array if into is None else into)

    def Allreduce(self, place: Any, array: Any, op: Any) -> None:
        """Do nothing for an array without numbers; combine a few numbers of the host."""
        if not isinstance(array, ShapeArray):
            memory = array[0] if isinstance(array, list) else array  # or (memory, type)
            numbers = np.asarray(memoryview(memory))
            combine = next(ufunc for known, ufunc in _COMBINE if known == op)
            numbers[...] = reduce(combine, self._meet(numbers.copy()))

    def Iallreduce(self, place: Any, array: Any, op: Any) -> Arrived:
        self.Allreduce(place, array, op)
        return Arrived()

    def Ialltoall(self, numbers: np.ndarray, into: np.ndarray) -> Arrived:
        into[...] = self.alltoall([*numbers])
        return Arrived()


class Stuck(RuntimeError):
    """Ranks wait for others that will never come."""


def run_all(size: int, program: Callable[[Any], T], node: int | None = None) -> list[T]:
    """Run ``program(communicator)`` on all ranks of a grid of this size; return the results, by rank.

    ``node``: ranks of a node, which are consecutive; default: all.

    Raises:
        what the lowest failing rank raises; :class:`Stuck` where ranks wait for each other, or where one
        sends what nobody receives.
    """
    return _Stage(size, program, node).run()


class _Stage(Generic[T]):
    """The ranks' threads, of which one is on at a time; the next is the one that could go on the longest."""

    def __init__(self, size: int, program: Callable[[Any], T], node: int | None) -> None:
        self.size, self.program, self.node = size, program, node
        self.turns = [threading.Semaphore(0) for _ in range(size)]
        self.ready = deque(range(size))
        self.left = size  # ranks that have not ended
        self.over = threading.Semaphore(0)
        self.results: list[Any] = [None] * size
        self.errors: dict[int, BaseException] = {}
        self.stuck: str | None = None
        self.meetings: dict[Hashable, dict[int, tuple[int, Any]]] = {}  # by place: rank of the grid, object
        self.met: dict[int, list[Any]] = {}  # what a rank waited for
        self.sent: Counter[Hashable] = Counter()  # messages less those received
        self.mail: dict[Hashable, deque[np.ndarray]] = defaultdict(deque)  # numbers under way
        self.idle = 0  # ranks in a row that looked for numbers, and none came

    def run(self) -> list[T]:
        play = lambda rank: threading.Thread(target=self._play, args=(rank,), daemon=True)  # noqa: E731
        threads = list(map(play, range(self.size)))
        for thread in threads:
            thread.start()
        self._next()
        self.over.acquire()
        for thread in threads:
            thread.join()
        own = {rank: error for rank, error in self.errors.items() if not isinstance(error, Stuck)}
        if self.errors:
            raise min((own or self.errors).items())[1]
        if lost := [f"{count} of {message}" for message, count in self.sent.items() if count]:
            raise Stuck(f"messages that are not sent as they are received: {', '.join(lost[:5])}")
        return self.results

    def meet(self, key: Hashable, size: int, place: int, rank: int, thing: Any) -> list[Any]:
        """Return everybody's contribution, when all ``size`` ranks of a group have come to this meeting."""
        room = self.meetings.setdefault(key, {})
        room[place] = rank, thing
        self.idle = 0
        if len(room) < size:
            self._wait(rank)
            return list(self.met.pop(rank))
        things = [room[i][1] for i in range(size)]
        for i, (waiting, _) in sorted(room.items()):
            if i != place:
                self.met[waiting] = things
                self.ready.append(waiting)
        del self.meetings[key]
        return list(things)

    def count(self, route: tuple[Any, ...], array: Any, sent: int) -> None:
        """Count a message that is sent, or with -1 received."""
        message = (*route, array.nbytes)
        self.sent[message] += sent

    def pause(self, rank: int) -> None:
        """Let all others go on that can, while a rank waits for numbers."""
        self.idle += 1
        self.ready.append(rank)
        if self.idle > 2 * len(self.ready) and not self.stuck:
            self.stuck = f"ranks {sorted(self.ready)} wait for numbers that nobody sends"
        self._wait(rank)

    def _play(self, rank: int) -> None:
        self.turns[rank].acquire()
        try:
            if self.stuck:
                raise Stuck(self.stuck)
            with ledger.apart(), progress.apart():
                self.results[rank] = self.program(_OneOfAll(self, self.size, rank, rank, (), self.node))
        except BaseException as error:
            self.errors[rank] = error
        self.left, self.idle = self.left - 1, 0
        self._next()

    def _wait(self, rank: int) -> None:
        """Let others go on until this rank can."""
        self._next()
        self.turns[rank].acquire()
        if self.stuck:
            raise Stuck(self.stuck)

    def _next(self) -> None:
        if not self.left:
            self.over.release()
            return
        if not self.ready:
            where = {rank for room in self.meetings.values() for rank, _ in room.values()}
            self.stuck = self.stuck or f"ranks {sorted(where)} wait for others that do not come"
            self.ready.extend(sorted(where))
            self.meetings.clear()
        self.turns[self.ready.popleft()].release()


class _OneOfAll(VirtualComm):
    """A rank of a group whose other ranks run as well.

    Args:
        world: this rank's number in the grid; name: of the group, the same on all of its ranks.
    """

    def __init__(
        self, stage: _Stage[Any], size: int, rank: int, world: int, name: tuple[Any, ...],
        node: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size, rank, node)
        self.stage, self.world, self.name, self.meetings = stage, world, name, 0

    def _meet(self, thing: Any) -> list[Any]:
        self.meetings += 1
        return self.stage.meet((self.name, self.meetings), self._size, self._rank, self.world, thing)

    def Split(self, color: int = 0, key: int = 0) -> _OneOfAll:
        asked = self._meet((color, key))
        members = sorted((order, rank) for rank, (other, order) in enumerate(asked) if other == color)
        name = (*self.name, self.meetings, color)
        return _OneOfAll(self.stage, len(members), members.index((key, self._rank)), self.world, name)

    def Irecv(self, array: Any, source: int, tag: int) -> Arrived:
        route = self.name, source, self._rank, tag
        self.stage.count(route, array, -1)
        if isinstance(array, ShapeArray):
            return Arrived()
        return Awaited(array, self.stage.mail[route], partial(self.stage.pause, self.world))

    def Isend(self, array: Any, destination: int, tag: int) -> Arrived:
        route = self.name, self._rank, destination, tag
        self.stage.count(route, array, +1)
        if not isinstance(array, ShapeArray):
            self.stage.mail[route].append(array.copy())
            self.stage.idle = 0
        return Arrived()


def _without_numbers(array: Any) -> None:
    if not isinstance(array, ShapeArray):
        raise TypeError(f"numbers do not travel like this in a dry run; got {type(array).__name__}")

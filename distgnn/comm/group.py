"""Moving arrays between ranks: staging, stream order, contiguity and large counts.

A :class:`Comm` is a group of ranks. Its methods take and return arrays of the group's backend, are collective
over the group, block until their result may be used, and charge the ledger what their bandwidth-optimal form
moves (see ``ledger.py``), on the ``matrix`` that they are told.

Where the arrays are on a GPU there are two ways, decided once per process in ``transport.py``: a CUDA-aware
MPI is given device pointers, any other MPI pinned host copies. Device arrays never enter a reduction of MPI,
which would stage them through pageable host memory. Large ones travel from rank to rank and are added up in
the order of the ranks, on the device or as host copies: both ways give the same bits. Of the others, MPI sums
host copies. With ``DISTGNN_NCCL=1``, NCCL sums and gathers what would need host copies (see ``nccl.py``). The
ledger charges the same in all cases.

MPI knows nothing of streams. Memory that it is given is ready when a mark says so, which is looked at while
messages are driven: the device goes on computing. Copies, and sums on the device, run on streams beside the
one that computes, which waits for them by events. The host waits for kernels in blocking collectives only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from distgnn import ledger, progress
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import DONE, Backend, Mark
from distgnn.arrays.tuning import TUNING
from distgnn.comm.agree import Facts, agree, together
from distgnn.comm.flight import Flight
from distgnn.comm.links import Derive, Links
from distgnn.comm.nccl import Nccl
from distgnn.comm.staging import staging
from distgnn.comm.transport import direct
from distgnn.layout import partition

T = TypeVar("T")

_OPERATIONS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


class Comm:
    """A group of ranks that exchange arrays of one backend.

    Args:
        mpi: the mpi4py communicator of the group.
        backend: where the arrays live.
        name: the group's name in the ledger (grid axes, as a rule).
        ranks: who they are in the grid, for the ledger; default: all of it.
        connect: have NCCL connect the ranks; collective, with no messages under way.
        links: the communicators of the grid that the group belongs to, which are replaced after an error;
            derive: makes the group's of the grid's, and stands for ``mpi``.

    Attributes:
        direct: MPI is given the arrays themselves, not host copies.
        moves: whether messages must be sent at all, which are charged in any case.
        nccl: NCCL's communicator, where it sums and gathers.
    """

    #: The largest count handed to MPI in one call; longer arrays travel in several, so any MPI will do.
    count_limit = 2**31 - 1

    def __init__(
        self, mpi: MPI.Intracomm | None, backend: Backend, name: str = "world", connect: bool = False,
        ranks: Sequence[int] | None = None, links: Links | None = None, derive: Derive | None = None,
    ) -> None:  # fmt: skip
        self.backend, self.name, self.links = backend, name, links
        self.nccl: Nccl | None = None
        self._by_nccl = connect
        if links is None or derive is None:
            self._connect(mpi)
        else:
            links.join(derive, self._connect)
        self.rank, self.size = self._mpi.Get_rank(), self._mpi.Get_size()
        self.ranks = range(self.size) if ranks is None else ranks
        self._peers = tuple(self.ranks[other] for other in self.others())
        self.direct = direct(backend)
        self.moves: bool = getattr(self._mpi, "moves", True)

    def _connect(self, mpi: Any) -> None:
        """Use this communicator from now on."""
        self._mpi, self._tags = mpi, 0
        if self.nccl is not None:
            self.nccl.abort()
        self.nccl = Nccl(mpi, self.backend) if self._by_nccl and mpi.Get_size() > 1 else None

    @property
    def mpi(self) -> Any:
        """The group's mpi4py communicator. Collective over the grid after an error, see :class:`Links`."""
        if self.links is not None and self.links.broken:
            self.links.renew()
        return self._mpi

    def fail(self) -> None:
        """Note that an operation of this group has failed on this rank."""
        if self.links is not None:
            self.links.fail()

    def free(self) -> None:
        """Give the communicators back. Collective."""
        if self.nccl is not None:
            self.backend.synchronize()
            self.nccl.free()
        self._mpi.Free()

    # -- collectives on arrays -------------------------------------------------------------------------------

    def bcast(self, array: Any, root: int, words: int | None = None, matrix: str = "") -> Any:
        """``array`` of rank ``root``, in place on every rank; all pass the same shape and dtype. Returns it.

        ``words`` is the number of payload elements where ``array`` is a packed buffer of bytes.
        """
        away = self.rank != root
        self.charge_whole("bcast", matrix, array, root, words)
        if self.by_nccl(array):
            self._queued("bcast", matrix, lambda nccl: nccl.bcast(self._flat(array), root))
        elif self.size > 1:
            self._call("bcast", matrix, (array, not away, away), lambda part: self.mpi.Bcast(part, root))
        return array

    def allreduce(self, array: Any, op: str = "sum", matrix: str = "", driving: bool = False) -> Any:
        """Element-wise ``sum``, ``max`` or ``min``, in place, bitwise equal on every rank. Returns it.

        ``driving``, the same on all ranks: other messages may be under way and are driven meanwhile; a rank
        that waits here would else keep from others what they need to get here.
        """
        self.charge_share("allreduce", matrix, array)
        if self.by_nccl(array):
            self._queued("allreduce", matrix, lambda nccl: nccl.allreduce(self._flat(array), op))
        elif self.size > 1 and op == "sum" and self._sums_straight(array):
            bounds = partition(array.size, self.size)
            self._sum("allreduce", matrix, [(array, True, True)], bounds, self.add_and_share)
        elif self.size > 1:

            def call(part: Any) -> None:
                if driving:
                    with self.flight("allreduce", matrix) as flight:
                        flight.follow(flight.mpi.Iallreduce(MPI.IN_PLACE, part, _OPERATIONS[op]))
                        flight.until(lambda: not flight.requests)
                else:
                    self.mpi.Allreduce(MPI.IN_PLACE, part, _OPERATIONS[op])

            self._call("allreduce", matrix, (array, True, True), call, reduction=True)
        return array

    def allgather_rows(self, block: Any, parts: np.ndarray, out: Any = None, matrix: str = "") -> Any:
        """Row blocks put together: rank ``i`` gives rows ``parts[i]:parts[i+1]``, every rank gets all
        ``parts[-1]`` rows, in ``out`` where that is given and there is more than one rank.
        """
        row = math.prod(block.shape[1:])
        expected = int(parts[self.rank + 1] - parts[self.rank])
        if block.shape[0] != expected:
            raise ValueError(f"allgather: {block.shape[0]} rows given where the partition says {expected}")
        words, sizes = (int(parts[-1]) - expected) * row, np.diff(parts).tolist()
        peers = {self.ranks[other]: sizes[other] * row for other in self.others()}
        self._charge("allgather", matrix, words, block.itemsize, self.size - 1, peers=peers)
        if self.size == 1:
            return block
        whole = self.backend.empty((int(parts[-1]), *block.shape[1:]), block.dtype) if out is None else out
        bounds = parts * row
        if self.by_nccl(whole):
            source, target = self._flat(block), self._flat(whole)
            self._queued("allgather", matrix, lambda nccl: nccl.allgather(source, target, bounds))
            return whole
        arrays = (block, True, False), (whole, False, True)
        with self._wires("allgather", matrix, *arrays) as (source, target):
            if target.size <= self.count_limit:
                places = np.diff(bounds).tolist(), bounds[:-1].tolist()
                self.mpi.Allgatherv(source, [target, *places, None])
                return whole
            target[bounds[self.rank] : bounds[self.rank + 1]] = source
            self.backend.synchronize()  # where the target is on a device
            for rank in range(self.size):
                for part in self.countable(target[bounds[rank] : bounds[rank + 1]]):
                    self.mpi.Bcast(part, rank)
        return whole

    def reduce_scatter_rows(self, array: Any, parts: np.ndarray, out: Any = None, matrix: str = "") -> Any:
        """Sum over the group, of which rank ``i`` keeps rows ``parts[i]:parts[i+1]``, in ``out`` where that
        is given. ``array`` is left as scratch.
        """
        if array.shape[0] != parts[-1]:
            raise ValueError(f"reduce_scatter: {array.shape[0]} rows given, the partition covers {parts[-1]}")
        self.charge_share("reduce_scatter", matrix, array)
        if self.size == 1 and out is None:
            return array
        rows = array[parts[self.rank] : parts[self.rank + 1]]
        mine = self.backend.empty(rows.shape, array.dtype) if out is None else out
        bounds = parts * math.prod(array.shape[1:])
        if self.by_nccl(array):
            flat, part = self._flat(array), self._flat(mine)
            self._queued("reduce_scatter", matrix, lambda nccl: nccl.reduce_scatter(flat, part, bounds))
            return mine
        if self.size == 1:
            mine[...] = rows
        elif self._sums_straight(array):
            arrays = [(array, True, False), (mine, False, True)]
            self._sum("reduce_scatter", matrix, arrays, bounds, self.add)
        else:
            self._reduce_scatter(array, mine, bounds, matrix)
        return mine

    # -- point to point, between this rank and one other -----------------------------------------------------

    def send(self, array: Any, destination: int, matrix: str = "") -> None:
        """Send ``array`` to one rank, which must call :meth:`receive` with the same shape and dtype."""
        self._charge("send", matrix, 0, 0, 0)
        self._call("send", matrix, (array, True, False), lambda part: self.mpi.Send(part, destination))

    def receive(self, array: Any, source: int, matrix: str = "") -> Any:
        """Receive into ``array`` from one rank. Returns ``array``."""
        self._charge("receive", matrix, array.size, array.itemsize, 1, peers=(self.ranks[source],))
        self._call("receive", matrix, (array, False, True), lambda part: self.mpi.Recv(part, source))
        return array

    # -- for what is under way: relays of panels, exchanges and sums ----------------------------------------

    def reserve_tags(self, count: int) -> int:
        """The first of ``count`` message tags that nobody else uses. All ranks must ask alike."""
        if self.links is not None and self.links.broken:
            self.links.renew()
        first = self._tags
        self._tags += count
        return first

    def by_nccl(self, array: Any) -> bool:
        """Whether NCCL sums and gathers this array."""
        return self.nccl is not None and self.nccl.takes(array)

    def flight(self, operation: str, matrix: str, step: Callable[[], object] = lambda: None) -> Flight:
        """The messages of an operation in this group, see :class:`Flight`."""
        computed = self.backend.mark if self.backend.on_device else None
        check = self.links.check if self.links is not None else lambda: None
        return Flight(self.mpi, operation, self.name, matrix, step, computed, self.fail, check)

    def wire(self, array: Any) -> Any:
        """What MPI is given for ``array``: its numbers in one dimension, or pinned host memory for them."""
        flat = self._flat(array)
        return flat if self.direct else staging(self.backend).borrow(flat.shape, flat.dtype)

    def fill(self, wire: Any, array: Any, computed: Mark) -> Mark:
        """Have what is in ``array``, of one dimension, in its wire, or the same part of both. Returns the
        mark from which on MPI may read the wire.
        """
        return computed if self.direct else self.backend.carry(array, wire, computed)

    def unwire(self, wire: Any, array: Any, read: Mark) -> Mark:
        """Bring what was received into ``wire`` to ``array``, once that has been ``read``. Returns the mark
        that those must follow who use it.
        """
        return DONE if self.direct else self.backend.carry(wire, array, read)

    def release(self, wire: Any, copied: Mark = DONE) -> None:
        """MPI has done with a wire, and so has, at a mark, who copies it."""
        if not self.direct:
            staging(self.backend).give_back(wire, copied)

    def countable(self, wire: Any) -> Iterator[Any]:
        """``wire`` in parts that MPI can count; one, possibly empty, as a rule."""
        for start in range(0, max(1, wire.size), self.count_limit):
            yield wire[start : start + self.count_limit]

    def add(
        self, flight: Flight, parts: Mapping[int, Any], received: Mapping[int, Any], tag: int
    ) -> Iterator[None]:
        """Send the part of every other rank in ``parts`` to it, and add up what all ranks have of the own
        part, in place and in the order of the ranks. ``received``: rooms for what the others send, left as
        scratch. Yields while something must be waited for.
        """
        yield from flight.swap(received, {r: part for r, part in parts.items() if r != self.rank}, tag)
        if received:
            own = parts[self.rank]
            numbers = {**received, self.rank: own}
            total, on = numbers[0], backends.of(own)
            with on.beside("sums"):
                for rank in range(1, self.size):
                    into = own if rank == self.size - 1 or self.rank == 0 else total
                    total = np.add(total, numbers[rank], out=into)
                added = on.mark()
            while not added():
                yield

    def add_and_share(
        self, flight: Flight, parts: Mapping[int, Any], received: Mapping[int, Any], tag: int
    ) -> Iterator[None]:
        """:meth:`add` for the parts of all ranks, then everybody's sums in all parts: an all-reduce. Two
        ranks with two numbers each:

            rank 0     a0 a1        a0+b0 a1           a0+b0 a1+b1
            rank 1     b0 b1        b0    a1+b1        a0+b0 a1+b1
                     reduce-scatter          all-gather
        """
        yield from self.add(flight, parts, received, tag)
        own = parts[self.rank]
        yield from flight.swap({rank: parts[rank] for rank in received}, dict.fromkeys(received, own), tag)

    def others(self) -> list[int]:
        """The other ranks, the next one first, as an exchange brings what they send."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def charge_whole(
        self, operation: str, matrix: str, array: Any, root: int, words: int | None = None,
        shape: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Charge a bcast or reduce of ``array``, of so many ``words``, on all ranks but the ``root``.
        ``shape``: of the step (see :class:`ledger.Step`).
        """
        words, away = array.size if words is None else words, self.rank != root
        size, peers = _ratio(array.nbytes, words), (self.ranks[root],)
        self._charge(operation, matrix, away * words, size, int(away), shape, peers)

    def charge_share(self, operation: str, matrix: str, array: Any, shape: tuple[int, ...] = ()) -> None:
        """Charge a reduce_scatter of ``array``, or an allreduce, which is that and an all-gather."""
        messages = (2 if operation == "allreduce" else 1) * (self.size - 1)
        words = _ratio(messages * array.size, self.size)
        self._charge(operation, matrix, words, array.itemsize, messages, shape, self._peers)

    def charge_alltoallv(self, receives: Sequence[tuple[int, Any]], matrix: str) -> None:
        """Charge an all-to-allv in which this rank receives these arrays, each from the rank before it."""
        peers = {self.ranks[source]: array.size for source, array in receives}
        words, nbytes = sum(peers.values()), sum(array.nbytes for _, array in receives)
        self._charge("alltoallv", matrix, words, _ratio(nbytes, words), len(receives), peers=peers)

    # -- small Python objects, for setup and reports (not charged: no algorithm moves its data this way) -----

    def barrier(self) -> None:
        """Wait until all ranks of the group are here."""
        self.mpi.Barrier()

    def share(self, thing: T, root: int = 0) -> T:
        """A small Python object of rank ``root`` on every rank."""
        return self.mpi.bcast(thing, root)

    def gather_objects(self, thing: T) -> list[T]:
        """Everybody's small Python object, by rank, on every rank."""
        return self.mpi.allgather(thing)

    def lowest(self, number: int) -> int:
        """The lowest of everybody's numbers, on every rank."""
        lowest = np.array(number, np.int64)
        if self.size > 1:
            self.mpi.Allreduce(MPI.IN_PLACE, lowest, MPI.MIN)
        return int(lowest)

    def swap_objects(self, things: Sequence[T]) -> list[T]:
        """``things[r]`` goes to rank ``r``; returns what every rank had for this one, by rank."""
        return self.mpi.alltoall(things)

    def together(self) -> AbstractContextManager[None]:
        """Errors inside are raised on every rank, see :func:`agree.together`. The region must not
        communicate.
        """
        return together(self.mpi)

    def agree(self, facts: Facts) -> None:
        """DisagreementError on every rank unless all give equal facts, see :func:`agree.agree`."""
        agree(self.mpi, facts)

    # -- inside ----------------------------------------------------------------------------------------------

    def _charge(
        self, operation: str, matrix: str, words: Fraction | int, itemsize: Fraction | int, messages: int,
        shape: tuple[int, ...] = (), peers: ledger.Peers | Mapping[int, int] = (),
    ) -> None:  # fmt: skip
        told: Any = {"words": words, "itemsize": itemsize, "messages": messages, "shape": shape}
        ledger.charge("comm", operation, self.name, matrix, peers=peers, **told)

    def _flat(self, array: Any) -> Any:
        if not array.flags.c_contiguous:
            got = f"{array.shape} with strides {array.strides}"
            raise ValueError(f"arrays that travel must be C-contiguous; got {got}")
        return array.reshape(-1)

    @contextmanager
    def _wires(
        self, operation: str, matrix: str, *arrays: tuple[Any, bool, bool], reduction: bool = False
    ) -> Iterator[list[Any]]:
        """What MPI is given for (array, is it sent, is it received) each; timed once, to the last byte.

        Waits for the stream, which MPI knows nothing of; for receive buffers too, as a queued kernel may
        still read their old contents, unless MPI receives into a copy.
        """
        flat = [self._flat(array) for array, _, _ in arrays]
        staged = not self.direct or (reduction and self.backend.on_device)
        if not staged or any(send for _, send, _ in arrays):
            self.backend.synchronize()
        with ledger.timed("comm", operation, self.name, matrix):
            if not staged:
                yield flat
            else:
                with self._copies(flat, arrays) as copies:
                    yield copies
        ledger.waited(operation, self.name, matrix)

    @contextmanager
    def _copies(
        self, flat: Sequence[Any], arrays: Sequence[tuple[Any, bool, bool]]
    ) -> Iterator[list[np.ndarray]]:
        """Pinned host copies, the received ones of which are brought to the device without waiting for it."""
        on, read, memory = self.backend, self.backend.mark(), staging(self.backend)
        copies = [memory.borrow(array.shape, array.dtype) for array in flat]
        for copy, array, (_, send, _) in zip(copies, flat, arrays, strict=True):
            if send:
                progress.watch(on.carry(array, copy, DONE))
        yield copies
        for copy, array, (_, _, receive) in zip(copies, flat, arrays, strict=True):
            brought = on.carry(copy, array, read) if receive else DONE
            on.follow(brought)
            memory.give_back(copy, brought)

    def _queued(self, operation: str, matrix: str, queue: Callable[[Nccl], Mark]) -> None:
        """A collective of NCCL, for which the device waits and the host does not."""
        assert self.nccl is not None
        with ledger.timed("comm", operation, self.name, matrix, synchronize=self.backend.synchronize):
            self.backend.follow(queue(self.nccl))
        ledger.waited(operation, self.name, matrix)

    def _call(
        self, operation: str, matrix: str, array: tuple[Any, bool, bool], call: Callable[[Any], None],
        reduction: bool = False,
    ) -> None:  # fmt: skip
        """``call`` MPI with all of an array, in as many parts as it must."""
        with self._wires(operation, matrix, array, reduction=reduction) as (wire,):
            for part in self.countable(wire):
                call(part)

    def _reduce_scatter(self, array: Any, mine: Any, bounds: np.ndarray, matrix: str) -> None:
        """By MPI, on the host."""
        arrays = (array, True, False), (mine, False, True)
        with self._wires("reduce_scatter", matrix, *arrays, reduction=True) as (source, target):
            if array.size <= self.count_limit:
                self.mpi.Reduce_scatter(source, target, np.diff(bounds).tolist(), MPI.SUM)
                return
            for root in range(self.size):
                for part in self.countable(source[bounds[root] : bounds[root + 1]]):
                    own = self.rank == root
                    self.mpi.Reduce(MPI.IN_PLACE if own else part, part if own else None, MPI.SUM, root)
            target[...] = source[bounds[self.rank] : bounds[self.rank + 1]]

    def _sums_straight(self, array: Any) -> bool:
        return self.backend.on_device and array.nbytes > TUNING.small_sum

    def _sum(
        self, operation: str, matrix: str, arrays: Sequence[tuple[Any, bool, bool]], bounds: np.ndarray,
        add: Callable[..., Iterator[None]],
    ) -> None:  # fmt: skip
        """Sum the first array, cut by ``bounds``, by :meth:`add` or :meth:`add_and_share`, where MPI has it;
        a second one gets this rank's part. ``arrays``: as of :meth:`_wires`.
        """
        (array, *_), tag, sizes = arrays[0], self.reserve_tags(1), np.diff(bounds)
        step = min(max(TUNING.sum_chunk // array.itemsize, 1), self.count_limit)  # of a part at a time
        shape, memory = (self.size - 1, min(step, int(sizes[self.rank]))), staging(self.backend)
        room = (self.backend.empty if self.direct else memory.borrow)(shape, array.dtype)
        flight = self.flight(operation, matrix)
        with self._wires(operation, matrix, *arrays) as (flat, *own), flight:
            for start in range(0, int(sizes.max()), step):
                firsts, lasts = (bounds[:-1] + np.minimum(end, sizes) for end in (start, start + step))
                parts = {rank: flat[firsts[rank] : lasts[rank]] for rank in range(self.size)}
                received = dict(zip(self.others(), room[:, : parts[self.rank].size], strict=True))
                steps = add(flight, parts, received, tag)
                flight.until(lambda steps=steps: next(steps, True))  # type: ignore[misc]
            for part in own:
                part[...] = flat[bounds[self.rank] : bounds[self.rank + 1]]
        if not self.direct:
            memory.give_back(room)


def _ratio(a: int, b: int) -> Fraction | int:
    """a / b, exactly; 0 where b is. Whole numbers are faster."""
    return 0 if not b else Fraction(a, b) if a % b else a // b

"""Collectives of a group of ranks, on arrays and on small Python objects.

Device arrays never enter a reduction of MPI, which would stage them through pageable host memory. Large ones
travel from rank to rank and are added up in the order of the ranks, on the device or as host copies: both
ways give the same bits. Large arrays on hosts do so, too, where the group has two tiers (see ``tiers.py``).
Of the others, MPI sums host copies. Where arrays travel by NCCL, it does all of this (see ``queued.py``). The
ledger charges the same in all cases.

Features and gradients of nodes may travel in 16 bits (see ``narrow.py``): they go straight from rank to rank,
and are added up in float32.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from distgnn import ledger, local
from distgnn.arrays import backend as backends
from distgnn.arrays.backend import Mark
from distgnn.arrays.csr import Header, Shape
from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Workspace
from distgnn.comm.agree import Facts, agree, together
from distgnn.comm.communicator import Communicator
from distgnn.comm.exchange import Exchange
from distgnn.comm.nccl import Nccl
from distgnn.comm.queued import QueuedExchange, QueuedRelay, QueuedSums
from distgnn.comm.relay import Relay
from distgnn.comm.staging import staging
from distgnn.comm.sums import Sums, add, add_and_share
from distgnn.comm.wires import Wires, flattened
from distgnn.layout import partition
from distgnn.local.narrow import BITS

T = TypeVar("T")

_OPERATIONS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


class Comm(Wires):
    """A group of ranks that exchange arrays of one backend.

    Collectives take and return arrays of the group's backend, block until their result may be used, and
    charge the ledger on the ``matrix`` that they are given. Relays, exchanges and sums go on while the caller
    computes.
    """

    @staticmethod
    def split(mpi: Communicator, color: int, rank: int, size: int) -> Any:
        """Make the communicator of the ranks of ``mpi`` that give this color. Collective over ``mpi``.

        There are ``size`` of them, of which this rank is number ``rank``.
        """
        return mpi.Split(color, rank)

    @staticmethod
    def nodes_of(mpi: Communicator, node: Communicator) -> list[int]:
        """List the lowest rank on the node of each rank of ``mpi``. Collective over ``mpi``.

        ``node``: the ranks of it that share a node with this one.
        """
        return mpi.allgather(node.bcast(mpi.Get_rank()))

    # -- messages that travel while the caller computes ------------------------------------------------------

    def relay(self, *args: Any, **options: Any) -> Relay:
        """Make a broadcast of many panels: a :class:`Relay` of this group. Collective."""
        return (QueuedRelay if self.by_nccl else Relay)(self, *args, **options)

    def exchange(self, *args: Any, **options: Any) -> Exchange:
        """Make an all-to-allv: an :class:`Exchange` of this group. Collective."""
        return (QueuedExchange if self.by_nccl else Exchange)(self, *args, **options)

    def sums(self, workspace: Workspace, overlap: bool = True) -> Sums:
        """Make a series of sums: :class:`Sums` of this group. Collective."""
        return (QueuedSums if self.by_nccl else Sums)(self, workspace, overlap)

    # -- collectives on arrays -------------------------------------------------------------------------------

    def bcast(
        self, array: Any, root: int, words: int | None = None, matrix: str = "", narrow: bool = False
    ) -> Any:
        """Broadcast ``array`` of rank ``root`` in place, and return it. All pass the same shape and dtype.

        ``words`` is the number of payload elements where ``array`` is a packed buffer of bytes. With
        ``narrow``, it may travel in 16 bits, and is then rounded on the root, too.
        """
        if self.narrows(array, narrow):
            return self._bcast_narrow(array, root, matrix)
        away = self.rank != root
        self.charge.whole("bcast", matrix, array, root, words)
        if self.by_nccl:
            self._queued("bcast", matrix, lambda nccl: nccl.bcast((flattened(array), root)))
        elif self.size > 1:
            self.call("bcast", matrix, (array, not away, away), lambda part: self.mpi.Bcast(part, root))
        return array

    def allreduce(self, array: Any, op: str = "sum", matrix: str = "", driving: bool = False) -> Any:
        """Take the ``sum``, ``max`` or ``min`` by element, in place, bitwise equal on all ranks. Returns it.

        ``driving``, the same on all ranks: other messages may be under way and are driven meanwhile; a rank
        that waits here would else keep from others what they need to get here.
        """
        straight = op == "sum" and self._sums_straight(array)
        self.charge.share("allreduce", matrix, array, by_tiers=straight)
        if self.summed_by_nccl(array):
            self._queued("allreduce", matrix, lambda nccl: nccl.allreduce(flattened(array), op))
        elif self.size > 1 and straight:
            bounds = partition(array.size, self.size)
            self._sum("allreduce", matrix, [(array, True, True)], bounds, add_and_share)
        elif self.size > 1:

            def call(part: Any) -> None:
                if driving:
                    with self.flight("allreduce", matrix) as flight:
                        flight.follow(flight.mpi.Iallreduce(MPI.IN_PLACE, part, _OPERATIONS[op]))
                        flight.until(lambda: not flight.requests)
                else:
                    self.mpi.Allreduce(MPI.IN_PLACE, part, _OPERATIONS[op])

            self.call("allreduce", matrix, (array, True, True), call, reduction=True)
        return array

    def allgather_rows(
        self, block: Any, parts: np.ndarray, out: Any = None, matrix: str = "", narrow: bool = False
    ) -> Any:
        """Gather row blocks on every rank: rank ``i`` gives rows ``parts[i]:parts[i+1]``.

        Every rank gets all ``parts[-1]`` rows, in ``out`` where that is given and there is more than one
        rank. ``narrow``: they may travel in 16 bits; a rank's own rows are not rounded.
        """
        row = math.prod(block.shape[1:])
        expected = int(parts[self.rank + 1] - parts[self.rank])
        if block.shape[0] != expected:
            raise ValueError(f"allgather: {block.shape[0]} rows given where the partition says {expected}")
        self.charge.allgather(matrix, block, parts, self.wire_type(block, narrow).itemsize)
        if self.size == 1:
            return block
        whole = self.backend.empty((int(parts[-1]), *block.shape[1:]), block.dtype) if out is None else out
        bounds = parts * row
        if self.narrows(block, narrow):
            self._allgather_narrow(flattened(block), flattened(whole), bounds, matrix)
            return whole
        if self.by_nccl:
            source, target = flattened(block), flattened(whole)
            self._queued("allgather", matrix, lambda nccl: nccl.allgather(source, target, bounds))
            return whole
        arrays = (block, True, False), (whole, False, True)
        with self.wires("allgather", matrix, *arrays) as (source, target):
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

    def reduce_scatter_rows(
        self, array: Any, parts: np.ndarray, out: Any = None, matrix: str = "", narrow: bool = False
    ) -> Any:
        """Sum over the group; rank ``i`` keeps rows ``parts[i]:parts[i+1]``, in ``out`` where that is given.

        ``array`` is left as scratch. ``narrow``: what other ranks add may travel in 16 bits. Large arrays are
        summed a chunk at a time: MPI libraries take room for a whole part.
        """
        if array.shape[0] != parts[-1]:
            raise ValueError(f"reduce_scatter: {array.shape[0]} rows given, the partition covers {parts[-1]}")
        narrow = self.narrows(array, narrow)
        large = array.nbytes > max(TUNING.sum_chunk, TUNING.small_sum)
        straight = (large or self._sums_straight(array)) and not narrow
        size = self.wire_type(array, narrow).itemsize
        self.charge.share("reduce_scatter", matrix, array, by_tiers=straight, itemsize=size)
        if self.size == 1 and out is None:
            return array
        rows = array[parts[self.rank] : parts[self.rank + 1]]
        mine = self.backend.empty(rows.shape, array.dtype) if out is None else out
        bounds = parts * math.prod(array.shape[1:])
        if narrow:
            self._reduce_scatter_narrow(flattened(array), flattened(mine), bounds, matrix)
            return mine
        if self.summed_by_nccl(array):
            flat, part = flattened(array), flattened(mine)
            self._queued("reduce_scatter", matrix, lambda nccl: nccl.reduce_scatter(flat, part, bounds))
            return mine
        if self.size == 1:
            mine[...] = rows
        elif straight:
            arrays = [(array, True, False), (mine, False, True)]
            self._sum("reduce_scatter", matrix, arrays, bounds, add)
        else:
            self._reduce_scatter(array, mine, bounds, matrix)
        return mine

    # -- point to point, between this rank and one other -----------------------------------------------------

    def send(self, array: Any, destination: int, matrix: str = "") -> None:
        """Send ``array`` to one rank, which must call :meth:`receive` with the same shape and dtype."""
        self.charge.send(matrix)
        self.call("send", matrix, (array, True, False), lambda part: self.mpi.Send(part, destination))

    def receive(self, array: Any, source: int, matrix: str = "") -> Any:
        """Receive into ``array`` from one rank. Returns ``array``."""
        self.charge.receive(matrix, array, source)
        self.call("receive", matrix, (array, False, True), lambda part: self.mpi.Recv(part, source))
        return array

    # -- small Python objects, for setup and reports (not charged: no algorithm moves its data this way) -----

    def barrier(self) -> None:
        """Wait until all ranks of the group are here."""
        self.mpi.Barrier()

    def share(self, thing: T, root: int = 0) -> T:
        """Give a small Python object of rank ``root`` to every rank."""
        return self.mpi.bcast(thing, root)

    def gather_objects(self, thing: T) -> list[T]:
        """Give every rank a list of all ranks' small Python objects, by rank."""
        return self.mpi.allgather(thing)

    def gather_headers(
        self, roots: Sequence[int], mine: Mapping[int, Header], shapes: Sequence[Shape]
    ) -> list[Header]:
        """Give every rank the headers of all sparse panels, by stage.

        Args:
            roots: the rank that has each stage's panel; mine: headers of this rank's panels, by stage.
            shapes: of all panels, by stage.
        """
        given = self.gather_objects([header[1:] for _, header in sorted(mine.items())])
        following = [iter(headers) for headers in given]
        return [(shape, *next(following[root])) for root, shape in zip(roots, shapes, strict=True)]

    def lowest(self, number: int) -> int:
        """Give every rank the lowest of all ranks' numbers."""
        lowest = np.array(number, np.int64)
        if self.size > 1:
            self.mpi.Allreduce(MPI.IN_PLACE, lowest, MPI.MIN)
        return int(lowest)

    def swap_objects(self, things: Sequence[T]) -> list[T]:
        """Send ``things[r]`` to rank ``r``; return what every rank had for this one, by rank."""
        return self.mpi.alltoall(things)

    @contextmanager
    def alike(self, wanted: Any) -> Iterator[Comm]:
        """Make a group of the ranks that give the same Python object, to move host arrays.

        Collective; whoever leaves the context by an exception must do so with all of the group. Objects are
        compared by a hash of their ``repr``, with numbers, lists, tuples and ranges equal whatever their
        type: 16 bytes travel per rank.
        """
        digest = np.frombuffer(hashlib.sha256(repr(_plain(wanted)).encode()).digest()[:16], np.uint64)
        asked = np.empty(2 * self.size, np.uint64)
        self.mpi.Allgatherv(digest, [asked, [2] * self.size, list(range(0, asked.size, 2)), None])
        ranks = np.flatnonzero((asked.reshape(-1, 2) == digest).all(axis=1)).tolist()
        group = self.mpi.Split(ranks[0], self.rank)
        try:
            nodes = [self.nodes[rank] for rank in ranks]
            yield Comm(group, backends.get("numpy"), "node", ranks=ranks, nodes=nodes)
        finally:
            group.Free()

    def together(self) -> AbstractContextManager[None]:
        """Raise errors inside on every rank, see :func:`agree.together`. The region must not communicate."""
        return together(self.mpi)

    def agree(self, facts: Facts) -> None:
        """Raise DisagreementError on every rank unless all give equal facts, see :func:`agree.agree`."""
        agree(self.mpi, facts)

    # -- inside ----------------------------------------------------------------------------------------------

    def _bcast_narrow(self, array: Any, root: int, matrix: str) -> Any:
        """Broadcast in 16 bits, around the ring."""
        assert self.narrow is not None
        if self.rank == root:
            self.narrow.round(flattened(array))
        with self.relay([root], range(1), lambda stage, buffer: array, matrix, narrow=True):
            pass  # the end of the context takes the panel
        return array

    def _allgather_narrow(self, block: Any, whole: Any, bounds: np.ndarray, matrix: str) -> None:
        """Send this rank's block to all others, in 16 bits. Arrays have one dimension."""
        assert self.narrow is not None
        others, bits = self.others(), self.narrow.rounded(block)
        receives = [(rank, whole[bounds[rank] : bounds[rank + 1]]) for rank in others]
        how: dict[str, Any] = {"operation": "allgather", "narrow": True, "charged": True}
        with self.exchange(receives, matrix, **how) as exchange:
            for rank in reversed(others):
                exchange.send(bits, rank)
            whole[bounds[self.rank] : bounds[self.rank + 1]] = block
            exchange.wait(others)
        self.narrow.give_back(bits)

    def _reduce_scatter_narrow(self, array: Any, mine: Any, bounds: np.ndarray, matrix: str) -> None:
        """Send each other rank its part in 16 bits; add what comes to the own part, by rank."""
        assert self.narrow is not None
        others, parts = self.others(), [array[first:last] for first, last in pairwise(bounds)]
        came = self.narrow.memory.borrow((len(others), mine.size), BITS)
        receives = list(zip(others, came, strict=True))
        how: dict[str, Any] = {"operation": "reduce_scatter", "narrow": True, "charged": True}
        with self.exchange(receives, matrix, **how) as exchange:
            for rank in reversed(others):
                exchange.send(parts[rank], rank)
            mine[...] = parts[self.rank]
            exchange.wait(others)
        for _, numbers in sorted(receives, key=lambda pair: pair[0]):
            local.widen(numbers, mine, self.narrow.kind, accumulate=True)
        self.charge.converted(came.size)
        self.narrow.give_back(came)

    def _queued(self, operation: str, matrix: str, queue: Callable[[Nccl], Mark]) -> None:
        """Queue a collective of NCCL, for which the device waits and the host does not."""
        with (
            self.flight(operation, matrix),
            ledger.timed("comm", operation, self.name, matrix, on=self.backend),
        ):
            self.backend.follow(queue(self.nccl))
        ledger.waited(operation, self.name, matrix)

    def _reduce_scatter(self, array: Any, mine: Any, bounds: np.ndarray, matrix: str) -> None:
        """Sum and scatter by MPI, on the host."""
        arrays = (array, True, False), (mine, False, True)
        with self.wires("reduce_scatter", matrix, *arrays, reduction=True) as (source, target):
            if array.size <= self.count_limit:
                self.mpi.Reduce_scatter(source, target, np.diff(bounds).tolist(), MPI.SUM)
                return
            for root in range(self.size):
                for part in self.countable(source[bounds[root] : bounds[root + 1]]):
                    own = self.rank == root
                    self.mpi.Reduce(MPI.IN_PLACE if own else part, part if own else None, MPI.SUM, root)
            target[...] = source[bounds[self.rank] : bounds[self.rank + 1]]

    def _sums_straight(self, array: Any) -> bool:
        return bool(self.backend.on_device or self.tiers) and array.nbytes > TUNING.small_sum

    def _sum(
        self, operation: str, matrix: str, arrays: Sequence[tuple[Any, bool, bool]], bounds: np.ndarray,
        add: Callable[..., Iterator[None]],
    ) -> None:  # fmt: skip
        """Sum the first array, cut by ``bounds``, by :func:`add` or :func:`add_and_share`, where MPI has it.

        A second array gets this rank's part. ``arrays``: as of :meth:`wires`.
        """
        (array, *_), tag, sizes = arrays[0], self.reserve_tags(1), np.diff(bounds)
        step = min(max(TUNING.sum_chunk // array.itemsize, 1), self.count_limit)  # of a part at a time
        own = list(self.tiers.across if self.tiers else [self.rank])
        shape, memory = (self.size - 1, min(step, int(sizes[own].max()))), staging(self.backend)
        room = (self.backend.empty if self.direct else memory.borrow)(shape, array.dtype)
        flight = self.flight(operation, matrix)
        with self.wires(operation, matrix, *arrays) as (flat, *mine), flight:
            for start in range(0, int(sizes.max()), step):
                firsts, lasts = (bounds[:-1] + np.minimum(end, sizes) for end in (start, start + step))
                parts = {rank: flat[firsts[rank] : lasts[rank]] for rank in range(self.size)}
                steps = add(self, flight, parts, room, tag)
                flight.until(lambda steps=steps: next(steps, True))  # type: ignore[misc]
            for part in mine:
                part[...] = flat[bounds[self.rank] : bounds[self.rank + 1]]
        if not self.direct:
            memory.give_back(room)


def _plain(wanted: Any) -> Any:
    """Return an object whose ``repr`` is that of equal objects, and of no others: NumPy shortens arrays."""
    if isinstance(wanted, (list, tuple, range)):
        return tuple(map(_plain, wanted))
    return _plain(wanted.tolist()) if isinstance(wanted, (np.generic, np.ndarray)) else wanted

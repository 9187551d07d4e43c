"""Moving arrays between ranks: staging, stream order, contiguity and large counts.

A :class:`Comm` is a group of ranks. Its methods take and return arrays of the group's backend, are collective
over the group, block until their result may be used, and charge the ledger what their bandwidth-optimal form
moves (see ``ledger.py``), on the ``matrix`` that they are told.

Where the arrays are on a GPU there are two ways, decided once per process by :func:`cuda_aware`: a CUDA-aware
MPI is given device pointers, any other MPI pinned host copies. Device arrays never enter a reduction of MPI,
which would stage them through pageable host memory: large ones travel from rank to rank and are added on the
device, small ones and those of an MPI that is not CUDA-aware are summed as host copies.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from distgnn import ledger
from distgnn.arrays.backend import Backend
from distgnn.arrays.tuning import TUNING
from distgnn.comm.flight import Flight
from distgnn.errors import UserError
from distgnn.layout import partition

log = logging.getLogger(__name__)
T = TypeVar("T")

_OPERATIONS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


def cuda_aware(environ: Mapping[str, str] = os.environ) -> tuple[bool, str]:
    """Does this MPI take device pointers, and how do we know? First answer wins:
    ``DISTGNN_CUDA_AWARE``, MPI's ``mpi_memory_alloc_kinds``, ``MPIX_Query_cuda_support``,
    ``MPICH_GPU_SUPPORT_ENABLED``.
    """
    override = environ.get("DISTGNN_CUDA_AWARE")
    if override:
        if override.lower() not in ("0", "1", "true", "false", "yes", "no"):
            raise UserError(f"DISTGNN_CUDA_AWARE={override}: expected 0 or 1")
        return override.lower() in ("1", "true", "yes"), "DISTGNN_CUDA_AWARE"
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds")
    if kinds and "cuda" in kinds:
        return True, f"mpi_memory_alloc_kinds={kinds}"
    try:
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
        return bool(query()), "MPIX_Query_cuda_support"
    except (AttributeError, OSError):
        pass
    if environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1":
        return True, "MPICH_GPU_SUPPORT_ENABLED"
    return False, "nothing says so"


@functools.cache
def _cuda_aware_once() -> bool:
    answer, reason = cuda_aware()
    log.info("CUDA-aware MPI: %s (%s)", answer, reason)
    return answer


class Comm:
    """A group of ranks that exchange arrays of one backend.

    Args:
        mpi: the mpi4py communicator of the group.
        backend: where the arrays live.
        name: the group's name in the ledger (grid axes, as a rule).
    """

    #: The largest count handed to MPI in one call; longer arrays travel in several, so any MPI will do.
    count_limit = 2**31 - 1

    def __init__(self, mpi: MPI.Intracomm, backend: Backend, name: str = "world") -> None:
        self.mpi = mpi
        self.backend = backend
        self.name = name
        self.rank: int = mpi.Get_rank()
        self.size: int = mpi.Get_size()
        self.direct = not backend.on_device or _cuda_aware_once()
        self._tags = 0

    # -- collectives on arrays -------------------------------------------------------------------------------

    def bcast(self, array: Any, root: int, words: int | None = None, matrix: str = "") -> Any:
        """``array`` of rank ``root``, in place on every rank; all pass the same shape and dtype. Returns
        ``array``.

        ``words`` is the number of payload elements where ``array`` is a packed buffer of bytes.
        """
        away = self.rank != root
        self.charge_broadcast(array, away, array.size if words is None else words, matrix)
        if self.size > 1:
            with self._collective("bcast", matrix), self._buffer(array, not away, away) as buffer:
                for piece in self.pieces(buffer):
                    self.mpi.Bcast(piece, root)
        return array

    def allreduce(self, array: Any, op: str = "sum", matrix: str = "") -> Any:
        """Element-wise ``sum``, ``max`` or ``min`` over the group, in place, bitwise equal on every rank.
        Returns ``array``.
        """
        self.charge_allreduce(array, matrix)
        if self.size == 1:
            return array
        with self._collective("allreduce", matrix):
            if op == "sum" and self._sums_on_device(array):
                flat = self._flat(array)
                self._sum(
                    flat, partition(flat.size, self.size), Flight(self.mpi, "allreduce", self.name, matrix)
                )
                return array
            with self._buffer(array, True, True, reduction=True) as buffer:
                for piece in self.pieces(buffer):
                    self.mpi.Allreduce(MPI.IN_PLACE, piece, _OPERATIONS[op])
        return array

    def reduce(self, array: Any, root: int, matrix: str = "") -> Any:
        """Sum over the group on rank ``root``, in place there; elsewhere ``array`` is left as scratch.
        Returns ``array``.
        """
        away = self.rank != root
        self.charge_reduce(array, root, matrix)
        if self.size > 1:
            with (
                self._collective("reduce", matrix),
                self._buffer(array, True, not away, reduction=True) as buffer,
            ):
                for piece in self.pieces(buffer):
                    self.mpi.Reduce(piece if away else MPI.IN_PLACE, None if away else piece, MPI.SUM, root)
        return array

    def allgather_rows(self, block: Any, parts: np.ndarray, out: Any = None, matrix: str = "") -> Any:
        """Row blocks put together: rank ``i`` gives rows ``parts[i]:parts[i+1]``, every rank gets all
        ``parts[-1]`` rows, in ``out`` where that is given and there is more than one rank.
        """
        row = int(np.prod(block.shape[1:], dtype=np.int64))
        expected = int(parts[self.rank + 1] - parts[self.rank])
        if block.shape[0] != expected:
            raise ValueError(f"allgather: {block.shape[0]} rows given where the partition says {expected}")
        self._charge("allgather", matrix, (int(parts[-1]) - expected) * row, block.itemsize, self.size - 1)
        if self.size == 1:
            return block
        shape = (int(parts[-1]), *block.shape[1:])
        whole = self.backend.empty(shape, block.dtype) if out is None else out
        with self._collective("allgather", matrix):
            self._allgather(self._flat(block), self._flat(whole), parts * row)
        return whole

    def reduce_scatter_rows(self, array: Any, parts: np.ndarray, out: Any = None, matrix: str = "") -> Any:
        """Sum over the group, of which rank ``i`` keeps rows ``parts[i]:parts[i+1]``, in ``out`` where that
        is given. ``array`` is left as scratch.
        """
        if array.shape[0] != parts[-1]:
            raise ValueError(
                f"reduce_scatter_rows: {array.shape[0]} rows given, the partition covers {parts[-1]}"
            )
        self._charge_share("reduce_scatter", matrix, 1, array)
        if self.size == 1 and out is None:
            return array
        rows = array[parts[self.rank] : parts[self.rank + 1]]
        mine = self.backend.empty(rows.shape, array.dtype) if out is None else out
        if self.size > 1:
            bounds = parts * int(np.prod(array.shape[1:], dtype=np.int64))
            with self._collective("reduce_scatter", matrix):
                if not self._sums_on_device(array):
                    self._reduce_scatter(array, mine, bounds)
                    return mine
                flight = Flight(self.mpi, "reduce_scatter", self.name, matrix)
                self._sum(self._flat(array), bounds, flight, share=False)
        mine[...] = rows
        return mine

    # -- point to point, between this rank and one other -----------------------------------------------------

    def send(self, array: Any, destination: int, matrix: str = "") -> None:
        """Send ``array`` to one rank, which must call :meth:`receive` with the same shape and dtype."""
        self._charge("send", matrix, 0, 0, 0)
        with self._collective("send", matrix), self._buffer(array, True, False) as buffer:
            for piece in self.pieces(buffer):
                self.mpi.Send(piece, destination)

    def receive(self, array: Any, source: int, matrix: str = "") -> Any:
        """Receive into ``array`` from one rank. Returns ``array``."""
        self._charge("receive", matrix, array.size, array.itemsize, 1)
        with self._collective("receive", matrix), self._buffer(array, False, True) as buffer:
            for piece in self.pieces(buffer):
                self.mpi.Recv(piece, source)
        return array

    # -- for what is under way: relays of panels, exchanges and sums ----------------------------------------

    def reserve_tags(self, count: int) -> int:
        """The first of ``count`` message tags that nobody else uses; equal on all ranks, which must all ask
        alike.
        """
        first = self._tags
        self._tags += count
        return first

    def wire(self, array: Any, send: bool) -> Any:
        """What MPI is given for ``array``: its numbers in one dimension, or a pinned host copy of them (to be
        filled, unless they are to be sent). The stream that computes ``array`` must be done with it.
        """
        flat = self._flat(array)
        if self.direct:
            return flat
        host = self.backend.pinned(flat.shape, flat.dtype)
        if send:
            self.backend.copy_out(flat, host)
        return host

    def unwire(self, wire: Any, array: Any) -> None:
        """Bring what was received into ``wire`` to ``array``."""
        if not self.direct:
            self.backend.copy_in(wire, self._flat(array))

    def pieces(self, flat: Any) -> Iterator[Any]:
        """``flat`` in pieces MPI can count; one, possibly empty, as a rule."""
        for start in range(0, max(1, flat.size), self.count_limit):
            yield flat[start : start + self.count_limit]

    def add(
        self, flight: Flight, parts: Mapping[int, Any], received: Mapping[int, Any], tag: int
    ) -> Iterator[None]:
        """Send the part of every other rank in ``parts`` to it, and add up what all ranks have of the own
        part, in place and in the order of the ranks; ``received``: rooms for what the others send, left as
        scratch. Yields while something must be waited for.
        """
        yield from flight.swap(received, {r: part for r, part in parts.items() if r != self.rank}, tag)
        if received:
            own = parts[self.rank]
            numbers = {**received, self.rank: own}
            total = numbers[0]
            for rank in range(1, self.size):
                into = own if rank == self.size - 1 or self.rank == 0 else total
                total = np.add(total, numbers[rank], out=into)
            added = self.backend.mark()
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
        """The other ranks, beginning with the next."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def charge_broadcast(self, array: Any, away: bool, words: int, matrix: str = "") -> None:
        """Charge the ledger one broadcast as :meth:`bcast` does."""
        itemsize = Fraction(array.nbytes, words) if words else 0
        self._charge("bcast", matrix, away * words, itemsize, int(away))

    def charge_allreduce(self, array: Any, matrix: str = "") -> None:
        """Charge the ledger one all-reduce as :meth:`allreduce` does."""
        self._charge_share("allreduce", matrix, 2, array)

    def charge_reduce(self, array: Any, root: int, matrix: str = "") -> None:
        """Charge the ledger one reduce as :meth:`reduce` does."""
        away = int(self.rank != root)
        self._charge("reduce", matrix, away * array.size, array.itemsize, away)

    def charge_alltoallv(self, arrays: Sequence[Any], matrix: str = "") -> None:
        """Charge the ledger one all-to-allv in which this rank receives these arrays, one from each of as
        many ranks.
        """
        words, nbytes = sum(array.size for array in arrays), sum(array.nbytes for array in arrays)
        self._charge("alltoallv", matrix, words, Fraction(nbytes, words) if words else 0, len(arrays))

    # -- small Python objects, for setup and reports (not charged: no algorithm moves its data this way) -----

    def barrier(self) -> None:
        self.mpi.Barrier()

    def share(self, thing: T, root: int = 0) -> T:
        """A small Python object of rank ``root`` on every rank."""
        return self.mpi.bcast(thing, root)

    def gather_objects(self, thing: T) -> list[T]:
        """Everybody's small Python object, by rank, on every rank."""
        return self.mpi.allgather(thing)

    def swap_objects(self, things: Sequence[T]) -> list[T]:
        """``things[r]`` goes to rank ``r``; returns what every rank had for this one, by rank."""
        return self.mpi.alltoall(things)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Errors inside are raised on every rank, so that nobody waits for a rank that has left.

        A rank that failed raises its own exception; the others raise that of the lowest failing rank: a
        :class:`UserError` as such, anything else as a RuntimeError that says which rank failed and how. The
        region must not communicate.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        told: Exception | None = failure
        if failure is not None and not isinstance(failure, UserError):
            told = RuntimeError(f"rank {self.rank} failed with {type(failure).__name__}: {failure}")
        everybody = self.mpi.allgather(told)
        if failure is not None:
            raise failure
        for other in everybody:
            if other is not None:
                raise other

    # -- inside ----------------------------------------------------------------------------------------------

    def _charge(
        self, operation: str, matrix: str, words: Fraction | int, itemsize: Fraction | int, messages: int
    ) -> None:
        ledger.charge("comm", operation, self.name, matrix, words=words, itemsize=itemsize, messages=messages)

    def _charge_share(self, operation: str, matrix: str, times: int, array: Any) -> None:
        words = Fraction(times * (self.size - 1), self.size) * array.size
        self._charge(operation, matrix, words, array.itemsize, times * (self.size - 1))

    def _flat(self, array: Any) -> Any:
        if not array.flags.c_contiguous:
            raise ValueError(
                f"arrays that travel must be C-contiguous; got {array.shape} with strides {array.strides}"
            )
        return array.reshape(-1)

    @contextmanager
    def _collective(self, operation: str, matrix: str) -> Iterator[None]:
        """Around everything between the last kernel and the last byte: waits for the stream, which MPI knows
        nothing of (for receive buffers too: a queued kernel may still read their old contents), then
        measures, once, if a ledger asks for it.
        """
        self.backend.synchronize()
        with ledger.timed("comm", operation, self.name, matrix):
            yield

    @contextmanager
    def _buffer(self, array: Any, send: bool, receive: bool, reduction: bool = False) -> Iterator[Any]:
        """What to hand to MPI for ``array``: the array itself, or a pinned host copy."""
        flat = self._flat(array)
        if self.direct and not (reduction and self.backend.on_device):
            yield flat
            return
        host = self.backend.pinned(flat.shape, flat.dtype)
        if send:
            self.backend.copy_out(flat, host)
        yield host
        if receive:
            self.backend.copy_in(host, flat)

    def _allgather(self, mine: Any, whole: Any, bounds: np.ndarray) -> None:
        with self._buffer(mine, True, False) as source, self._buffer(whole, False, True) as target:
            if whole.size <= self.count_limit:
                places = np.diff(bounds).tolist(), bounds[:-1].tolist()
                self.mpi.Allgatherv(source, [target, *places, None])
                return
            target[bounds[self.rank] : bounds[self.rank + 1]] = source
            self.backend.synchronize()  # where the target is on a device
            for rank in range(self.size):
                for piece in self.pieces(target[bounds[rank] : bounds[rank + 1]]):
                    self.mpi.Bcast(piece, rank)

    def _reduce_scatter(self, array: Any, mine: Any, bounds: np.ndarray) -> None:
        """By MPI, on the host."""
        with (
            self._buffer(array, True, False, reduction=True) as source,
            self._buffer(mine, False, True, reduction=True) as target,
        ):
            if array.size <= self.count_limit:
                self.mpi.Reduce_scatter(source, target, np.diff(bounds).tolist(), MPI.SUM)
                return
            for rank in range(self.size):
                for piece in self.pieces(source[bounds[rank] : bounds[rank + 1]]):
                    root = rank == self.rank
                    self.mpi.Reduce(MPI.IN_PLACE if root else piece, piece if root else None, MPI.SUM, rank)
            target[...] = source[bounds[self.rank] : bounds[self.rank + 1]]

    def _sums_on_device(self, array: Any) -> bool:
        return self.backend.on_device and self.direct and array.nbytes > TUNING.small_sum

    def _sum(self, flat: Any, bounds: np.ndarray, flight: Flight, share: bool = True) -> None:
        """Sum a device array where it is, all of it or, unless the sums are shared, the part of this rank;
        ``bounds`` cut it into the ranks' parts.
        """
        tag, sum_up = self.reserve_tags(1), self.add_and_share if share else self.add
        step = min(
            max(TUNING.sum_chunk // flat.itemsize, 1), self.count_limit
        )  # elements of a part at a time
        room = self.backend.empty((self.size - 1, min(step, int(np.diff(bounds)[self.rank]))), flat.dtype)
        self.backend.synchronize()  # queued kernels may still use that memory
        with closing(flight):
            for start in range(0, int(np.diff(bounds).max()), step):
                firsts = np.minimum(bounds[:-1] + start, bounds[1:])
                lasts = np.minimum(firsts + step, bounds[1:])
                parts = {r: flat[firsts[r] : lasts[r]] for r in range(self.size)}
                received = dict(zip(self.others(), room[:, : parts[self.rank].size], strict=True))
                steps = sum_up(flight, parts, received, tag)
                flight.until(lambda steps=steps: next(steps, True))  # type: ignore[misc]

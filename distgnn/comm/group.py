"""Moving arrays between ranks: everything about staging, stream order, contiguity, large counts and packing
is in this file.

A :class:`Comm` is a group of ranks. Its methods take and return arrays of the group's backend, are collective
over the group, block until their result may be used, and charge the ledger what their bandwidth-optimal form
moves (see ``ledger.py``).

Where the arrays are on a GPU there are two ways, decided once per process by :func:`cuda_aware`: a CUDA-aware
MPI is given device pointers, any other MPI pinned host copies. Reductions of device arrays never enter MPI as
device buffers, because MPIs stage those through pageable host memory: a CUDA-aware MPI runs them here as a
ring of point-to-point messages, summed on the device.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from distgnn import ledger
from distgnn.arrays.backend import Backend
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

    #: The largest count handed to MPI in one call; longer arrays travel in pieces, so any MPI will do.
    count_limit = 2**31 - 1

    def __init__(self, mpi: MPI.Intracomm, backend: Backend, name: str = "world") -> None:
        self.mpi = mpi
        self.backend = backend
        self.name = name
        self.rank: int = mpi.Get_rank()
        self.size: int = mpi.Get_size()
        self.direct = not backend.on_device or _cuda_aware_once()
        self.ring = backend.on_device and self.direct
        self._tags = 0

    # -- collectives on arrays -------------------------------------------------------------------------------

    def bcast(self, array: Any, root: int, words: int | None = None) -> Any:
        """``array`` of rank ``root``, in place on every rank; all pass the same shape and dtype. Returns
        ``array``.

        ``words`` is the number of payload elements where ``array`` is a packed buffer of bytes.
        """
        away = self.rank != root
        self.charge_broadcast(array, away, array.size if words is None else words)
        if self.size > 1:
            with self._collective("bcast"), self._buffer(array, send=not away, receive=away) as buffer:
                for piece in self.pieces(buffer):
                    self.mpi.Bcast(piece, root)
        return array

    def allreduce(self, array: Any, op: str = "sum") -> Any:
        """Element-wise ``sum``, ``max`` or ``min`` over the group, in place, bitwise equal on every rank.
        Returns ``array``.
        """
        self.charge_allreduce(array)
        if self.size == 1:
            return array
        with self._collective("allreduce"):
            if self.ring and op == "sum":
                flat = self._flat(array)
                parts = partition(flat.size, self.size)
                mine = self._ring_reduce_scatter(flat, parts)
                self._allgather_into(mine, flat, parts, 1)
                return array
            with self._buffer(array, send=True, receive=True, reduction=True) as buffer:
                for piece in self.pieces(buffer):
                    self.mpi.Allreduce(MPI.IN_PLACE, piece, _OPERATIONS[op])
        return array

    def reduce(self, array: Any, root: int) -> Any:
        """Sum over the group on rank ``root``, in place there; elsewhere ``array`` is left as scratch.
        Returns ``array``.
        """
        away = self.rank != root
        self._charge("reduce", away * array.size, away * array.nbytes, messages=int(away))
        if self.size > 1:
            with (
                self._collective("reduce"),
                self._buffer(array, send=True, receive=not away, reduction=True) as buffer,
            ):
                for piece in self.pieces(buffer):
                    self.mpi.Reduce(piece if away else MPI.IN_PLACE, None if away else piece, MPI.SUM, root)
        return array

    def allgather_rows(self, block: Any, parts: np.ndarray, out: Any = None) -> Any:
        """Row blocks put together: rank ``i`` gives rows ``parts[i]:parts[i+1]``, every rank gets all
        ``parts[-1]`` rows, in ``out`` where that is given and there is more than one rank.
        """
        row = int(np.prod(block.shape[1:], dtype=np.int64))
        self._check_rows("allgather", block, parts, self.rank)
        received = (int(parts[-1]) - block.shape[0]) * row
        self._charge("allgather", received, received * block.itemsize, messages=self.size - 1)
        if self.size == 1:
            return block
        shape = (int(parts[-1]), *block.shape[1:])
        whole = self.backend.empty(shape, block.dtype) if out is None else out
        with self._collective("allgather"):
            self._allgather_into(self._flat(block), self._flat(whole), parts, row)
        return whole

    def reduce_scatter_rows(self, array: Any, parts: np.ndarray, out: Any = None) -> Any:
        """Sum over the group, of which rank ``i`` keeps rows ``parts[i]:parts[i+1]``, in ``out`` where that
        is given. ``array`` is left as scratch.
        """
        row = int(np.prod(array.shape[1:], dtype=np.int64))
        if array.shape[0] != parts[-1]:
            raise ValueError(
                f"reduce_scatter_rows: {array.shape[0]} rows given, the partition covers {parts[-1]}"
            )
        self._charge_fraction("reduce_scatter", 1, array, messages=self.size - 1)
        if self.size == 1 and out is None:
            return array
        counts = np.diff(parts) * row
        shape = (int(parts[self.rank + 1] - parts[self.rank]), *array.shape[1:])
        mine = self.backend.empty(shape, array.dtype) if out is None else out
        if self.size == 1:
            mine[...] = array
            return mine
        if self.ring:
            with self._collective("reduce_scatter"):
                mine[...] = self._ring_reduce_scatter(self._flat(array), parts * row).reshape(shape)
            return mine
        with (
            self._collective("reduce_scatter"),
            self._buffer(array, send=True, receive=False, reduction=True) as source,
            self._buffer(mine, send=False, receive=True, reduction=True) as target,
        ):
            if array.size <= self.count_limit:
                self.mpi.Reduce_scatter(source, target, counts.tolist(), MPI.SUM)
            else:
                self._reduce_scatter_in_pieces(source, target, parts * row)
        return mine

    # -- point to point, between this rank and one other -----------------------------------------------------

    def send(self, array: Any, destination: int) -> None:
        """Send ``array`` to one rank, which must call :meth:`receive` with the same shape and dtype."""
        self._charge("send", 0, 0)
        with self._collective("send"), self._buffer(array, send=True, receive=False) as buffer:
            for piece in self.pieces(buffer):
                self.mpi.Send(piece, destination)

    def receive(self, array: Any, source: int) -> Any:
        """Receive into ``array`` from one rank. Returns ``array``."""
        self._charge("receive", array.size, array.nbytes, messages=1)
        with self._collective("receive"), self._buffer(array, send=False, receive=True) as buffer:
            for piece in self.pieces(buffer):
                self.mpi.Recv(piece, source)
        return array

    # -- for relays of panels (relay.py), exchanges of rows (exchange.py) and sums (reduction.py), which do no

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

    def start_receive(self, piece: Any, source: int, tag: int) -> MPI.Request:
        """Begin to receive into a piece of what :meth:`wire` gave, of at most ``count_limit`` elements."""
        return self.mpi.Irecv(piece, source, tag)

    def start_send(self, piece: Any, destination: int, tag: int) -> MPI.Request:
        """Begin to send such a piece."""
        return self.mpi.Isend(piece, destination, tag)

    def charge_broadcast(self, array: Any, away: bool, words: int) -> None:
        """Charge the ledger one broadcast as :meth:`bcast` does."""
        self._charge("bcast", away * words, away * array.nbytes, messages=int(away))

    def charge_allreduce(self, array: Any) -> None:
        """Charge the ledger one all-reduce as :meth:`allreduce` does."""
        self._charge_fraction("allreduce", 2, array, messages=2 * (self.size - 1))

    def charge_alltoallv(self, arrays: Sequence[Any]) -> None:
        """Charge the ledger one all-to-allv in which this rank receives these arrays, one from each of as
        many ranks.
        """
        words, nbytes = sum(array.size for array in arrays), sum(array.nbytes for array in arrays)
        self._charge("alltoallv", words, nbytes, messages=len(arrays))

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
        self, operation: str, words: int | Fraction, nbytes: int | Fraction, messages: int = 0
    ) -> None:
        itemsize = Fraction(nbytes) / Fraction(words) if words else 0
        ledger.charge("comm", operation, self.name, words=words, itemsize=itemsize, messages=messages)  # type: ignore[arg-type]

    def _charge_fraction(self, operation: str, times: int, array: Any, messages: int) -> None:
        share = Fraction(times * (self.size - 1), self.size) if self.size > 1 else 0
        self._charge(operation, share * array.size, share * array.nbytes, messages)

    def _flat(self, array: Any) -> Any:
        if not array.flags.c_contiguous:
            raise ValueError(
                f"arrays that travel must be C-contiguous; got shape {array.shape} with strides {array.strides}"
            )
        return array.reshape(-1)

    def _check_rows(self, operation: str, block: Any, parts: np.ndarray, index: int) -> None:
        expected = int(parts[index + 1] - parts[index])
        if block.shape[0] != expected:
            raise ValueError(f"{operation}: {block.shape[0]} rows given where the partition says {expected}")

    @contextmanager
    def _collective(self, operation: str) -> Iterator[None]:
        """Around everything between the last kernel and the last byte: waits for the stream, which MPI knows
        nothing of (for receive buffers too: a queued kernel may still read their old contents), then
            measures, once, if a ledger asks for it.
        """
        self.backend.synchronize()
        with ledger.timed("comm", operation, self.name):
            yield

    @contextmanager
    def _buffer(self, array: Any, *, send: bool, receive: bool, reduction: bool = False) -> Iterator[Any]:
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

    def _allgather_into(self, mine: Any, whole: Any, parts: np.ndarray, row: int) -> None:
        counts, starts = np.diff(parts) * row, parts[:-1] * row
        with (
            self._buffer(mine, send=True, receive=False) as source,
            self._buffer(whole, send=False, receive=True) as target,
        ):
            if whole.size <= self.count_limit:
                self.mpi.Allgatherv(source, [target, counts.tolist(), starts.tolist(), None])
                return
            for rank, (start, count) in enumerate(zip(starts, counts, strict=True)):
                part = target[start : start + count]
                if rank == self.rank:
                    part[...] = source
                for piece in self.pieces(part):
                    self.mpi.Bcast(piece, rank)

    def _reduce_scatter_in_pieces(self, source: Any, target: Any, bounds: np.ndarray) -> None:
        for rank in range(self.size):
            for piece in self.pieces(source[bounds[rank] : bounds[rank + 1]]):
                root = rank == self.rank
                self.mpi.Reduce(MPI.IN_PLACE if root else piece, piece if root else None, MPI.SUM, rank)
        target[...] = source[bounds[self.rank] : bounds[self.rank + 1]]

    def _ring_reduce_scatter(self, flat: Any, bounds: np.ndarray) -> Any:
        """Sum over the group by p-1 steps around a ring: every rank passes on a growing partial sum and adds
        its own share to the one it gets; the sums run where the arrays live. ``bounds`` cuts ``flat`` into
        the ranks' parts.
        """

        def part(index: int) -> Any:
            index %= self.size
            return flat[bounds[index] : bounds[index + 1]]

        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        largest = max(1, int(np.diff(bounds).max()))
        for step in range(1, self.size):
            outgoing, mine = part(self.rank - step), part(self.rank - step - 1)
            incoming = self.backend.empty(mine.shape, mine.dtype)
            self.backend.synchronize()  # the sum of the step before is what goes out
            with (
                self._buffer(outgoing, send=True, receive=False) as source,
                self._buffer(incoming, send=False, receive=True) as target,
            ):
                for start in range(0, largest, self.count_limit):  # the shorter side ends in empty messages
                    end = start + self.count_limit
                    self.mpi.Sendrecv(source[start:end], after, 0, target[start:end], before, 0)
            mine += incoming
        kept = part(self.rank).copy()
        self.backend.synchronize()
        return kept

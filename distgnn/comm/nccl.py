"""NCCL's communicators, which move and sum arrays of a device between the ranks of a group.

NCCL queues its calls on a stream, and the stream that computes waits for them by an event: the host waits for
nothing. They stand on a stream of their own, as one waits for other ranks, which copies must not. All ranks
call them in the order of the program, whatever the group, so that none waits for another in a circle.

Beside them MPI is given host memory only: NCCL's manual says that both at once may wait for each other on the
device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from distgnn import progress
from distgnn.arrays.backend import DONE, Backend, Mark
from distgnn.comm.agree import together
from distgnn.errors import PeerError, UserError

Array = Any

#: By dtype and by operation, the names of NCCL's constants for sums. What is only moved goes as bytes.
TYPES = {
    name: f"NCCL_{name.upper()}"
    for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
}
OPERATIONS = {"sum": "NCCL_SUM", "max": "NCCL_MAX", "min": "NCCL_MIN"}

CLAIMED = "others would queue this call in another order than a relay's steps"

#: Bytes of a broadcast: CuPy counts them in an int of 32 bits, all others in 64.
MOST = 1 << 30


def takes(array: Array) -> bool:
    """Tell whether NCCL sums elements of the array's type."""
    return array.dtype.name in TYPES


class Nccl:
    """NCCL's communicator of a group, with collective methods.

    They take C-contiguous arrays of a device, those of parts of one dimension, and return a mark of the
    result. Runs on the same devices repeat to the bit.

    Args:
        mpi: the group's communicator, in which the ranks find each other. Collective. What NCCL has been
            given before ends first.
        failed: called when the device is found to wait for a rank that has failed or left.

    Attributes:
        claimed: of all communicators, as they share a stream: the relay that queues the next calls, where
            ranks may be at different ones; else None.
        last: the mark of all that was queued; check: raises PeerError if a rank that is waited for in it has
            failed or left.

    Raises:
        UserError: NCCL does not connect these ranks. PeerError: one of them has failed or left.
    """

    claimed: ClassVar[object] = None

    def __init__(
        self, mpi: MPI.Intracomm, backend: Backend, failed: Callable[[], object] = lambda: None
    ) -> None:  # fmt: skip
        self.backend, self.library, self.failed = backend, backend.nccl(), failed
        self.rank, self.size = mpi.Get_rank(), mpi.Get_size()
        self.last: Mark = DONE
        self.check: Callable[[], object] = lambda: None
        assert Nccl.claimed is None, CLAIMED
        if progress.guards:  # a device that allocates memory may wait for what is queued, on other ranks too
            with backend.beside("nccl"):
                backend.synchronize()
        # Else ranks meet in their first collective, on the host, where others may wait for their messages.
        os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")
        try:
            with together(mpi):
                name = self.library.get_unique_id() if self.rank == 0 else None
            name = mpi.bcast(name)
            with together(mpi):
                self.ranks = self.library.NcclCommunicator(self.size, name, self.rank)
        except PeerError:
            raise
        except RuntimeError as error:
            problem = f"NCCL does not connect the ranks; DISTGNN_TRANSPORT=host does without it: {error}"
            raise UserError(problem) from error
        progress.guards.add(self)

    def allreduce(self, array: Array, op: str = "sum") -> Mark:
        """Reduce in place on all ranks."""
        place, code = self._place(array), getattr(self.library, OPERATIONS[op])
        what = place, place, array.size, self._kind(array), code
        return self._queue(lambda to: self.ranks.allReduce(*what, to), array.size)

    def reduce(self, array: Array, root: int) -> Mark:
        """Sum in place on the root; the others keep their numbers."""
        place = self._place(array)
        what = place, place, array.size, self._kind(array), self.library.NCCL_SUM, root
        return self._queue(lambda to: self.ranks.reduce(*what, to), array.size)

    def bcast(self, *arrays: tuple[Array, int], after: Iterable[Mark] = ()) -> Mark:
        """Broadcast each array from a rank, in place, all at once, after these marks."""
        places = [(self._place(array), array.nbytes, root) for array, root in arrays]

        def call(to: int) -> None:
            with self._at_once():
                for place, nbytes, root in places:
                    self._broadcast(place, place, nbytes, root, to)

        return self._queue(call, sum(nbytes for _, nbytes, _ in places), after)

    def swap(
        self, sends: Sequence[tuple[Array, int]], receives: Sequence[tuple[Array, int]],
        after: Iterable[Mark] = (),
    ) -> Mark:  # fmt: skip
        """Send arrays to ranks and receive others from ranks, all at once, after these marks.

        Two ranks send each other arrays of the same sizes as they receive, in the same order.
        """
        calls = [(self.ranks.send, array, rank) for array, rank in sends if array.size]
        calls += [(self.ranks.recv, array, rank) for array, rank in receives if array.size]

        def call(to: int) -> None:
            with self._at_once():
                for move, array, rank in calls:
                    move(self._place(array), array.nbytes, self.library.NCCL_UINT8, rank, to)

        return self._queue(call, len(calls), after)

    def allgather(self, block: Array, whole: Array, bounds: np.ndarray, after: Iterable[Mark] = ()) -> Mark:
        """Gather blocks: rank r's becomes ``whole[bounds[r]:bounds[r + 1]]``.

        Blocks of different sizes are broadcast together.
        """
        mine, all_of_it, itemsize = self._place(block), self._place(whole), block.itemsize

        def broadcast(root: int, first: int, size: int, to: int) -> None:
            place = all_of_it + first * itemsize
            self._broadcast(mine if root == self.rank else place, place, size * itemsize, root, to)

        def call(to: int) -> None:
            if _even(bounds):
                self.ranks.allGather(mine, all_of_it, block.nbytes, self.library.NCCL_UINT8, to)
            else:
                self._of_each(bounds, broadcast, to)

        return self._queue(call, whole.size, after)

    def reduce_scatter(self, array: Array, mine: Array, bounds: np.ndarray) -> Mark:
        """Sum all ranks' ``array[bounds[r]:bounds[r + 1]]`` in rank r's ``mine``.

        Parts of different sizes are reduced together.
        """
        kind, op, own = self._kind(array), self.library.NCCL_SUM, self._place(mine)

        def reduce(root: int, first: int, size: int, to: int) -> None:
            place = self._place(array) + first * array.itemsize
            self.ranks.reduce(place, own if root == self.rank else place, size, kind, op, root, to)

        def call(to: int) -> None:
            if _even(bounds):
                self.ranks.reduceScatter(self._place(array), own, mine.size, kind, op, to)
            else:
                self._of_each(bounds, reduce, to)

        return self._queue(call, array.size)

    def free(self) -> None:
        """End the communicator when all that was queued is done."""
        progress.guards.discard(self)
        self.ranks.destroy()

    def abort(self) -> None:
        """End the communicator after an error, without waiting for the collectives that are queued."""
        progress.guards.discard(self)
        self.ranks.abort()

    def look(self) -> None:
        """Raise PeerError if the device waits for a rank that has failed or left: it would do so for ever.

        All communicators with work that is queued are ended then, as it stands on one stream.
        """
        if self.last():
            return
        try:
            self.check()
        except PeerError:
            for stuck in [guard for guard in progress.guards if not guard.last()]:
                stuck.failed()
                stuck.abort()
            raise

    def _queue(self, call: Callable[[int], object], size: int, after: Iterable[Mark] = ()) -> Mark:
        """Call NCCL with its stream, after all that has been queued to be computed, and these marks."""
        assert Nccl.claimed is None, CLAIMED
        on = self.backend
        computed = on.mark()
        if not size:
            return computed
        with on.beside("nccl", computed):
            for mark in after:
                on.follow(mark)
            self.last = lambda: False  # the call itself may wait for other ranks
            try:
                call(on.stream())
            finally:
                self.last = on.mark()
            return self.last

    def _broadcast(self, source: int, target: int, nbytes: int, root: int, to: int) -> None:
        for first in range(0, nbytes, MOST):
            what = source + first, target + first, min(MOST, nbytes - first)
            self.ranks.broadcast(*what, self.library.NCCL_UINT8, root, to)

    def _of_each(self, bounds: np.ndarray, collective: Callable[[int, int, int, int], None], to: int) -> None:
        """Call a collective for every rank that has a part, all at once."""
        with self._at_once():
            for root, (first, last) in enumerate(pairwise(bounds.tolist())):
                if first < last:
                    collective(root, first, last - first, to)

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """Let the calls inside go on together: none waits for the end of another."""
        self.library.groupStart()
        try:
            yield
        finally:
            self.library.groupEnd()

    def _kind(self, array: Array) -> int:
        return int(getattr(self.library, TYPES[array.dtype.name]))

    def _place(self, array: Array) -> int:
        return self.backend.address(array)


def _even(bounds: np.ndarray) -> bool:
    """Tell whether all parts are of one size."""
    return len(set(np.diff(bounds).tolist())) == 1

"""NCCL's collectives on arrays of a device, for who asks for them with ``DISTGNN_NCCL=1``.

Where MPI takes host copies only, sums and gathers are what that costs most. NCCL queues them on a stream, and
the stream that computes waits for them by an event: the host waits for nothing. They stand on a stream of
their own, as one waits for other ranks, which copies for their messages must not. All ranks call them in the
order of the program, whatever the group, so that none waits for another in a circle.

Beside an MPI that takes device pointers they are not used: NCCL's manual says that both at once may wait for
each other on the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from mpi4py import MPI

from distgnn.arrays.backend import Backend, Mark
from distgnn.comm.agree import together
from distgnn.errors import UserError

Array = Any

VARIABLE = "DISTGNN_NCCL"

#: By dtype and by operation, the names of NCCL's constants.
TYPES = {
    name: f"NCCL_{name.upper()}"
    for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
}
OPERATIONS = {"sum": "NCCL_SUM", "max": "NCCL_MAX", "min": "NCCL_MIN"}


def yes(name: str, value: str) -> bool:
    """Read the value of a variable. UserError: it is neither yes nor no."""
    if value.lower() not in ("0", "1", "true", "false", "yes", "no"):
        raise UserError(f"{name}={value}: expected 0 or 1")
    return value.lower() in ("1", "true", "yes")


def wanted(backend: Backend, direct: bool, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether groups of arrays of this backend sum and gather by NCCL.

    ``direct``: MPI takes these arrays.

    Raises:
        UserError: the variable is neither yes nor no, or CuPy has no NCCL.
    """
    asked = yes(VARIABLE, environ.get(VARIABLE) or "0")
    if not asked or direct:
        return False
    if backend.nccl() is None:
        raise UserError(f"{VARIABLE}=1: CuPy finds no NCCL library here; install it, or unset {VARIABLE}")
    return True


class Nccl:
    """NCCL's communicator of a group, with collective methods.

    They take C-contiguous arrays of a device, and return a mark of the result. Counts have 64 bits. Runs on
    the same devices repeat to the bit.

    Args:
        mpi: the group's communicator, in which the ranks find each other. Collective.

    Raises:
        UserError: NCCL does not connect these ranks, such as two of them on one device.
    """

    def __init__(self, mpi: MPI.Intracomm, backend: Backend) -> None:
        self.backend, self.library = backend, backend.nccl()
        self.rank, self.size = mpi.Get_rank(), mpi.Get_size()
        # Else ranks meet in their first collective, on the host, where others may wait for their messages.
        os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")
        try:
            with together(mpi):
                name = self.library.get_unique_id() if self.rank == 0 else None
            name = mpi.bcast(name)
            with together(mpi):
                self.ranks = self.library.NcclCommunicator(self.size, name, self.rank)
        except RuntimeError as error:
            problem = f"NCCL does not connect the ranks, each of which needs a GPU of its own: {error}"
            raise UserError(f"{VARIABLE}=1: {problem}") from error

    def takes(self, array: Array) -> bool:
        """Tell whether NCCL knows the type of the array's elements."""
        return array.dtype.name in TYPES

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

    def bcast(self, array: Array, root: int) -> Mark:
        """Broadcast in place."""
        place = self._place(array)
        what = place, place, array.size, self._kind(array), root
        return self._queue(lambda to: self.ranks.broadcast(*what, to), array.size)

    def allgather(self, block: Array, whole: Array, bounds: np.ndarray) -> Mark:
        """Gather blocks of one dimension: rank r's becomes ``whole[bounds[r]:bounds[r + 1]]``.

        Blocks of different sizes are broadcast together.
        """
        kind, mine = self._kind(block), self._place(block)

        def broadcast(root: int, first: int, size: int, to: int) -> None:
            place = self._place(whole, first)
            self.ranks.broadcast(mine if root == self.rank else place, place, size, kind, root, to)

        def call(to: int) -> None:
            if _even(bounds):
                self.ranks.allGather(mine, self._place(whole), block.size, kind, to)
            else:
                self._of_each(bounds, broadcast, to)

        return self._queue(call, whole.size)

    def reduce_scatter(self, array: Array, mine: Array, bounds: np.ndarray) -> Mark:
        """Sum all ranks' ``array[bounds[r]:bounds[r + 1]]`` in rank r's ``mine``, of one dimension.

        Parts of different sizes are reduced together.
        """
        kind, op, own = self._kind(array), self.library.NCCL_SUM, self._place(mine)

        def reduce(root: int, first: int, size: int, to: int) -> None:
            place = self._place(array, first)
            self.ranks.reduce(place, own if root == self.rank else place, size, kind, op, root, to)

        def call(to: int) -> None:
            if _even(bounds):
                self.ranks.reduceScatter(self._place(array), own, mine.size, kind, op, to)
            else:
                self._of_each(bounds, reduce, to)

        return self._queue(call, array.size)

    def free(self) -> None:
        """End the communicator when all that was queued is done."""
        self.ranks.destroy()

    def abort(self) -> None:
        """End the communicator after an error, without waiting for the collectives that are queued."""
        self.ranks.abort()

    def _queue(self, call: Callable[[int], object], size: int) -> Mark:
        """Call NCCL with its stream, after all that has been queued to be computed."""
        on = self.backend
        computed = on.mark()
        if not size:
            return computed
        with on.beside("nccl", computed):
            call(on.stream())
            return on.mark()

    def _of_each(self, bounds: np.ndarray, collective: Callable[[int, int, int, int], None], to: int) -> None:
        """Call a collective for every rank that has a part, all in one go."""
        self.library.groupStart()
        try:
            for root, (first, last) in enumerate(pairwise(bounds.tolist())):
                if first < last:
                    collective(root, first, last - first, to)
        finally:
            self.library.groupEnd()

    def _kind(self, array: Array) -> int:
        return int(getattr(self.library, TYPES[array.dtype.name]))

    def _place(self, array: Array, first: int = 0) -> int:
        return self.backend.address(array) + first * array.itemsize


def _even(bounds: np.ndarray) -> bool:
    """Tell whether all parts are of one size."""
    return len(set(np.diff(bounds).tolist())) == 1

"""Arrays of a group of ranks on their way to MPI: staging, stream order, contiguity and large counts.

Where the arrays are on a GPU there are three ways, chosen in ``transport.py``: a CUDA-aware MPI is given
device pointers, any other MPI pinned host copies, or NCCL is given the arrays (see ``queued.py``).

MPI knows nothing of streams. Memory that it is given is ready when a mark says so, which is looked at while
messages are driven: the device goes on computing. Copies, and sums on the device, run on streams beside the
one that computes, which waits for them by events. The host waits for kernels in blocking collectives only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgnn import ledger, progress
from distgnn.arrays.backend import DONE, Backend, Mark
from distgnn.comm.charges import Charges, others
from distgnn.comm.communicator import Communicator
from distgnn.comm.flight import Flight
from distgnn.comm.links import Derive, Links
from distgnn.comm.narrow import Narrow
from distgnn.comm.nccl import Nccl, takes
from distgnn.comm.staging import staging
from distgnn.comm.tiers import around
from distgnn.comm.transport import DIRECT, HOST, NCCL, by_mpi
from distgnn.comm.waiting import Wait
from distgnn.comm.watched import Watched, watched
from distgnn.local.narrow import BITS

Array = Any


class Wires:
    """A group of ranks, and the memory that MPI is given for their arrays.

    Args:
        mpi: the communicator of the group.
        backend: where the arrays live.
        name: the group's name in the ledger (grid axes, as a rule).
        transport: how its arrays travel; default: by MPI.
        ranks: who they are in the grid, for the ledger; default: all of it.
        nodes: the node of each; default: one for all.
        links: the communicators of the grid that the group belongs to, which are replaced after an error;
            derive: makes the group's of the grid's, and stands for ``mpi``.
        narrow: the 16 bits in which features and gradients travel, or None for all of theirs.

    Attributes:
        direct: MPI is given the arrays themselves, not host copies.
        queued: arrays travel by NCCL. MPI is then given host copies of what still goes by it.
        charge: the group's entries in the ledger.
        ring: the ranks in an order in which panels go around, those of a node one after another.
        nodes: as given.
        tiers: the two tiers of the group, or None (see ``tiers.py``).
        has_core: this rank is one of a GPU, which has a core to itself: it takes no naps.
    """

    #: The largest count handed to MPI in one call; longer arrays travel in several, so any MPI will do.
    count_limit = 2**31 - 1

    def __init__(
        self, mpi: Communicator | None, backend: Backend, name: str = "world",
        transport: str | None = None,
        ranks: Sequence[int] | None = None, links: Links | None = None, derive: Derive | None = None,
        nodes: Sequence[int] | None = None, narrow: Narrow | None = None,
    ) -> None:  # fmt: skip
        self.backend, self.name, self.links, self.narrow = backend, name, links, narrow
        transport = by_mpi(backend) if transport is None else transport
        self.direct, self.queued = transport in (HOST, DIRECT), transport == NCCL
        self._nccl: Nccl | None = None
        self._check: Callable[[], object] = lambda: None  # of the last flight
        if links is None or derive is None or ranks is None:
            self.connect(watched(mpi, name))
        else:
            links.join(name, derive, self)
        self.rank, self.size = self._mpi.Get_rank(), self._mpi.Get_size()
        self.ranks = range(self.size) if ranks is None else ranks
        self.nodes = [0] * self.size if nodes is None else list(nodes)
        self.ring, self.charge = around(self.nodes), Charges(name, self.rank, self.ranks, self.nodes)
        self.tiers = self.charge.tiers
        here = self.nodes.count(self.nodes[self.rank])
        self.has_core = backend.on_device and here <= (os.cpu_count() or 1)

    def connect(self, mpi: Any) -> None:
        """Use this communicator from now on."""
        self._mpi, self._tags = mpi, 0
        if self._nccl is not None:
            self._nccl.abort()
        self._nccl = None

    @property
    def mpi(self) -> Any:
        """The group's communicator. Collective over the grid after an error, see :class:`Links`."""
        if self.links is not None and self.links.broken:
            self.links.renew()
        return self._mpi

    @property
    def by_nccl(self) -> bool:
        """True if NCCL moves what this group sends: there are several ranks, and arrays travel by it."""
        return self.queued and self.size > 1

    @property
    def nccl(self) -> Nccl:
        """The group's communicator of NCCL, made when it is first asked for. Collective then.

        Raises:
            UserError: NCCL does not connect the ranks. PeerError: a rank that is waited for has failed.
        """
        mpi = self.mpi
        if self._nccl is None:
            self._nccl = Nccl(mpi, self.backend, self.fail)
            self._nccl.check = self._check
        return self._nccl

    def fail(self) -> None:
        """Note that an operation of this group has failed on this rank."""
        if self._nccl is not None:
            self.backend.follow(self._nccl.last)  # before its memory is used again
        if self.links is not None:
            self.links.fail()

    def free(self) -> None:
        """Give the communicators back. Collective."""
        self.end()
        self._mpi.Free()

    def end(self) -> None:
        """End what stands on the communicator. Collective."""
        if self._nccl is not None:
            self.backend.synchronize()
            self._nccl.free()

    def others(self) -> list[int]:
        """List the other ranks, the next one first, as an exchange brings what they send."""
        return others(self.rank, self.size)

    def summed_by_nccl(self, array: Array) -> bool:
        """Tell whether NCCL sums this array."""
        return self.by_nccl and takes(array)

    @property
    def staged(self) -> bool:
        """True if what travels while something is computed is copied to the host."""
        return not (self.direct or self.queued)

    @property
    def in_pieces(self) -> bool:
        """True if what travels can be packed while something is computed, see ``pieces.py``."""
        return self.direct and not self.backend.on_device

    # -- messages under way ----------------------------------------------------------------------------------

    def reserve_tags(self, count: int) -> int:
        """Return the first of ``count`` message tags that nobody else uses. All ranks must ask alike."""
        if self.links is not None and self.links.broken:
            self.links.renew()
        first = self._tags
        self._tags += count
        return first

    def flight(self, operation: str, matrix: str, step: Callable[[], object] = lambda: None) -> Flight:
        """Make the flight of an operation in this group, see :class:`Flight`."""
        computed = self.backend.mark if self.backend.on_device else None
        mpi = self.mpi
        check = mpi.begin(flight=True) if isinstance(mpi, Watched) else None
        waits: tuple[Any, bool] = check or (lambda: None), not self.has_core
        self._check = waits[0]
        if self._nccl is not None:
            self._nccl.check = self._check
        return Flight(mpi, operation, self.name, matrix, step, computed, self.fail, *waits)

    def narrows(self, array: Array, narrow: bool = True) -> bool:
        """Tell whether an array travels in 16 bits; ``narrow``: it holds features or gradients of nodes."""
        return narrow and self.size > 1 and self.narrow is not None and self.narrow.takes(array)

    def wire_type(self, array: Array, narrow: bool = True) -> np.dtype:
        """Return the type of the numbers on their way."""
        return BITS if self.narrows(array, narrow) else array.dtype

    def wire_bytes(self, array: Array, narrow: bool = True) -> int:
        """Return the bytes of an array on its way."""
        return int(array.size * self.wire_type(array, narrow).itemsize)

    def wire(self, array: Array, narrow: bool = False) -> Array:
        """Return what MPI is given for ``array``: its numbers in one dimension, or memory for a copy.

        A copy is pinned host memory, or holds the numbers in 16 bits, or both. NCCL is given what an MPI
        would be that takes device pointers.
        """
        flat, dtype = flattened(array), self.wire_type(array, narrow)
        if self.staged:
            return staging(self.backend).borrow(flat.shape, dtype)
        return self.narrow.memory.borrow(flat.shape, dtype) if self.narrow and dtype != flat.dtype else flat

    def apart(self, wire: Array, array: Array) -> bool:
        """Tell whether a wire is memory beside the array's."""
        return self.staged or wire.dtype != array.dtype

    def fill(self, wire: Array, array: Array, computed: Mark) -> Mark:
        """Fill the wire with what is in ``array``, of one dimension, or the same part of both.

        Returns the mark from which on MPI may read the wire.
        """
        if self.narrow and wire.dtype != array.dtype:
            return self.narrow.fill(wire, array, computed)
        return self.backend.carry(array, wire, computed) if self.staged else computed

    def unwire(self, wire: Array, array: Array, read: Mark) -> Mark:
        """Bring what was received into ``wire`` to ``array``, once that has been ``read``.

        Returns the mark that those must follow who use it.
        """
        if self.narrow and wire.dtype != array.dtype:
            return self.narrow.unwire(wire, array, read)
        return self.backend.carry(wire, array, read) if self.staged else DONE

    def release(self, wire: Array, copied: Mark = DONE) -> None:
        """Take a wire back from MPI and, at a mark, from who copies it."""
        if self.staged:
            staging(self.backend).give_back(wire, copied)
        elif self.narrow and wire.dtype == BITS:
            self.narrow.memory.give_back(wire, copied)

    def countable(self, wire: Array) -> Iterator[Array]:
        """Give ``wire`` in parts that MPI can count; one, possibly empty, as a rule."""
        for start in range(0, max(1, wire.size), self.count_limit):
            yield wire[start : start + self.count_limit]

    # -- collectives -----------------------------------------------------------------------------------------

    @contextmanager
    def wires(
        self, operation: str, matrix: str, *arrays: tuple[Array, bool, bool], reduction: bool = False
    ) -> Iterator[list[Array]]:
        """Give what MPI takes for (array, is it sent, is it received) each; timed once, to the last byte.

        Waits for the stream, which MPI knows nothing of; for receive buffers too, as a queued kernel may
        still read their old contents, unless MPI receives into a copy.
        """
        flat = [flattened(array) for array, _, _ in arrays]
        staged = not self.direct or (reduction and self.backend.on_device)
        if not staged or any(send for _, send, _ in arrays):
            self.backend.synchronize()
        with ledger.timed("comm", operation, self.name, matrix), Wait(operation, self.name, matrix):
            if not staged:
                yield flat
            else:
                with self._copies(flat, arrays) as copies:
                    yield copies
        ledger.waited(operation, self.name, matrix)

    def call(
        self, operation: str, matrix: str, array: tuple[Array, bool, bool], call: Callable[[Array], None],
        reduction: bool = False,
    ) -> None:  # fmt: skip
        """Call MPI with all of an array, in as many parts as it must."""
        with self.wires(operation, matrix, array, reduction=reduction) as (wire,):
            for part in self.countable(wire):
                call(part)

    @contextmanager
    def _copies(
        self, flat: Sequence[Array], arrays: Sequence[tuple[Array, bool, bool]]
    ) -> Iterator[list[np.ndarray]]:
        """Give pinned host copies; bring the received ones to the device without waiting for it."""
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


def flattened(array: Array) -> Array:
    """Return the array's numbers in one dimension, in its memory. ValueError: it is not C-contiguous."""
    if not array.flags.c_contiguous:
        got = f"{array.shape} with strides {array.strides}"
        raise ValueError(f"arrays that travel must be C-contiguous; got {got}")
    return array.reshape(-1)

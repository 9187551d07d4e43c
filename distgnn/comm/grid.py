"""A grid of processes: ranks ↔ named coordinates, and the sub-communicators along its axes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from mpi4py import MPI

from distgnn.arrays import backend as backends
from distgnn.arrays import memory
from distgnn.arrays.backend import Backend
from distgnn.arrays.workspace import Workspace
from distgnn.comm import launch
from distgnn.comm.agree import agree, together
from distgnn.comm.checks import checks
from distgnn.comm.communicator import Communicator
from distgnn.comm.devices import bind
from distgnn.comm.facts import process
from distgnn.comm.group import Comm
from distgnn.comm.links import Derive, Links
from distgnn.comm.narrow import Narrow
from distgnn.comm.session import joined
from distgnn.comm.shared import NodeMemory, available
from distgnn.comm.transport import transport
from distgnn.errors import UserError, check_type
from distgnn.layout import Axes


class Grid(Axes):
    """The ranks of a communicator arranged in named axes, the first axis slowest.

    Ranks along the last axis are consecutive: it is the nearest one where nodes hold consecutive ranks.
    Algorithms take their axes in any order, with equal results up to rounding.

    Examples:
        >>> grid = Grid(MPI.COMM_SELF, rows=1, reps=1)       # on eight ranks: MPI.COMM_WORLD, rows=4, reps=2
        >>> grid.coords["rows"], grid.along("rows").size
        (0, 1)

    Args:
        comm: an mpi4py communicator; every rank of it takes part in the grid (collective).
        backend: an array backend or its name; default: a GPU where there is one.
        wire: "bfloat16" or "float16": features and gradients of nodes travel between ranks in 16 bits, where
            they are float32 (see ``narrow.py``). On a GPU, sparse products read them in 16 bits too, on one
            rank as on several, and sum in float32. Default: as they are, so that results are exact. Numbers
            that 16 bits can't hold become NaN, and a WireOverflowError of training and of ``A @ H``.
        axes: the size of each axis, by name; their product must be ``comm.size``.

    Attributes:
        shares_memory: ranks of a node hold equal blocks of A once, see :meth:`memory`. False on GPUs, where
            no node has several ranks, and where one of them cannot map the memory of another.
        transport: how arrays move between ranks (see ``wires.py``).
        nodes: by rank, the lowest rank on its node: what groups go by, see ``tiers.py``.
        node: this rank's of them; ranks with equal ``node`` read files together (see
            :meth:`on_node`). A test may set it, to have several nodes on one machine.
        overlap: panels and sums of row blocks travel while others are multiplied; results do not change.
        block_rows: rows of the blocks in which products are summed over ranks (see ``operators/summed.py``);
            None for a default by size.
        checks: the comparison of calls, with ``DISTGNN_CHECK=1``; else None.
        mixed: networks that are made later keep in 16 bits all that products alone make and read, where
            :attr:`reads_rounded`.
        nonzeros: of the blocks of sparse matrices that this rank has been given.
        workspace: the buffers that products and networks on this grid use again.

    Raises:
        UserError: the sizes do not multiply to the number of ranks; no such ``wire``; or ranks differ in
            them, in how they move arrays, or in their code or environment (see ``facts.py``). On every rank.
    """

    def __init__(
        self, comm: Communicator | None = None, *, backend: Backend | str | None = None,
        wire: str | None = None, **axes: int,
    ) -> None:  # fmt: skip
        comm = MPI.COMM_WORLD if comm is None else comm
        check_type("comm", comm, Communicator, "an mpi4py communicator; sizes go by name: rows=4")
        comm = joined(comm)
        size, rank = comm.Get_size(), comm.Get_rank()
        axes = axes or {"rows": size}
        for name, count in axes.items():
            check_type(name, count, Integral, "a whole number of ranks along this axis")
        if size > 1:
            agree(comm, process() | {"grid": axes, "wire": wire})
        if math.prod(axes.values()) != size or min(axes.values()) < 1:
            sizes = " x ".join(f"{name}={count}" for name, count in axes.items())
            problem = f"axes must be positive and multiply to the {size} ranks of this run"
            raise UserError(f"grid {sizes}: {problem}")
        comm = comm.Dup()  # messages of ours never meet messages of the caller's
        with together(comm):  # one rank may have no GPU
            self.backend = backend if isinstance(backend, Backend) else backends.get(backend)
            self.narrow = None if wire is None else Narrow(wire, self.backend)
            devices = self.backend.devices()
        agree(comm, {"backend": self.backend.name})  # before calls that ranks with a GPU alone make
        super().__init__(axes, rank)
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.device = bind(self.backend, devices, comm, node)
        self.groups: type[Comm] = getattr(comm, "groups", Comm)
        self.nodes = self.groups.nodes_of(comm, node)
        self.node = self.nodes[self.rank]
        if self.backend.name == "numpy":
            launch.warn_of_threads()
            chosen = isinstance(backend, Backend) or backends.wanted(backend) != "auto"
            if not chosen and (why := backends.old_driver()):
                launch.warn(f"arrays are on the host: {why}")
        self.transport = transport(self.backend, comm, self.node)
        self.overlap, self.wire, self.mixed = True, wire, False
        self.block_rows: int | None = None
        self.workspace = Workspace(self.backend)
        self.nonzeros = 0
        self.shares_memory = self.backend.name == "numpy" and size > 1 and available(comm, node)
        node.Free()
        self.links = Links(comm)
        weakref.finalize(self, self.links.drop).atexit = False
        self.checks = checks(self.links)
        self.world = self._group("world", lambda world: world, range(size))
        alone = Comm(MPI.COMM_SELF, self.backend, "self", ranks=[rank])
        self._along: dict[tuple[str, ...], Comm] = {(): alone}

    def __repr__(self) -> str:
        return f"Grid({', '.join(f'{name}={count}' for name, count in self.shape.items())})"

    def along(self, *axes: str) -> Comm:
        """Return the group of the ranks that differ from this one only in ``axes``.

        The ranks are numbered by their coordinates there, the first axis slowest. Collective over the grid
        the first time, but for ``along()``: this rank alone.
        """
        if axes not in self._along:
            derive = self._split(axes)
            self._along[axes] = self._group("+".join(axes), derive, self.sharing(*axes))
        return self._along[axes]

    def _group(self, name: str, derive: Derive, ranks: Sequence[int]) -> Comm:
        nodes, way = [self.nodes[rank] for rank in ranks], self.transport
        return self.groups(None, self.backend, name, way, ranks, self.links, derive, nodes, self.narrow)

    def _split(self, axes: tuple[str, ...]) -> Derive:
        color = self.index(*(axis for axis in self.shape if axis not in axes))
        split, place = self.groups.split, (color, self.index(*axes), self.count(*axes))
        return lambda world: split(world, *place)  # without the grid, which its links outlive

    @property
    def reads_rounded(self) -> bool:
        """Tell whether sparse products read 16 bits, of which :meth:`rounded` makes a matrix."""
        return self.narrow is not None and self.narrow.read

    def rounded(self, B: Any) -> Any:
        """Return what sparse products read of ``B``: on a GPU its 16 bits, where messages have 16 bits."""
        return B if self.narrow is None else self.narrow.operand(B)

    def along_on_host(self, *axes: str) -> Comm:
        """Return the group of :meth:`along`, to move host arrays whatever the grid's backend.

        Collective like it.
        """
        host = backends.get("numpy")
        if self.backend.name == host.name and not self.backend.on_device:
            return self.along(*axes)
        key = ("on host", *axes)
        if key not in self._along:  # a communicator of its own: each Comm numbers its messages by itself
            group, derive = self.along(*axes), self._split(axes)
            how = group.name, None, group.ranks, self.links, derive, group.nodes
            self._along[key] = self.groups(None, host, *how)
        return self._along[key]

    @contextmanager
    def on_node(self, wanted: Any) -> Iterator[Comm]:
        """Make a group of this node's ranks that give the same Python object, to move host arrays.

        Collective; whoever leaves the context by an exception must do so with all of the group. Objects are
        compared by their ``repr``, see :meth:`Comm.alike`: 16 bytes travel per rank.
        """
        with self.world.alike((self.node, wanted)) as group:
            yield group

    @contextmanager
    def memory(self, wanted: Any, lasting: bool = False) -> Iterator[Backend]:
        """Make the memory in which this node's ranks that give the same small object hold blocks, once.

        That is the grid's backend where memory is not shared. Collective, as :meth:`on_node`. ``lasting``: as
        of :class:`~distgnn.comm.shared.NodeMemory`.
        """
        if not self.shares_memory:
            yield self.backend
            return
        with self.on_node(wanted) as group:
            yield self.memory_of(group, lasting)

    def memory_of(self, group: Comm, lasting: bool = False) -> Backend:
        """Return the memory in which a group of :meth:`on_node` holds blocks that all of its ranks want."""
        shared = self.shares_memory and (group.size > 1 or lasting)
        return NodeMemory(group, lasting) if shared else self.backend

    def share_of_memory(self) -> int:
        """Return the bytes that this rank may fill. Collective.

        They are its share of the device's, or of the node's; with ``ulimit -v`` no more than that.
        """
        place = self.node, self.device
        share = self.backend.memory_bytes() // self.world.gather_objects(place).count(place)
        own = None if self.backend.on_device else memory.of_process()
        return share if own is None else min(share, own)

    def free(self) -> None:
        """Give the grid's communicators back to MPI, which has room for about two thousand. Collective.

        The grid and the matrices on it can't be used afterwards.
        """
        self._along.clear()
        self.links.free()

"""Blocks of a matrix that the ranks of a node hold together, once.

The first of the ranks makes the arrays of a block in an anonymous file in memory, which the others map. The
memory goes back to the system with the last array on it, on whatever path: nothing has to be freed, and
nothing is left of a killed run. ``MPI.Win.Allocate_shared`` would have to be freed collectively, which ranks
that drop a matrix at different times cannot do. In a container with a small /dev/shm it grants what is not
there (MPICH 5: ten terabytes of 23 GB), and a rank that writes there is killed.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from distgnn import ledger
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.comm.agree import together
from distgnn.comm.communicator import Communicator
from distgnn.comm.group import Comm

Array = Any


def available(world: Communicator, node: Communicator) -> bool:
    """Tell whether nodes have several ranks, which can map each other's memory. Collective over ``world``.

    Args:
        node: this node's ranks of it.
    """
    files, path, token = _Files(), "", secrets.randbits(62)
    if node.Get_rank() == 0:
        memory, path = files.make(8)
        if memory is not None:
            memory.view(np.int64)[0] = token
    path, token = node.bcast((path, token))
    seen = _mapped(path, 8)  # where ranks number processes differently, it may be another file
    mapped = seen is not None and int(seen.view(np.int64)[0]) == token
    ranks_and_mapped = world.allgather((node.Get_size(), mapped))
    files.close()
    return max(ranks_and_mapped)[0] > 1 and all(mapped for _, mapped in ranks_and_mapped)


class NodeMemory(Backend):
    """NumPy arrays in memory that the ranks of a node share.

    Args:
        group: those ranks, which want the same blocks; they can map each other's memory.
        lasting: other ranks of the node may map the blocks later, see :func:`of_mate`.

    Attributes:
        group, lasting: as given.
    """

    def __init__(self, group: Comm, lasting: bool = False) -> None:
        self.group, self.holders, self.makes = group, group.size, group.rank == 0
        self.files, self.lasting = _Files(), lasting

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Make an array of zeros, on the rank that makes a block."""
        count = math.prod(shape)
        memory, path = self.files.make(count * np.dtype(dtype).itemsize)
        if memory is None:
            raise MemoryError(f"{path}: cannot map a file in memory of {count} {np.dtype(dtype)}")
        return memory.view(dtype)[:count].reshape(shape)

    def once(self, make: Callable[[], list[CSR]]) -> list[CSR]:
        """Return the blocks that the first rank makes. Collective over the group: an error is raised on all.

        All ranks can write to the arrays, until :meth:`CSR.read_only`.
        """
        try:
            with together(self.group.mpi):
                made = make() if self.makes else []
            own = [(*block.recipe(), self.files.paths[self.address(block.buffer)]) for block in made]
            recipes_and_paths = self.group.share(own, 0)
            with together(self.group.mpi):  # the files stay open until all have mapped them
                for block in made if self.lasting else ():
                    _LASTING[block] = self.files.kept(self.address(block.buffer), block)
                return made or [self._block(*recipe) for recipe in recipes_and_paths]
        finally:
            self.files.close()
        raise AssertionError("unreachable: together() raises")

    def _block(self, kind: Any, recipe: tuple[Any, ...], path: str) -> CSR:
        block = _block(kind, recipe, path)
        if block is None:
            raise MemoryError(f"{path}: cannot map the memory of another rank of this node")
        ledger.holds(block, "adjacency", block.buffer.nbytes // self.holders)
        return block


#: Paths of the blocks in lasting memory that this rank has made, whose files are open as long as they live.
_LASTING: WeakKeyDictionary[CSR, str] = WeakKeyDictionary()


def of_mate(
    world: Comm, node: Hashable, wanted: Callable[[Any], bool] | None, held: Mapping[Any, CSR]
) -> tuple[Any, CSR] | None:
    """Map a block that is wanted and that a rank of the node has in lasting memory; return also its key.

    None where nobody has any. Collective over ``world``. The ledger counts it where it was made.

    Args:
        node: equal on ranks of a node. wanted: tells whether a block is, by its key; None: none is.
        held: blocks of this rank by key.
    """
    offered = {key: (*block.recipe(), _LASTING[block]) for key, block in held.items() if block in _LASTING}
    every = world.gather_objects((node, offered))
    with world.together():  # the files stay open until all have mapped them
        mates = (theirs.items() for theirs_of, theirs in every if theirs_of == node and wanted is not None)
        some = (offer for theirs in mates for offer in theirs if wanted is not None and wanted(offer[0]))
        key, recipe = next(some, (None, None))
        block = None if recipe is None else _block(*recipe)
        return None if block is None else (key, block.read_only())
    raise AssertionError("unreachable: together() raises")


def _block(kind: Any, recipe: tuple[Any, ...], path: str) -> CSR | None:
    memory = _mapped(path, kind.room(*recipe))
    return None if memory is None else kind(*recipe, memory)


class _Files:
    """Files in memory of this rank that others may open. ``paths``: by the address of the array on them."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.descriptors: list[int] = []

    def make(self, nbytes: int) -> tuple[Array | None, str]:
        """Make a file; return its memory, None where there is none, and its path."""
        if not hasattr(os, "memfd_create"):  # not Linux
            return None, ""
        try:
            self.descriptors.append(os.memfd_create("distgnn"))
            os.ftruncate(self.descriptors[-1], _size(nbytes))
        except OSError:  # a limit on files, or on their sizes
            return None, ""
        path = f"/proc/{os.getpid()}/fd/{self.descriptors[-1]}"
        memory = _mapped(path, nbytes)
        if memory is not None:
            self.paths[memory.ctypes.data] = path
        return memory, path

    def kept(self, address: int, owner: Any) -> str:
        """Return the path of an array's file, and leave it open as long as the owner lives."""
        path = self.paths[address]
        descriptor = int(path.rpartition("/")[2])
        self.descriptors.remove(descriptor)
        weakref.finalize(owner, os.close, descriptor)
        return path

    def close(self) -> None:
        """Close the files: what is mapped stays."""
        while self.descriptors:
            os.close(self.descriptors.pop())
        self.paths.clear()


def _mapped(path: str, nbytes: int) -> Array | None:
    """Map a file of another rank: uint8, and a few bytes more; None where it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            memory = mmap.mmap(descriptor, _size(nbytes))
        finally:
            os.close(descriptor)
    except (OSError, ValueError):  # ValueError: a file that is shorter
        return None
    return np.frombuffer(memory, np.uint64).view(np.uint8)  # SciPy copies views of many more elements


def _size(nbytes: int) -> int:
    return -(-max(nbytes, 1) // 8) * 8

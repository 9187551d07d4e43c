"""The blocks of a sparse matrix, from a block source to the device of a grid.

On hosts, ranks of a node that hold the same block hold it once, in memory that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR, KERNELS
from distgnn.comm.grid import Grid
from distgnn.layout import Range
from distgnn.operators.device_matrix import DeviceMatrix
from distgnn.operators.sources import BlockSource, SharedSource, blocks
from distgnn.operators.strips import side_by_side, splits

Windows = Sequence[tuple[Range, Range]]


def load(
    grid: Grid, source: BlockSource, windows: Windows, thin: bool = False, lasting: bool = False
) -> list[CSR]:  # fmt: skip
    """Load the blocks of A in these (rows, columns). Collective: an error on one rank is raised on all.

    Of windows side by side a store is read once, and what was read is cut. ``thin``: as of
    :meth:`CSR.from_scipy`; ``lasting``: of their memory, as of :class:`~distgnn.comm.shared.NodeMemory`.

    Ranks of a node that ask for the same windows of a store read them together, each shard once (Plexus
    section 5.4). On hosts each writes what it reads into the block that they share. The ledger charges the
    row lengths that they tell each other, and on GPUs also the broadcasts: 2 words per non-zero. Where ranks
    want some columns of a shard, they share its rows out and send each other entries, see ``strips.py``.
    """
    if not isinstance(source, SharedSource) or splits(grid, source, windows):
        held = _packed(grid, source, windows, thin, lasting=lasting)
    else:  # inside, only ranks that read together communicate, and they leave together
        with grid.on_node((source.key, windows)) as readers, grid.world.together():
            memory = grid.memory_of(readers, lasting)
            held = []
            for rows, bounds in side_by_side(windows):
                strip = source.assemble(rows, (bounds[0], bounds[-1]), memory, readers)
                cut = partial(cut_columns, strip, [end - bounds[0] for end in bounds], memory, thin)
                held += [strip] if len(bounds) == 2 else memory.once(cut)
            if memory.holders > 1:
                held = [block.read_only() for block in held]
    grid.nonzeros += sum(block.nnz for block in held)
    return held


def load_transposed(grid: Grid, source: BlockSource, windows: Windows) -> list[CSR]:
    """Load the transposes of the blocks of A in these (rows, columns). Collective, as :func:`load`."""
    if isinstance(source, DeviceMatrix):
        return [block.transposed(grid.backend) for block in load(grid, source, windows)]
    return _packed(grid, source, windows, thin=True, transposed=True)


def _packed(
    grid: Grid, source: BlockSource, windows: Windows, thin: bool, transposed: bool = False,
    lasting: bool = False,
) -> list[CSR]:  # fmt: skip
    """Put SciPy blocks on the device."""
    with grid.memory((windows, transposed), lasting) as memory:
        given = blocks(source, windows if memory.makes else [], grid)
        laid = (block.T for block in given) if transposed else given
        make = lambda on: [CSR.from_scipy(block, on, source.dtype, thin=thin) for block in laid]  # noqa: E731
        return _made(grid, memory, make)


def _made(grid: Grid, memory: Backend, make: Callable[[Backend], list[CSR]]) -> list[CSR]:
    with grid.world.together():
        made = memory.once(lambda: make(memory))
        return made if memory.holders == 1 else [block.read_only() for block in made]
    raise AssertionError("unreachable: together() raises")


@dataclass(frozen=True)
class Holders:
    """The ranks of a node that hold the same blocks of A, and make others of them.

    Attributes:
        key: a small object, equal on ranks that hold the same blocks.
    """

    grid: Grid
    key: Any

    def make(self, what: str, make: Callable[[Backend], list[CSR]]) -> list[CSR]:
        """Return blocks that ``make`` makes on the backend it is given, once for all holders. Collective.

        Args:
            what: the name of these blocks, the same on all ranks.
        """
        with self.grid.memory((self.key, what)) as memory:
            return _made(self.grid, memory, make)

    def transposed(self, held: Sequence[CSR]) -> list[CSR]:
        """Return the transposes of blocks that the holders hold. Collective."""
        return self.make("transposes", lambda on: [block.transposed(on) for block in held])


def join_columns(blocks: Sequence[CSR], backend: Backend, thin: bool = False) -> CSR:
    """Join blocks of equal height side by side in a block of its own; ``thin`` as of `CSR.from_scipy`."""
    return KERNELS.kernel("joined", blocks[0].data)(blocks, backend, thin)


def cut_columns(A: CSR, bounds: Sequence[int], backend: Backend, thin: bool = False) -> list[CSR]:
    """Cut the columns of A between these bounds into blocks of their own; ``thin`` as of `CSR.from_scipy`."""
    return [A] if len(bounds) == 2 else KERNELS.kernel("columns", A.data)(A, bounds, backend, thin)

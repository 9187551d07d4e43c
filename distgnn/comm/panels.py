"""Panels: parts of the blocks that ranks of a group broadcast to each other, stage by stage.

An algorithm iterates over panels and never sees buffers. How they travel is decided in ``relay.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

from distgnn.arrays.csr import CSR, Shape
from distgnn.arrays.tuning import TUNING
from distgnn.arrays.workspace import Take
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.sums import Sums


@contextmanager
def broadcast(
    grid: Grid, comm: Comm, matrix: str, roots: Sequence[int], own: Callable[[int], Any],
    shapes: Sequence[tuple[int, int]], dtype: Any, turns: Sequence[int] | None = None,
    buffers: int | None = None, room: str = "panel",
) -> Iterator[Iterator[Any]]:  # fmt: skip
    """Give ``own(stage)`` of each stage's root to all ranks of ``comm``, by stage; see :meth:`Comm.relay`.

    Panels of features and gradients travel in 16 bits where the grid says so; own ones are not rounded.

    Args:
        matrix: whose panels, for the ledger.
        roots: the rank that has each stage's panel; shapes: of the panels; both the same on all ranks.
        own: the panel of a stage of which this rank is the root, C-contiguous.
        turns: the stages in the order in which this rank takes them (see ``relay.py``).
        buffers: how many panels are under way at most; default: ``TUNING.relay_buffers``.
        room: what the rooms of the workspace are called; two broadcasts at a time need two names.
    """
    sizes = [math.prod(shape) for shape in shapes]
    most = max((size for size, root in zip(sizes, roots, strict=True) if root != comm.rank), default=0)

    rooms: dict[tuple[int, Shape], Any] = {}

    def panel(stage: int, buffer: int) -> Any:
        if roots[stage] == comm.rank:
            return own(stage)
        shape = shapes[stage]
        if (buffer, shape) not in rooms:
            memory = take(f"{room} {buffer}", (most,), dtype)
            rooms[buffer, shape] = memory[: sizes[stage]].reshape(shape)
        return rooms[buffer, shape]

    turns = range(len(roots)) if turns is None else turns
    how: dict[str, Any] = {"overlap": grid.overlap, "buffers": buffers, "narrow": True}
    with grid.workspace.rooms() as take, comm.relay(roots, turns, panel, matrix, **how) as panels:
        yield panels


@contextmanager
def summed(
    grid: Grid, comm: Comm, roots: Sequence[int], own: Callable[[int], Any],
    shapes: Sequence[tuple[int, int]], dtype: Any, room: str = "partial panel",
) -> Iterator[Iterator[Any]]:  # fmt: skip
    """Give room for each stage's panel, for the caller to fill, and sum it over ``comm`` on the stage's root.

    The reverse of :func:`broadcast`: the sum of a panel travels while the next ones are computed. Sums are
    complete at the end of the context. All ranks take the panels of a root in the same order.

    Args:
        roots: by stage, where the sum goes; own: its place there, C-contiguous; shapes: of the panels.
        room: what the rooms of the workspace are called.
    """
    with grid.workspace.rooms() as take, comm.sums(grid.workspace, grid.overlap) as sums:
        yield _panels_to_sum(sums, take, comm.rank, roots, own, shapes, dtype, room)


def _panels_to_sum(
    sums: Sums, take: Take, rank: int, roots: Sequence[int], own: Callable[[int], Any],
    shapes: Sequence[tuple[int, int]], dtype: Any, room: str,
) -> Iterator[Any]:  # fmt: skip
    rooms, lent = cycle(range(TUNING.sums_under_way)), deque[int]()
    for stage, (root, shape) in enumerate(zip(roots, shapes, strict=True)):
        if root == rank:
            panel = own(stage)
        else:
            if len(lent) == TUNING.sums_under_way:
                sums.finish(lent.popleft())
            lent.append(root)
            panel = take(f"{room} {next(rooms)}", shape, dtype)
        yield panel
        sums.start(panel, root)


class SparsePanels:
    """CSR panels of a stationary sparse matrix. Ranks agree on who has which at construction (collective).

    Args:
        grid: says whether panels travel ahead; comm: the group that shares the panels.
        roots: the owner of each stage's panel; mine: this rank's panels by stage.
        shapes: of the panels. Both roots and shapes are the same on all ranks.
    """

    def __init__(
        self, grid: Grid, comm: Comm, roots: Sequence[int], mine: Mapping[int, CSR],
        shapes: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        self.grid, self.comm, self.roots, self.mine = grid, comm, list(roots), dict(mine)
        headers = {stage: panel.header() for stage, panel in self.mine.items()}
        self.headers = comm.gather_headers(self.roots, headers, shapes)
        self.words = [CSR.count(shape, nnz) for shape, nnz, _, _ in self.headers]
        away = [CSR.nbytes(*self.headers[k]) for k, root in enumerate(self.roots) if root != comm.rank]
        self.most = max(away, default=0)
        # One object per stage and buffer for good, though they share memory: what a kernel plans for a block
        # is kept with it.
        self.received: dict[tuple[int, int], CSR] = {}

    @contextmanager
    def broadcast(self) -> Iterator[Iterator[CSR]]:
        """Give the panel of each stage to every rank of the group, stage by stage; see :meth:`Comm.relay`."""
        panels: dict[int, CSR] = {}
        rooms: dict[int, Any] = {}

        def panel(stage: int, buffer: int) -> Any:
            if stage not in self.mine and buffer not in rooms:
                rooms[buffer] = take(f"sparse panel {buffer}", (self.most,), "uint8")
            panels[stage] = self.mine.get(stage) or self._into(stage, buffer, rooms[buffer])
            return panels[stage].buffer

        turns = range(len(self.roots))
        relay = self.comm.relay(self.roots, turns, panel, "A", self.words, self.grid.overlap)
        with self.grid.workspace.rooms() as take, relay as buffers:
            yield (panels.pop(stage) for stage, _ in enumerate(buffers))

    def _into(self, stage: int, buffer: int, room: Any) -> CSR:
        """Return the panel of a stage in one of the buffers, which begins at this room."""
        known = self.received.get((stage, buffer))
        if known is None or self.grid.backend.address(known.buffer) != self.grid.backend.address(room):
            known = self.received[stage, buffer] = CSR(*self.headers[stage], room)
        return known

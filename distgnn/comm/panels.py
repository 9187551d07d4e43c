"""Panels: parts of the blocks that ranks of a group broadcast to each other, stage by stage.

An algorithm iterates over panels and never sees buffers. How they travel is decided in ``relay.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, cycle, islice, pairwise
from typing import Any

from distgnn.arrays.csr import CSR, Shape
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.relay import upstream
from distgnn.comm.sums import Sums


@contextmanager
def broadcast(
    grid: Grid, comm: Comm, matrix: str, roots: Sequence[int], own: Callable[[int], Any],
    shapes: Sequence[tuple[int, int]], dtype: Any, turns: Sequence[int] | None = None,
    buffers: int | None = None,
) -> Iterator[Iterator[Any]]:  # fmt: skip
    """Give ``own(stage)`` of each stage's root to all ranks of ``comm``, by stage; see :meth:`Comm.relay`.

    Panels of features and gradients travel in 16 bits where the grid says so; own ones are not rounded.

    Args:
        matrix: whose panels, for the ledger.
        roots: the rank that has each stage's panel; shapes: of the panels; both the same on all ranks.
        own: the panel of a stage of which this rank is the root, C-contiguous.
        turns: the stages in the order in which this rank takes them (see ``relay.py``).
        buffers: how many panels are under way at most; default: ``TUNING.relay_buffers``.
    """
    turns = range(len(roots)) if turns is None else turns
    how: dict[str, Any] = {"overlap": grid.overlap, "buffers": buffers, "narrow": True}
    with _rooms(grid, comm, roots, shapes, dtype, buffers or TUNING.relay_buffers) as rooms:
        views: dict[tuple[int, Shape], Any] = {}

        def panel(stage: int, buffer: int) -> Any:
            if roots[stage] == comm.rank:
                return own(stage)
            key = buffer, shapes[stage]
            if key not in views:
                views[key] = _shaped(rooms[buffer], shapes[stage])
            return views[key]

        with comm.relay(roots, turns, panel, matrix, **how) as panels:
            yield panels


@contextmanager
def _rooms(
    grid: Grid, comm: Comm, roots: Sequence[int], shapes: Sequence[Shape], dtype: Any, most: int
) -> Iterator[list[Any]]:  # fmt: skip
    """Lend memory for any of other ranks' panels, ``most`` times at most."""
    sizes = [math.prod(shape) for shape, root in zip(shapes, roots, strict=True) if root != comm.rank]
    with grid.workspace.lending() as borrow:
        yield [borrow((max(sizes),), dtype) for _ in range(min(most, len(sizes)))]


def _shaped(room: Any, shape: Shape) -> Any:
    return room[: math.prod(shape)].reshape(shape)


@contextmanager
def summed(
    grid: Grid, comm: Comm, roots: Sequence[int], own: Callable[[int], Any],
    shapes: Sequence[tuple[int, int]], dtype: Any,
) -> Iterator[Iterator[Any]]:  # fmt: skip
    """Give room for each stage's panel, for the caller to fill, and sum it over ``comm`` on the stage's root.

    The reverse of :func:`broadcast`: the sum of a panel travels while the next ones are computed. Sums are
    complete at the end of the context. All ranks take the panels of a root in the same order.

    Args:
        roots: by stage, where the sum goes; own: its place there, C-contiguous; shapes: of the panels.
    """
    with (
        _rooms(grid, comm, roots, shapes, dtype, TUNING.sums_under_way) as rooms,
        comm.sums(grid.workspace, grid.overlap) as sums,
    ):
        yield _panels_to_sum(sums, rooms, comm.rank, roots, own, shapes)


def _panels_to_sum(
    sums: Sums, rooms: Sequence[Any], rank: int, roots: Sequence[int], own: Callable[[int], Any],
    shapes: Sequence[tuple[int, int]],
) -> Iterator[Any]:  # fmt: skip
    turns, lent = cycle(rooms), deque[int]()
    for stage, (root, shape) in enumerate(zip(roots, shapes, strict=True)):
        if root == rank:
            panel = own(stage)
        else:
            if len(lent) == len(rooms):
                sums.finish(lent.popleft())
            lent.append(root)
            panel = _shaped(next(turns), shape)
        yield panel
        sums.start(panel, root)


@contextmanager
def broadcast_at_once(
    grid: Grid, comm: Comm, matrix: str, roots: Sequence[int], own: Callable[[int], Any],
    shapes: Sequence[tuple[int, int]], dtype: Any,
) -> Iterator[Iterator[Any]]:  # fmt: skip
    """Give this rank's own panels, then one array of all others, one below another in the order of stages.

    The others travel while what own panels are given for is computed. Of no others there is no array.
    Arguments are those of :func:`broadcast`, and so is what the ledger is charged.
    """
    places, height = _below_another(roots, shapes, comm.rank)
    how: dict[str, Any] = {"overlap": grid.overlap, "buffers": len(roots) + 1, "narrow": True}
    with grid.workspace.lend((height, shapes[0][1] if shapes else 0), dtype) as whole:
        panel = lambda stage, buffer: whole[places[stage]] if stage in places else own(stage)  # noqa: E731
        with comm.relay(roots, upstream(comm, roots), panel, matrix, at_once=True, **how) as panels:
            yield _own_first(panels, len(roots) - len(places), len(places), whole)


def _own_first(panels: Iterator[Any], own: int, others: int, whole: Any) -> Iterator[Any]:
    yield from islice(panels, own)
    if others:
        for _ in islice(panels, others):
            pass
        yield whole  # in the turn of the last one, so that what others wait for is handed on meanwhile


@contextmanager
def summed_at_once(
    grid: Grid, comm: Comm, roots: Sequence[int], own: Callable[[int], Any],
    shapes: Sequence[tuple[int, int]], dtype: Any,
) -> Iterator[Iterator[Any]]:  # fmt: skip
    """Give room for this rank's own panels, then one array for all others; sum each panel on its root.

    The reverse of :func:`broadcast_at_once`: sums begin when all of it is filled, and are complete at the end
    of the context. Arguments are those of :func:`summed`, and so is what the ledger is charged.
    """
    places, height = _below_another(roots, shapes, comm.rank)
    with (
        grid.workspace.lend((height, shapes[0][1] if shapes else 0), dtype) as whole,
        comm.sums(grid.workspace, grid.overlap) as sums,
    ):
        mine = [own(stage) for stage in range(len(roots)) if stage not in places]
        yield iter([*mine, whole] if places else mine)
        for stage, root in enumerate(roots):
            sums.start(whole[places[stage]] if stage in places else own(stage), root)


def _below_another(
    roots: Sequence[int], shapes: Sequence[tuple[int, int]], rank: int
) -> tuple[dict[int, slice], int]:  # fmt: skip
    """Place the panels of other ranks one below another, by stage; return also how many rows they have."""
    away = {k: shapes[k][0] for k, root in enumerate(roots) if root != rank}
    ends = list(accumulate(away.values(), initial=0))
    return {k: slice(*rows) for k, rows in zip(away, pairwise(ends), strict=True)}, ends[-1]


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

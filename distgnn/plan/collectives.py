"""Seconds of messages: collectives of groups of ranks, as products make them, and MPI's own.

All of it is collective over all ranks. Of the ranks' medians the slowest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.comm.panels import broadcast
from distgnn.comm.relay import upstream
from distgnn.layout import partition
from distgnn.operators.summed import add_up
from distgnn.plan.fit import Measurement
from distgnn.plan.machine import SUMS
from distgnn.plan.measure import LEAST, Budget, Run, filled, sample

SMALLEST, LARGEST, FACTOR = 1 << 10, 16 << 20, 8  # bytes of messages, and from one size to the next


def relayed(grid: Grid, group: Comm, nbytes: int, upstream_first: bool) -> Run:
    """Broadcast each rank's panel around the ring, in the order of 1D or of SUMMA, whose roots descend."""
    shapes = [(_floats(nbytes), 1)] * group.size
    own, roots = filled(grid.backend, shapes[0]), list(range(group.size))[::-1]
    turns = upstream(group, roots) if upstream_first else None

    def run() -> None:
        with broadcast(grid, group, "H", roots, lambda stage: own, shapes, np.float32, turns):
            pass  # the end of the context takes all panels

    return run


def exchanged(grid: Grid, group: Comm, nbytes: int) -> Run:
    """Send from every rank to every other half to one and a half times as many bytes.

    Needs of ranks are uneven, so that some wait while others are sent to.
    """
    many = lambda source, to: _floats(nbytes) * (4 + (7 * source + 5 * to) % 9) // 8 + 1  # noqa: E731
    mine = filled(grid.backend, (2 * _floats(nbytes), 1))
    rooms = [(rank, grid.backend.empty((many(rank, group.rank), 1), np.float32)) for rank in group.others()]

    def run() -> None:
        with group.exchange(rooms, "H") as exchange:
            for rank in reversed(group.others()):
                exchange.send(mine[: many(group.rank, rank)], rank)

    return run


def swapped(grid: Grid, group: Comm, nbytes: int, peers: int | None = None) -> Run:
    """Send from every rank to every other, or to so many before it, as many bytes."""
    mine = filled(grid.backend, (_floats(nbytes), 1))
    rooms = [(rank, grid.backend.empty(mine.shape, np.float32)) for rank in group.others()[:peers]]
    receivers = group.others()[::-1][:peers]

    def run() -> None:
        with group.exchange(rooms, "H", operation="alltoall") as exchange:
            for rank in receivers:
                exchange.send(mine, rank)

    return run


def summed(grid: Grid, group: Comm, nbytes: int) -> Run:
    """Sum on all ranks, in blocks as those of products."""
    block = filled(grid.backend, (_floats(nbytes), 1), 0)
    return lambda: add_up(grid, group, block)


def summed_apart(grid: Grid, group: Comm, nbytes: int) -> Run:
    """Sum on each rank, the last one first as in SUMMA."""
    blocks = [filled(grid.backend, (_floats(nbytes), 1), 0) for _ in range(group.size)]

    def run() -> None:
        with group.sums(grid.workspace, grid.overlap) as sums:
            for root, block in reversed([*enumerate(blocks)]):
                sums.start(block, root)

    return run


def by_mpi(grid: Grid, group: Comm, nbytes: int, operation: str) -> Run:
    """Run MPI's own collective."""
    on, count = grid.backend, max(_floats(nbytes), group.size)
    parts, whole = partition(count, group.size), filled(on, (count, 1), 0)
    mine = filled(on, (int(parts[group.rank + 1] - parts[group.rank]), 1), 0)
    calls: dict[str, Run] = {
        "bcast": lambda: group.bcast(whole, 0),
        "allreduce": lambda: group.allreduce(whole),
        "allgather": lambda: group.allgather_rows(mine, parts, whole),
        "reduce_scatter": lambda: group.reduce_scatter_rows(whole, parts, mine),
    }
    return calls[operation]


def _floats(nbytes: int) -> int:
    return max(nbytes // 4, 1)


Make = Callable[..., Run]  # of a grid, a group of its ranks and a number of bytes


class Collective(NamedTuple):
    """A collective operation: its name, the kind of its messages, how to make one of so many bytes, and the
    least and the most of them that are measured.
    """

    name: str
    kind: str
    make: Make
    least: int = SMALLEST
    most: int = LARGEST


COLLECTIVES = (
    Collective("panels in the order of 1D", "bcast", partial(relayed, upstream_first=True)),
    Collective("rows exchanged", "alltoallv", exchanged),
    Collective("columns swapped", "alltoall", swapped),
    Collective("sums in blocks", SUMS, summed, 4 * TUNING.small_sum),
    Collective("MPI's allgather", "allgather", partial(by_mpi, operation="allgather")),
    Collective("sums on one rank", "reduce", summed_apart, 2 * TUNING.small_sum),
    Collective("MPI's reduce_scatter", "reduce_scatter", partial(by_mpi, operation="reduce_scatter")),
    Collective("MPI's allreduce", "allreduce", partial(by_mpi, operation="allreduce")),
    Collective("panels in the order of SUMMA", "bcast", partial(relayed, upstream_first=False)),
    Collective("MPI's bcast", "bcast by MPI", partial(by_mpi, operation="bcast")),
)

#: Messages that show in a moment, and on any number of ranks, what a byte costs, a message, and one more.
FEW = tuple(
    Collective("columns to a neighbour", "alltoall", partial(swapped, peers=peers), least, most)
    for peers, least, most in ((1, 1 << 18, LARGEST), (1, SMALLEST, SMALLEST), (4, SMALLEST, SMALLEST))
)


def series(
    budget: Budget, grid: Grid, axes: Sequence[str], collective: Collective, active: bool,
    least: int = SMALLEST,
) -> list[Measurement]:  # fmt: skip
    """Measure a collective of groups along ``axes`` with messages of rising sizes, as many as the budget
    allows.

    Args:
        active: whether this rank takes part; least: bytes of the smallest message.
    """
    group, samples, each = grid.along(*axes), list[Measurement](), budget.left() / 10
    nbytes, fewest = max(least, collective.least), min(2, budget.least)
    while nbytes <= max(least, collective.most):
        if len(samples) >= fewest and FACTOR * samples[-1].seconds * (LEAST + 2) > budget.left():
            break
        run = collective.make(grid, group, nbytes)
        what = f"{collective.name}, {nbytes} bytes, {group.size} ranks"
        measured = sample(grid.world, what, run, each, group, active)
        samples.append(replace(measured, grid=grid.shape))
        nbytes *= FACTOR
    return samples

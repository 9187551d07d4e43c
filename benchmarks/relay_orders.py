"""Broadcasts of one panel of each rank, taken in three orders (see ``comm/relay.py``): each rank's own first,
as 1D takes them; the last root first, as SUMMA does; the first root first.

    benchmarks/cluster/netlab up 8 100mbit
    benchmarks/cluster/netlab run 8 python benchmarks/relay_orders.py --out benchmarks/results/relay-orders.md

All in turns, into two buffers, with nothing computed meanwhile. Seconds are the median over the turns; a
panel of each rank to all, which links carry in (P - 1) panels' time at best.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.comm.panels import broadcast
from distgnn.comm.relay import upstream


def seconds(grid: dg.Grid, block: np.ndarray, turns: Sequence[int]) -> float:
    """Return the seconds of the slowest rank."""
    shapes, roots = [block.shape] * grid.size, range(grid.size)
    grid.world.barrier()
    start = time.perf_counter()
    with broadcast(grid, grid.world, "H", roots, lambda stage: block, shapes, block.dtype, turns):
        pass  # the end of the context takes all panels
    return grid.world.mpi.allreduce(time.perf_counter() - start, MPI.MAX)


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--kib", type=int, nargs="+", default=[16, 128, 1024], help="sizes of a panel")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    grid = dg.Grid(MPI.COMM_WORLD, backend="numpy", rows=MPI.COMM_WORLD.size)
    size = grid.size
    orders = upstream(grid.world, range(size)), range(size)[::-1], range(size)
    lines = table.columns("panel, KiB", "own first, ms", "last first, ms", "first first, ms", "ratios")
    for kib in args.kib:
        block = np.ones((kib * 256, 1), np.float32)
        taken = [[seconds(grid, block, turns) for turns in orders] for _ in range(args.turns)]
        own, last, first = np.median(taken, axis=0) * 1e3
        ratios = f"1 : {last / own:.2f} : {first / own:.2f}"
        lines.append(f"| {kib} | {own:.2f} | {last:.2f} | {first:.2f} | {ratios} |")
    if grid.rank == 0:
        table.publish(args, "\n".join([table.heading(args, size) + f". {size} ranks.", "", *lines]))


if __name__ == "__main__":
    main()

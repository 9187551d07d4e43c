"""One panel from rank 0 to all others, by the relay of panels (``comm/relay.py``) and by MPI_Bcast.

    MPIR_CVAR_ENABLE_HEAVY_YIELD=1 mpiexec -n 2 python benchmarks/relay.py --out benchmarks/results/relay.md

Both in turns, into memory that has been used before. Seconds are those of the slowest rank, the least of the
turns; the ratio of wall times is the median over the turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.comm.launch import abort_on_error
from distgnn.comm.panels import broadcast


def main() -> None:
    parser = table.arguments(__doc__)
    sizes = [1.0, 8.0, 32.0, 128.0, 512.0, 1024.0]
    parser.add_argument("--mib", type=float, nargs="+", default=sizes, help="sizes of the panel")
    parser.add_argument(
        "--turns", type=int, default=9, help="and more for small panels, up to 256 MiB in all"
    )
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    grid = dg.Grid(comm, rows=comm.size)
    lines = table.columns(
        "panel, MiB", "MPI_Bcast, processor s", "relay", "ratio", "MPI_Bcast, wall s", "relay", "ratio"
    )
    for mib in args.mib:
        times = measure(
            grid, int(mib * 2**18), max(args.turns, int(256 / mib))
        )  # (2, turns, wall and processor)
        cells = []
        for clock in (1, 0):
            library, relay = times[:, :, clock].min(axis=1)
            ratio = relay / library if clock else np.median(times[1, :, 0] / times[0, :, 0])
            cells += [f"{library:.6f}", f"{relay:.6f}", f"{ratio:.2f}"]
        lines.append(f"| {mib:g} | {' | '.join(cells)} |")
    if comm.rank == 0:
        table.publish(args, "\n".join([table.heading(args, comm.size) + f". {comm.size} ranks.", "", *lines]))


def measure(grid: dg.Grid, words: int, turns: int) -> np.ndarray:
    """Measure a broadcast; return seconds: (MPI_Bcast and the relay, turns, wall and processor)."""
    panel = grid.backend.empty((words, 1), np.float32)
    panel[...] = 1 if grid.rank == 0 else 0

    def library() -> None:
        grid.world.mpi.Bcast(panel, 0)

    def relay() -> None:
        how = [0], lambda stage: panel, [panel.shape], np.float32
        with broadcast(grid, grid.world, "H", *how) as panels:
            for got in panels:
                assert got[0, 0] == got[-1, 0] == 1

    for run in (library, relay):
        run()
    found = [[timed(grid.world.mpi, run) for run in (library, relay)] for _ in range(turns)]
    grid.workspace.clear()
    return np.array(found).transpose(1, 0, 2)


def timed(comm: Any, run: Callable[[], None]) -> tuple[float, float]:
    """Return wall and processor seconds, of the slowest rank."""
    comm.Barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return comm.allreduce(wall, MPI.MAX), comm.allreduce(cpu, MPI.MAX)


if __name__ == "__main__":
    abort_on_error()
    main()

"""Memory of A on a node with `rdm` r = 1, where every rank multiplies all of A: copies, and one for all.

    distgnn generate rmat /tmp/large --nodes 524288 --degree 32 --features 1
    distgnn prepare /tmp/large /tmp/large.dg
    mpiexec -n 4 python benchmarks/node_memory.py /tmp/large.dg --out benchmarks/results/node-memory.md

Memory is the sum over the ranks of the proportional set size (PSS) of /proc/self/smaps_rollup, which divides
pages that several processes map by their number: what A adds to it, and the most while A is loaded. Loading
and product: seconds of the slowest rank, the product with 32 columns per rank, the least of five.
"""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store", type=Path)
    args = parser.parse_args()
    comm, rows = MPI.COMM_WORLD, []
    dg.Store(args.store).order().block((0, 1), (0, 1))  # what reading takes once and for all
    for shared in (False, True):
        rows.append(measured(comm, args.store, shared))
    if comm.rank == 0:
        order = dg.Store(args.store).order()
        graph = f"{order.shape[0]:,} nodes, {order.nnz:,} non-zeros, A of {8 * order.nnz / 1e6:.0f} MB"
        heads = table.columns("A", "added, MB", "most while loading, MB", "loading, s", "product, s")
        table.publish(args, "\n".join([f"{table.heading(args, comm.size)}. {graph}.", "", *heads, *rows]))


def measured(comm: MPI.Intracomm, store: Path, shared: bool) -> str:
    """Load A, multiply, and return the row of the table. Collective."""
    grid = dg.Grid(comm, rows=1, cols=comm.size)
    grid.shares_memory = grid.shares_memory and shared
    gc.collect()
    before, watch, start = pss(), Watch(), time.perf_counter()
    with watch:
        A = dg.load(store, grid, "rdm")
        seconds = time.perf_counter() - start
    comm.Barrier()
    figures = [pss() - before, watch.most - before]
    added, most = (comm.allreduce(figure) / 1e6 for figure in figures)
    X = np.ones((A.shape[1], 32 * comm.size), np.float32)
    H, product = dg.scatter(X, A.input_layout), []
    for _ in range(6):
        comm.Barrier()
        with dg.Ledger(timing=True) as ledger:
            A @ H
        product.append(comm.allreduce(ledger.seconds["spmm"], MPI.MAX))
    slowest = comm.allreduce(seconds, MPI.MAX)
    name = "once per node" if shared else "on every rank"
    grid.free()
    return f"| {name} | {added:.0f} | {most:.0f} | {slowest:.1f} | {min(product[1:]):.3f} |"


def pss() -> int:
    """Return this process's proportional set size, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class Watch:
    """The largest proportional set size inside the context, looked at every 20 ms. ``most``: bytes."""

    def __enter__(self) -> None:
        self.most, self.over = pss(), threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, pss())


if __name__ == "__main__":
    main()

"""Epochs in which rows and sums cross the network once per node, beside the same with every rank on its own.

Run several ranks per host, each host with a network interface of its own:

    mpiexec -n 8 -ppn 2 -hosts h1,h2,h3,h4 python benchmarks/tiers.py --out benchmarks/results/tiers.md

Epochs alternate between the two. Bytes are those that the hosts' interfaces receive in an epoch, and what the
ledger counts as words over the network.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from cases import epochs, rmat
from distgnn.arrays.canonical import canonical
from distgnn.operators import make_grid
from wire import received

WAYS: list[tuple[str, dict[str, int], bool | str]] = [
    ("1d", {}, True), ("1d", {}, "cover"), ("1d", {}, False), ("1.5d", {"reps": 4}, False),
    ("1.5d", {"reps": 8}, False), ("3d", {"x": 1, "y": 1, "z": 8}, False),
    ("3d", {"x": 2, "y": 1, "z": 4}, False),
]  # fmt: skip


class Scattered(MPI.Intracomm):
    """A communicator whose ranks take themselves to be on nodes of their own."""

    def Dup(self, *args: Any) -> Scattered:
        return Scattered(super().Dup(*args))

    def Split_type(self, *args: Any, **options: Any) -> MPI.Intracomm:
        return self.Split(self.Get_rank(), 0)


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--interface", default="eth0")
    parser.add_argument("--scale", type=int, default=15, help="log2 of the nodes")
    parser.add_argument("--degree", type=int, default=32, help="before duplicates are merged")
    parser.add_argument("--store", help="a prepared graph in place of R-MAT, cut evenly in its --order")
    parser.add_argument("--order", default="random")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 128, 128, 32])
    parser.add_argument("--epochs", type=int, default=4, help="timed epochs of each, after one to warm up")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    A, graph = matrix(args)
    nodes = len(set(dg.Grid(comm, rows=comm.size).nodes))
    rows = [measure(comm, A, *way, args) for way in WAYS]
    if comm.rank == 0:
        widths = "-".join(map(str, args.widths))
        what = f"{comm.size} ranks on {nodes} nodes; {graph}, {A.nnz:,} non-zeros"
        how = f"widths {widths}; medians of {args.epochs} epochs in turns"
        lines = [f"{table.heading(args, comm.size)}. {what}, {how}.", ""]
        head = "way", "counted MB", "link MB", "flat", "busiest host MB", "flat", "s", "flat", "flat / tiers"
        lines += table.columns(*head) + rows
        table.publish(args, "\n".join(lines))


def matrix(args: argparse.Namespace) -> tuple[Any, str]:
    """Return A and what it is."""
    if args.store:
        stored = dg.Store(args.store)
        whole, source = (0, stored.n), stored.order(args.order).versions[0]
        return canonical(source.block(whole, whole), np.float32), f"{args.store}, order {args.order}"
    A = rmat(1 << args.scale, args.degree)
    return A.astype(np.float32), f"R-MAT 2^{args.scale}"


def measure(
    comm: MPI.Intracomm, A: Any, name: str, sizes: dict[str, int], aware: bool | str, args: argparse.Namespace
) -> str:
    """Return a line of the table: medians over the epochs of a way to train, with two tiers and flat."""
    grids = [make_grid(to, name, sizes) for to in (comm, Scattered(comm))]
    runs = [timed(grid, A, name, aware, grids[0].nodes, args) for grid in grids]
    found = np.array([[next(run) for run in runs] for _ in range(1 + args.epochs)])[1:]
    losses = found[:, :, 0]
    assert np.allclose(losses[:, 0], losses[:, 1], rtol=1e-5), "tiers change the loss"
    (counted, link, busiest, seconds), flat = np.median(found[:, :, 1:], axis=0)
    shape = "x".join(map(str, grids[0].shape.values()))
    how = {True: " needed rows", False: ""}.get(aware, " covers")
    mb = [counted, link, flat[1], busiest, flat[2]]
    for grid in grids:
        grid.free()
    numbers = [f"{1e-6 * x:.1f}" for x in mb]
    numbers += [f"{seconds:.3f}", f"{flat[3]:.3f}", f"{flat[3] / seconds:.2f}"]
    return f"| {name} {shape}{how} | {' | '.join(numbers)} |"


def timed(
    grid: dg.Grid, A: Any, name: str, aware: bool | str, hosts: list[int], args: argparse.Namespace
) -> Iterator[list[float]]:
    """Train without end; yield loss, bytes counted and received by all hosts and the busiest, and seconds."""
    records = epochs(grid, A, name, args.widths, aware)
    comm, first = grid.world.mpi, hosts.index(hosts[grid.rank]) == grid.rank
    while True:
        comm.Barrier()
        before = received(args.interface)
        comm.Barrier()
        with dg.Ledger() as ledger:
            record = next(records)
        comm.Barrier()
        link = comm.allgather((received(args.interface) - before) * first)
        counted = comm.allreduce(ledger.far)
        seconds = comm.allreduce(record["seconds"], MPI.MAX)
        yield [record["loss"], A.dtype.itemsize * counted, sum(link), max(link), seconds]


if __name__ == "__main__":
    main()

"""Does the ledger tell the truth? Bytes it charges against bytes the network cards count, for every
algorithm.

Run one rank per host, each host with its own network interface:

    mpiexec -n 4 -hosts h1,h2,h3,h4 python benchmarks/wire.py --interface eth0
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.gallery import rmat
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids, make_grid


def received(interface: str) -> int:
    """Return bytes this host's interface has received so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[0])
    raise SystemExit(f"no interface {interface} here; name one with --interface")


def measure(A, X, grid, name: str, aware: bool, args) -> tuple[int, int, int]:
    """Measure (ledger bytes, wire bytes, messages) over all ranks for ``--products`` pairs of A @ H and A.T @
    G.
    """
    operator = dg.distribute(A, grid, name, sparsity_aware=aware)
    H = dg.scatter(X, operator.input_layout)
    G = dg.scatter(X, operator.output_layout)
    operator.T @ (operator @ H)  # connections are opened at first use
    comm = grid.world
    comm.barrier()
    before = received(args.interface)
    comm.barrier()
    with dg.Ledger() as ledger:
        for _ in range(args.products):
            operator @ H
            operator.T @ G
    comm.barrier()
    wire = received(args.interface) - before
    totals = np.array([ledger.bytes, wire, ledger.messages], dtype=np.int64)
    comm.mpi.Allreduce(MPI.IN_PLACE, totals)
    return int(totals[0]), int(totals[1]), int(totals[2])


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--interface", default="eth0")
    parser.add_argument("--nodes", type=int, default=65_536)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--products", type=int, default=3)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    graph = rmat(args.nodes, degree=args.degree, features=0, classes=0, directed=True)
    A = graph.A.astype(np.float32)
    X = np.random.default_rng(0).standard_normal((A.shape[0], args.width)).astype(np.float32)
    if comm.rank == 0:
        print(
            f"directed R-MAT, {A.shape[0]:,} nodes, {A.nnz:,} non-zeros, width {args.width}, float32; "
            f"{comm.size} ranks, one"
        )
        print(
            f"per host; {args.products} products with A and {args.products} with its transpose; MB over all "
            "ranks\n"
        )
        print("| algorithm | grid | ledger MB | wire MB | wire / ledger | messages |")
        print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, aware in [*((name, False) for name in ALGORITHMS), *((name, True) for name in SPARSITY_AWARE)]:
        for sizes in grids(name, comm.size):
            grid = make_grid(comm, name, sizes)
            charged, wire, messages = measure(A, X, grid, name, aware, args)
            if comm.rank == 0 and charged:
                shape = "x".join(str(size) for size in sizes.values())
                what = f"{name} --sparsity-aware" if aware else name
                print(
                    f"| {what} | {shape} | {charged / 1e6:.2f} | {wire / 1e6:.2f} | {wire / charged:.3f} | "
                    f"{messages} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

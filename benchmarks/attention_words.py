"""Bytes of the forward pass of a layer of graph attention beside those of a GCN's, by ledger and by network.

Run one rank per host, each host with its own network interface (``benchmarks/cluster``):

    netlab up 4 1gbit
    netlab run 4 python benchmarks/attention_words.py --out benchmarks/results/attention.md

Both layers take H W through A, of f columns. In `1d`, GAT sends f + h words of each row where a GCN sends f,
for h heads: 1 + h/f times as many. In `1.5d`, so it is with rows, while the all-reduces over ``reps`` have
f + 2 h words of a row: the product, and maxima and sums of the softmax. `2d` sends h numbers more with each
entry of A's panels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.gallery import rmat
from distgnn.layout import written
from distgnn.nn import NETWORKS
from distgnn.operators import grids, make_grid
from wire import received

WAYS = (("1d", True), ("1d", False), ("1.5d", True), ("1.5d", False), ("2d", False))


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--interface", default="eth0")
    parser.add_argument("--scale", type=int, default=15, help="2^SCALE nodes")
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of all heads together")
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()
    comm, rows = MPI.COMM_WORLD, []
    A = rmat(1 << args.scale, degree=args.degree, directed=True, features=0, classes=0).A.astype(np.float32)
    for name, aware in WAYS:
        for sizes in grids(name, comm.size):
            if name == "1d" or max(sizes.values()) < comm.size:
                cells = compared(make_grid(comm, name, sizes), A, name, aware, args)
                rows.append(f"| {name}{', needed rows' if aware else ''} | {written(sizes)} | {cells} |")
    if comm.rank == 0:
        graph = f"directed R-MAT, {A.shape[0]:,} nodes, {A.nnz:,} non-zeros"
        names = "GCN", "GAT", "ratio", "ratio by docstrings", "GCN, wire", "GAT, wire", "ratio"
        head = table.columns("algorithm", "grid", *names)
        text = f"{table.heading(args, comm.size)}; {graph}, f = {args.width}, h = {args.heads}, float32"
        text += "; MB that all ranks receive in a forward pass."
        table.publish(args, "\n".join([text, "", *head, *rows]))


def compared(grid: dg.Grid, A: Any, name: str, aware: bool, args: Any) -> str:
    """Measure both layers, and return the cells of a row."""
    operator = dg.distribute(A, grid, name, sparsity_aware=aware)
    gcn, gat = (measured(operator, model, args) for model in ("gcn", "gat"))
    more = args.heads / args.width
    expected = "" if name == "2d" else (1 + more) * gcn[0] + (1 + 2 * more) * gcn[1]
    said = f"{expected / sum(gcn[:2]):.4f}" if expected else ""
    mega = [f"{x / args.passes / 1e6:.3f}" for x in (sum(gcn[:2]), sum(gat[:2]), gcn[2], gat[2])]
    ratios = f"{sum(gat[:2]) / sum(gcn[:2]):.4f}", f"{gat[2] / gcn[2]:.4f}"
    return " | ".join([*mega[:2], ratios[0], said, *mega[2:], ratios[1]])


def measured(operator: Any, model: str, args: Any) -> tuple[int, int, int]:
    """Return bytes of sums over ranks, all others, and those that came over the wire, over all ranks."""
    options = {"heads": (args.heads, 1)} if model == "gat" else {"product_order": "transform-first"}
    network = NETWORKS[model](operator, [args.width, args.width, 4], **options)
    H = dg.scatter(np.ones((operator.shape[1], args.width), np.float32), network.input_layout)
    network.forward(H, layers=1)  # connections are opened, and row numbers told, at first use
    comm = operator.grid.world
    comm.barrier()
    before = received(args.interface)
    comm.barrier()
    with dg.Ledger() as ledger:
        for _ in range(args.passes):
            network.forward(H, layers=1)
    comm.barrier()
    wire = received(args.interface) - before
    sums = sum(entry["bytes"] for entry in ledger.entries() if entry["matrix"] == "sums")
    totals = np.array([ledger.bytes - sums, sums, wire], dtype=np.int64)
    comm.mpi.Allreduce(MPI.IN_PLACE, totals)
    return tuple(totals.tolist())


if __name__ == "__main__":
    main()

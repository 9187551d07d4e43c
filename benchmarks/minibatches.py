"""Seconds of an epoch of minibatch training and what they are spent on (Tripathy et al., MLSys 2024, figures
4 and 6).

    distgnn generate rmat rmat21 --scale 21 --degree 16 --features 64 --classes 16 --split 0.05/0.05/0.1
    distgnn prepare rmat21 rmat21.dg
    mpiexec -n 4 python benchmarks/minibatches.py rmat21.dg --out benchmarks/results/minibatches.md

Table 4's networks: GraphSAGE, batches of 1024, fanout 15, 10, 5; LADIES, batches of 512, 512 nodes per layer,
here two layers and one. With the graph on every rank and partitioned, for every replication factor. The first
epoch of each is not counted; evaluation is not part of an epoch. Seconds are means over ranks, those of
waiting for others included; sampling and fetching include their communication.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.comm.launch import abort_on_error
from distgnn.nn import GCN, Adam, SageMean
from distgnn.operators import grids, make_grid
from distgnn.sampling import GraphSage, Ladies, Partitioned, Replicated
from distgnn.store import load_targets
from distgnn.store.read.neighbours import Neighbours
from distgnn.train import MinibatchTraining
from distgnn.train.minibatch import STEPS
from distgnn.train.settings import PER_UPDATE

#: Name -> (network, sampler, fanout, batch size)
KINDS: dict[str, tuple[Any, Any, list[int], int]] = {
    "SAGE 15,10,5": (SageMean, GraphSage, [15, 10, 5], 1024),
    "LADIES 512,512": (GCN, Ladies, [512, 512], 512),
    "LADIES 512": (GCN, Ladies, [512], 512),
}


def main() -> None:
    abort_on_error()
    parser = table.arguments(__doc__)
    parser.add_argument("store")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4, help="counted")
    parser.add_argument("--bulk", type=int, nargs="+", default=[8])
    parser.add_argument("--copies", type=int, nargs="+", help="replication factors (default: all)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    args = parser.parse_args()
    comm, store = MPI.COMM_WORLD, dg.Store(args.store)
    lines = [line for kind in args.kinds for line in rows(comm, store, kind, args)]
    if comm.rank == 0:
        text = report(store, lines, comm.size, args)
        table.publish(args, text)


def rows(comm: MPI.Intracomm, store: dg.Store, kind: str, args: argparse.Namespace) -> Iterator[str]:
    """Return lines of the table: replicated and partitioned, c = 1, ..., P."""
    for sizes in sorted(grids("1.5d", comm.size), key=lambda sizes: sizes["reps"]):
        if args.copies is not None and sizes["reps"] not in args.copies:
            continue
        grid = make_grid(comm, "1.5d", sizes)
        for partitioned in (False, True):
            for line in measure(grid, store, kind, partitioned, args):
                if comm.rank == 0:
                    print(line, file=sys.stderr, flush=True)
                yield line
        grid.free()


def measure(
    grid: dg.Grid, store: dg.Store, kind: str, partitioned: bool, args: argparse.Namespace
) -> Iterator[str]:
    network, sampler, fanout, batch_size = KINDS[kind]
    order = store.order()
    matrix: Any = Neighbours(order, not store.manifest["directed"]) if network is SageMean else order
    operator = dg.load(store, grid, "1.5d", neighbours=network is SageMean)
    hidden = [args.hidden] * (len(fanout) - 1)
    X = dg.load_features(store, operator.input_layout)
    there = grid.backend
    graph = Partitioned(grid, matrix, order.partition) if partitioned else Replicated(matrix, backend=there)
    for bulk in args.bulk:
        model = network(operator, [store.width, *hidden, store.classes])
        targets = model.targets(*load_targets(store, model.output_layout))
        training = MinibatchTraining(
            model, X, targets, sampler(graph, fanout), batch_size, max(PER_UPDATE, grid.size), bulk
        )
        records = list(training.train(Adam(), args.epochs + 1, eval_every=0))[1:]
        steps = np.array([[record["steps"][name] for name in STEPS] for record in records])
        everybody = np.array(
            grid.world.gather_objects([np.median([r["seconds"] for r in records]), *np.median(steps, axis=0)])
        )
        seconds, *parts = everybody.mean(axis=0)
        words = sum(grid.world.gather_objects(records[0]["words"])) / 1e6
        shares = " | ".join(f"{part:.2f} ({part / seconds:.0%})" for part in parts)
        how = f"{kind} | {'partitioned' if partitioned else 'on every rank'} | {grid.shape['reps']} | {bulk}"
        yield f"| {how} | {seconds:.2f} | {shares} | {words:,.0f} | {records[-1]['loss']:.3f} |"


def report(store: dg.Store, lines: list[str], ranks: int, args: argparse.Namespace) -> str:
    training = store.manifest["split"]["train"]
    return "\n".join([
        table.heading(args, ranks)
+ f". {store.manifest['source']}, {store.n:,} nodes, {store.nnz:,} non-zeros, {training:,} training nodes, "
        f"{store.width} features, hidden width {args.hidden}, {store.classes} classes, float32; {ranks} "
        "ranks of one thread. "
        f"Seconds of an epoch: median of {args.epochs}, mean of ranks.", "",
        *table.columns("minibatches", "graph", "c", "bulk", "epoch, s", *STEPS, "million words", "loss"),
        *lines, "", "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()

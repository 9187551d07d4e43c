"""Epochs whose next bulk of minibatches is sampled behind training, beside the same epochs without.

Run one rank per host:

    mpiexec -n 4 -hosts h1,h2,h3,h4 python benchmarks/behind.py --name "1 Gbit/s" --out
    benchmarks/results/behind.md

GraphSAGE and LADIES on an R-MAT in parts (`--whole`: on every rank). Epochs of both ways alternate; losses
must be equal to the last bit. Features of the next minibatch travel behind training in both. Quoted are
medians, of each epoch the rank that took longest. Waits are seconds in which a rank waits for messages or
drives MPI, by what they are for; *exposed* are those for sampling and features over the epoch.

`--memory` measures no seconds: how far the memory of a rank, of all the one with the most, rises above what
it holds with graph, network and features, in an epoch and while the whole graph is scored after it, for the
first time and for a later one. The first scores make A X where there is no dropout, which stays.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import high_water
import table
from cases import rmat
from distgnn import rng
from distgnn.comm.launch import abort_on_error
from distgnn.nn import GCN, SGD, SageMean
from distgnn.operators import make_grid
from distgnn.operators.dense import DistDense
from distgnn.sampling import GraphSage, Ladies, Partitioned, Replicated, Sampler
from distgnn.train import MinibatchTraining

SAMPLERS = {"sage": (GraphSage, (15, 10)), "ladies": (Ladies, (512, 512))}
WAITS = "sampling", "features", "gradients"
NAMES, PHASES = {False: "one after the other", True: "behind training"}, ("epoch", "scores")


def main() -> None:
    abort_on_error()
    parser = table.arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=1 << 19)
    parser.add_argument("--degree", type=float, default=16, help="of R-MAT, before duplicates are merged")
    parser.add_argument("--widths", type=int, nargs="+", default=[100, 64, 16], help="of features and layers")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS))
    parser.add_argument("--minibatches", type=int, default=128, help="of an epoch")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--bulks", type=int, nargs="+", default=[4], help="minibatches sampled at a time")
    parser.add_argument("--replication", type=int, default=1, help="copies of the features")
    parser.add_argument("--whole", action="store_true", help="the graph is on every rank")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each, after one to warm up")
    parser.add_argument("--memory", action="store_true", help="measure memory, not seconds")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    A = rmat(args.nodes, args.degree).astype(np.float32)
    ways = [(name, bulk) for name in args.samplers for bulk in args.bulks]
    lines = [line for way in ways for line in (held if args.memory else measured)(comm, A, *way, args)]
    if comm.rank == 0:
        seconds = "epoch s", "sampling s", *(f"waits for {what} s" for what in WAITS), "exposed"
        memory = "held, MiB", *(f"{when} {what} adds" for when in ("first", "later") for what in PHASES)
        head = table.columns("sampler", "bulk", "way", *(memory if args.memory else seconds))
        size = f"R-MAT, {A.shape[0]:,} nodes, {A.nnz:,} non-zeros, {'whole' if args.whole else 'in parts'}"
        size += f"; {args.minibatches} minibatches of {args.batch}"
        size += f", dropout {args.dropout}." if args.memory else f", {args.epochs} epochs in turns."
        table.publish(args, "\n".join([f"{table.heading(args, comm.size)}. {size}", "", *head, *lines]))


def measured(
    comm: MPI.Intracomm, A: sp.csr_array, name: str, bulk: int, args: argparse.Namespace
) -> Iterator[str]:
    """Measure both ways in turns. Collective."""
    grid, sampler = source(comm, A, name, args)
    runs = {ahead: made(grid, A, sampler, bulk, args) for ahead in (False, True)}
    found: dict[bool, list[np.ndarray]] = {False: [], True: []}
    losses: dict[bool, list[Any]] = {False: [], True: []}
    for epoch in range(1, args.epochs + 2):
        for ahead, run in runs.items():
            run.ahead = ahead
            numbers, totals = timed(run, epoch)
            comm.Allreduce(MPI.IN_PLACE, numbers, MPI.MAX)
            found[ahead].append(numbers)
            losses[ahead].append(totals)
    assert losses[False] == losses[True], "the order of messages changes the result"
    for ahead, way in NAMES.items():
        seconds, sampling, *waits = np.median(found[ahead][1:], axis=0)
        shown = " | ".join(f"{number:.3f}" for number in (seconds, sampling, *waits))
        exposed = (waits[0] + waits[1]) / seconds
        yield f"| {name} | {bulk} | {way} | {shown} | {exposed:.0%} |"
    grid.free()


def held(
    comm: MPI.Intracomm, A: sp.csr_array, name: str, bulk: int, args: argparse.Namespace
) -> Iterator[str]:
    """Measure the memory of epochs and of scores, each way by itself. Collective."""
    for ahead, way in NAMES.items():
        grid, sampler = source(comm, A, name, args)
        run = made(grid, A, sampler, bulk, args)
        run.ahead = ahead
        start, marks = high_water.begin(), list[int | None]()
        for epoch in (1, 2):
            list(run.updates(SGD(0.01), epoch))
            marks.append(high_water.above(start))
            high_water.begin()
            run.evaluate()
            marks.append(high_water.above(start))
            high_water.begin()
        figures = [most(comm, figure) for figure in (start, *marks)]
        yield f"| {name} | {bulk} | {way} | {' | '.join(map(high_water.mib, figures))} |"
        grid.free()


def most(comm: MPI.Intracomm, figure: int | None) -> int | None:
    """Return the largest figure of all ranks; None where one has none."""
    figures = comm.allgather(figure)
    return None if None in figures else max(figures)


def source(
    comm: MPI.Intracomm, A: sp.csr_array, name: str, args: argparse.Namespace
) -> tuple[dg.Grid, Sampler]:
    """Make the grid, and the sampler of a graph in parts or whole."""
    grid = make_grid(comm, "1.5d", replication=args.replication, backend="numpy")
    kind, fanout = SAMPLERS[name]
    return grid, kind(Replicated(A, grid=grid) if args.whole else Partitioned(grid, A), fanout)


def timed(run: MinibatchTraining, epoch: int) -> tuple[np.ndarray, list[Any]]:
    """Train an epoch; return its seconds, those of sampling's computation, those of waits; and its losses."""
    run.grid.world.barrier()
    start = time.perf_counter()
    with dg.Ledger(timing=True) as counted:
        totals = list(run.updates(SGD(0.01), epoch))
    waits = dict.fromkeys(WAITS, 0.0)
    for entry in counted.entries():
        if entry["phase"] == "comm":
            of_features = "features" if entry["group"] == "rows" else "sampling"
            waits["gradients" if entry["matrix"] == "gradients" else of_features] += entry["seconds"]
    seconds = time.perf_counter() - start, counted.seconds.get("sampling", 0.0)
    return np.array([*seconds, *waits.values()]), totals


def made(grid: dg.Grid, A: sp.csr_array, sampler: Sampler, bulk: int, args: argparse.Namespace) -> Any:
    """Make a training of so many minibatches, on random features."""
    n, widths = A.shape[0], args.widths
    network = SageMean if isinstance(sampler, GraphSage) else GCN
    model: Any = network(dg.distribute(A, grid, "1.5d"), widths, dropout=args.dropout)
    split = np.full(n, 2, np.uint8)
    split[np.random.default_rng(0).choice(n, args.minibatches * args.batch, replace=False)] = 1
    targets = model.targets((np.arange(n) % widths[-1]).astype(np.int32), split)
    X = DistDense.empty(model.input_layout, (n, widths[0]), A.dtype)
    rows, columns = np.arange(*X.row_range), np.arange(*X.col_range)
    for start in range(0, len(rows), 4096):
        X.block[start : start + 4096] = rng.uniform(0, rows[start : start + 4096], columns) - 0.5
    return MinibatchTraining(model, X, targets, sampler, args.batch, grid.size, bulk)


if __name__ == "__main__":
    main()

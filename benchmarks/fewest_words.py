"""Bytes that the busiest host receives in an epoch, and its seconds: every way to train, also in 16 bits.

Run on hosts that have a network interface each, with orders of the store for as many ranks:

    distgnn generate rmat GRAPH --nodes 65536 --degree 32 --features 128 --classes 32
    distgnn prepare GRAPH rmat.dg --order random,double --partition metis:4,volume:4
    mpiexec -n 4 -hosts h1,h2,h3,h4 python benchmarks/fewest_words.py rmat.dg

Epochs of each way alternate with those of the first, 1D with the needed rows in a random order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE
from distgnn.plan.settle import settle_together
from distgnn.train.run import Run
from distgnn.train.settings import Settings
from wire import received

#: Algorithm, grid, order, sparsity-aware, wire.
Way = tuple[str, str | None, str, bool | str | None, str | None]
FIRST: Way = ("1d", None, "random", True, None)


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--interface", default="eth0")
    parser.add_argument("--machine", help="of the planner that chooses the way `auto`; default: no such way")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs of each, after one to warm up")
    parser.add_argument("--only", default="", help="ways whose names match this regular expression")
    parser.add_argument("--dropout", type=float, default=0.0, help="with 0 (default), A X is made once")
    args = parser.parse_args()
    comm, store = MPI.COMM_WORLD, dg.Store(args.store)
    lines = []
    for way in ways(store, comm.size, args.machine is not None):
        if re.search(args.only, named(way)):
            lines.append(measure(comm, way, args))
            if comm.rank == 0:
                print(lines[-1], flush=True)
    if comm.rank == 0:
        what = f"R-MAT, {store.n:,} nodes, {store.nnz:,} non-zeros, 3 layers x 128, dropout {args.dropout}"
        heads = (
            "way",
            "busiest host MB",
            "s",
            "s of the first in turns",
            "times as fast",
            "loss / the first's",
        )
        heading = [f"{table.heading(args, comm.size)}. {what}.", "", *table.columns(*heads)]
        table.publish(args, "\n".join([*heading, *lines]))


def ways(store: dg.Store, ranks: int, planned: bool) -> Iterator[Way]:
    """Yield the ways on so many ranks, and those with the fewest bytes in 16 bits, too."""
    parts = [name for name in store.orders if name.endswith(f"-{ranks}")]
    half = f"2x{ranks // 2}"
    yield FIRST
    for order in ("random", *parts):
        for name in SPARSITY_AWARE:
            grid = {"1d": None, "1.5d": f"{ranks // 2}x2", "rdm": half}[name]
            for aware in (True, "cover"):
                if (order == "random" or name == "1d") and (name, grid, order, aware, None) != FIRST:
                    yield name, grid, order, aware, None
    for name in ALGORITHMS:
        yield (
            name,
            f"1x{ranks}" if name == "rdm" else None,
            "double" if name == "3d" else "random",
            False,
            None,
        )
    yield "rdm", f"1x{ranks}", "random", True, None
    yield "1d", None, "random", "cover", "bfloat16"
    yield "rdm", f"1x{ranks}", "random", True, "bfloat16"
    if planned:
        yield "auto", None, "auto", None, None


def named(way: Way) -> str:
    name, grid, order, aware, wire = way
    how = {True: " needed rows", False: "", "cover": " covers", None: ""}[aware]
    return f"{name}{f' {grid}' if grid else ''}{how}, {order}{f', {wire}' if wire else ''}"


def opened(comm: MPI.Intracomm, way: Way, args: table.argparse.Namespace) -> Run:
    """Make a run of a way, without an end."""
    name, grid, order, aware, wire = way
    settings = Settings(
        algorithm=name, grid=grid, order=order, sparsity_aware=aware, wire=wire, layers=3, hidden=(128,),
        epochs=1 << 20, eval_every=0, tune_gemm=False, dropout=args.dropout,
    )  # fmt: skip
    if name == "auto":
        settings = settle_together(comm, settings, args.store, args.machine).settings
    return Run(str(args.store), settings, comm)


def measure(comm: MPI.Intracomm, way: Way, args: table.argparse.Namespace) -> str:
    """Return a line of the table: medians over the epochs of a way, and of the first in turns with it."""
    runs = [opened(comm, tried, args) for tried in (way, FIRST)]
    timed = [epochs(comm, run, args.interface) for run in runs]
    numbers = np.array([[next(one) for one in timed] for _ in range(1 + args.epochs)])
    busiest, seconds = np.median(numbers[1:, :, 1:], axis=0).T
    loss = numbers[-1, 0, 0] / numbers[-1, 1, 0]
    assert abs(loss - 1) < (1e-2 if way[-1] else 1e-4), "another loss"
    shape = "x".join(map(str, runs[0].grid.shape.values()))
    taken = runs[0].settings
    chosen = named((str(taken.algorithm), None, str(taken.order), taken.sparsity_aware, taken.wire))
    name = f"{named(way) if way[0] != 'auto' else f'auto: {chosen}'} ({shape})"
    for run in runs:
        run.grid.free()
    shown = f"{1e-6 * busiest[0]:.1f} | {seconds[0]:.3f} | {seconds[1]:.3f} | {seconds[1] / seconds[0]:.2f}"
    return f"| {name} | {shown} | {loss:.6f} |"


def epochs(comm: MPI.Intracomm, run: Run, interface: str) -> Iterator[tuple[float, int, float]]:
    """Train without end; yield loss, bytes that the busiest host receives, seconds of the slowest rank."""
    records = run.train()
    while True:
        comm.Barrier()
        before = received(interface)
        comm.Barrier()
        record = next(records)
        comm.Barrier()
        busiest = comm.allreduce(received(interface) - before, MPI.MAX)
        yield record["loss"] or 0.0, busiest, comm.allreduce(record["seconds"], MPI.MAX)


if __name__ == "__main__":
    main()

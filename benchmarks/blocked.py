"""Epochs of 3D training with products summed in row blocks, each while the next is multiplied (Plexus section
5.2 and Figure 6).

Run one rank per host, at some rate of their links:

    mpiexec -n 4 -hosts h1,h2,h3,h4 python benchmarks/blocked.py --name "200 Mbit/s" --out
    benchmarks/results/blocked.md

"Whole" sums a product when all of it is there. Epochs of all ways take turns, so that what else the machine
does hits all alike; what is quoted are medians, of each epoch the rank that took longest. Losses of all must
be equal to the last bit.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from datetime import date
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.arrays.tuning import TUNING
from distgnn.bench import timing
from distgnn.comm.launch import abort_on_error
from distgnn.operators import make_grid
from distgnn.train.ways import parse_grid
from overlap import GRAPHS
from training import epochs

WHOLE = 1 << 40  # rows


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--graph", choices=list(GRAPHS), default="rmat")
    parser.add_argument("--scale", type=int, default=16, help="log2 of the nodes")
    parser.add_argument(
        "--degree", type=float, default=32, help="non-zeros per node, of rmat before duplicates are merged"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 128, 128, 32])
    parser.add_argument("--grids", nargs="+", default=["2x2x1"])
    parser.add_argument("--block-rows", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--epochs", type=int, default=4, help="timed epochs of each, after one to warm up")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    A = GRAPHS[args.graph](1 << args.scale, args.degree)
    text = "".join(report(grid, measure(comm, A, grid, args), comm.size, args) for grid in args.grids)
    if comm.rank == 0:
        table.publish(args, text)


def measure(comm: MPI.Intracomm, A: Any, shape: str, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return for each way the medians of what :func:`timed` yields."""
    grid = make_grid(comm, "3d", parse_grid(shape, "3d"))
    ways = [("whole", WHOLE, False), ("default", None, True)]
    ways += [(f"{rows:,}", rows, overlap) for rows in args.block_rows for overlap in (False, True)]
    runs = {(name, overlap): timed(grid, A, rows, overlap, args.widths) for name, rows, overlap in ways}
    samples: dict[Any, list[np.ndarray]] = {key: [] for key in runs}
    for _ in range(1 + args.epochs):
        losses = set()
        for key, run in runs.items():
            loss, measured = next(run)
            losses.add(loss)
            slowest = np.array(measured)
            comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
            samples[key].append(slowest)
        assert len(losses) == 1, "blocks change the result"
    return {key: np.median(found[1:], axis=0) for key, found in samples.items()}


def timed(
    grid: dg.Grid, A: Any, rows: int | None, overlap: bool, widths: list[int]
) -> Iterator[tuple[float, list[float]]]:
    """Train without end; yields the loss and (seconds, exposed communication, words) of an epoch."""
    records = epochs(grid, A, "3d", widths)
    while True:
        grid.overlap, grid.block_rows = overlap, rows
        grid.world.barrier()
        record = next(records)
        yield record["loss"], [record["seconds"], record["phases"]["comm"], float(record["words"])]


def report(shape: str, medians: dict[Any, np.ndarray], ranks: int, args: argparse.Namespace) -> str:
    """Write the results as Markdown."""
    widths = "-".join(map(str, args.widths))
    whole, exposed_whole, words = medians["whole", False]
    lines = [
        f"## {args.name or 'no name'}: {args.graph}, 3d {shape} ({date.today()})",
        "",
        f"`mpiexec -n {ranks} python benchmarks/blocked.py {shlex.join(sys.argv[1:])}`; {timing.machine()}. "
        f"{args.graph} "
        f"2^{args.scale}, about {args.degree:g} non-zeros per node, widths {widths}; {4e-6 * words:.1f} MB "
        "received per rank and "
        f"epoch; medians of {args.epochs} epochs in turns, of the slowest rank. By default a product has "
        f"{TUNING.sum_blocks} "
        f"blocks, or more where they would be over {TUNING.sum_chunk >> 20} MiB.",
        "",
        *table.columns(
            "rows of a block", "sums", "seconds per epoch", "against whole", "exposed communication"
        ),
        f"| whole | when all is there | {whole:.3f} | 1.00 | {exposed_whole:.3f} s |",
    ]
    for (name, overlap), (seconds, exposed, _) in medians.items():
        if name != "whole":
            how = "while the next is multiplied" if overlap else "before the next is multiplied"
            lines.append(f"| {name} | {how} | {seconds:.3f} | {whole / seconds:.2f} | {exposed:.3f} s |")
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    abort_on_error()
    main()

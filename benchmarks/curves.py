"""Loss curves of 3D training against the serial reference (Plexus Figure 8): several grids, single and double
permutation.

    distgnn generate sbm graph --nodes 20000 --communities 64 --features 128 --classes 32
    distgnn prepare graph graph.dg --order random,double
    mpiexec -n 8 python benchmarks/curves.py graph.dg --out benchmarks/results/curves.md

The network is the paper's (section 6.2): three layers, hidden width 128, AdamW, the features trained too.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI

import table
from distgnn import cli
from distgnn.cli import train
from distgnn.comm.launch import abort_on_error
from distgnn.store import Store
from distgnn.train.resolve import resolved
from distgnn.train.serial import reference

GRIDS = ("1x1x1", "2x2x1", "1x2x2", "2x2x2", "3x2x1")
ORDERS = ("random", "double")
EPOCHS = 10
NETWORK = (
    "--layers 3 --hidden 128 --optimizer adamw --weight-decay 0.01 --train-features --no-tune-gemm --quiet"
)


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store", help="with the orders random and double")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    curves = {(grid, order): curve(comm, args.store, grid, order) for grid in GRIDS for order in ORDERS}
    if comm.rank == 0:
        text = report(serial(args.store), {key: losses for key, losses in curves.items() if losses}, args)
        table.publish(args, text)


def parsed(store: str, grid: str, order: str, *more: str) -> argparse.Namespace:
    """Parse the flags of `distgnn train` with the paper's network."""
    where = ["--algorithm", "3d", "--grid", grid, "--order", order, "--epochs", str(EPOCHS)]
    return cli.parse(["train", store, "--recipe=plain", *where, *NETWORK.split(), *more])


def curve(comm: MPI.Intracomm, store: str, grid: str, order: str) -> list[float]:
    """Return the loss of every epoch, on as many of the ranks as the grid has; known on rank 0, empty where
    there are too few ranks.
    """
    ranks = int(np.prod([int(size) for size in grid.split("x")]))
    some = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED)
    losses: list[float] = []
    if some != MPI.COMM_NULL and ranks <= comm.size:
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(some.bcast(folder), "run.jsonl")
            train.run(parsed(store, grid, order, "--log", log), some)
            if comm.rank == 0:
                records = map(json.loads, Path(log).read_text().splitlines())
                losses = [record["loss"] for record in records if record["event"] == "epoch"]
            some.Barrier()
        some.Free()
    comm.Barrier()
    return losses


def serial(store: str) -> list[float]:
    """Return the loss of every epoch of the serial reference, in float64: in float32 most of the difference
    would be its rounding.
    """
    opened = Store(store)
    settings = train.settings(parsed(store, "1x1x1", "random", "--dtype", "float64"))
    widths = [opened.width, *settings.hidden_widths, opened.classes]
    training = reference(opened, opened.order("random"), widths, resolved(settings, 1))
    return [loss for epoch in range(1, EPOCHS + 1) for loss in training.epoch(epoch, settings.lr)]


def report(
    expected: list[float], curves: dict[tuple[str, str], list[float]], args: argparse.Namespace
) -> str:
    """Write the results as Markdown."""
    store = Store(args.store)
    shown = (1, 2, 5, EPOCHS)
    lines = [
        table.heading(args, MPI.COMM_WORLD.size)
        + f". {store.n:,} nodes, {store.nnz:,} non-zeros, {store.width} features, {store.classes} classes; "
        f"`train --algorithm 3d {NETWORK}` in float32.",
        "",
        f"| grid | order | {' | '.join(f'loss {epoch}' for epoch in shown)} | largest relative difference in "
        f"{EPOCHS} epochs |",
        "|---|---|" + "---:|" * (len(shown) + 1),
        f"| serial, float64 | | {' | '.join(f'{expected[epoch - 1]:.7f}' for epoch in shown)} | |",
    ]
    for (grid, order), losses in curves.items():
        largest = np.max(np.abs(np.subtract(losses, expected)) / np.abs(expected))
        lines.append(
            f"| {grid} | {order} | {' | '.join(f'{losses[epoch - 1]:.7f}' for epoch in shown)} | "
            f"{largest:.1e} |"
        )
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    abort_on_error()
    main()

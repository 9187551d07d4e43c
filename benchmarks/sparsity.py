"""Epochs that send whole blocks beside epochs that send only the rows needed, in every order of a store
(Figures 3 and 7 of ``sparsity-aware.txt``).

    distgnn generate road road --nodes 250000 --features 128 --classes 32
    distgnn prepare road road.dg --partition metis:4,volume:4,metis:2,volume:2
    mpiexec -n 4 -hosts h1,h2,h3,h4 python benchmarks/sparsity.py road.dg --name "200 Mbit/s" --out
    benchmarks/results/sparsity.md

Whole blocks and sparsity-aware products in the store's first order, then sparsity-aware ones in each order
whose parts are as many as the grid has block rows. Everything else that helps is on in all of them: overlap,
the narrow side first, A X kept. Epochs take turns; quoted are medians, of each epoch the rank that took
longest. Losses must be equal to rounding. `--interface eth0` also counts the bytes that the network card
sends, where every rank has a host of its own.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.bench import timing
from distgnn.comm.launch import abort_on_error
from distgnn.ledger import Ledger
from distgnn.nn.gcn import GCN
from distgnn.nn.optim import Adam
from distgnn.operators import make_grid
from distgnn.store import Store, load, load_features, load_targets
from distgnn.train.full_graph import train

ITEMSIZE = 4


def main() -> None:
    abort_on_error()
    parser = table.arguments(__doc__)
    parser.add_argument(
        "store", help="with orders by partition, of as many parts as the grids have block rows"
    )
    parser.add_argument(
        "--algorithms", nargs="+", default=["1d", "1.5d"], choices=["1d", "1.5d"], help="1.5d with c = 2"
    )
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 128])
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each, after one to warm up")
    parser.add_argument("--interface", help="network interface whose sent bytes to count")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    store = Store(args.store)
    for name in args.algorithms:
        rows = measure(comm, store, name, args)
        if comm.rank == 0:
            text = report(rows, store, name, comm.size, args)
            table.publish(args, text)


def measure(
    comm: MPI.Intracomm, store: Store, algorithm: str, args: argparse.Namespace
) -> list[tuple[str, np.ndarray]]:
    """Measure each; return (what, [seconds, exposed communication, MB received by all ranks, by the busiest,
    sent by the busiest card]).
    """
    grid = make_grid(comm, algorithm, {"reps": 2} if algorithm == "1.5d" else None)
    first = store.orders[0]
    runs = {"whole blocks": epochs(store, grid, algorithm, first, False, args)}
    runs[f"sparsity-aware, {first}"] = epochs(store, grid, algorithm, first, True, args)
    for name in store.orders:
        vector = store.order(name).partition
        if vector is not None and len(vector) == grid.shape["rows"] + 1:
            runs[f"sparsity-aware, {name}"] = epochs(store, grid, algorithm, name, True, args)
    samples: dict[str, list[list[float]]] = {what: [] for what in runs}
    for _ in range(1 + args.epochs):
        losses = {}
        for what, run in runs.items():
            losses[what], found = next(run)
            samples[what].append(found)
        expected = losses["whole blocks"]
        assert all(abs(loss - expected) <= 1e-4 * abs(expected) for loss in losses.values()), (
            f"losses differ: {losses}"
        )
    return [(what, np.median(found[1:], axis=0)) for what, found in samples.items()]


def epochs(
    store: Store, grid: dg.Grid, algorithm: str, order: str, aware: bool, args: argparse.Namespace
) -> Iterator[tuple[float, list[float]]]:
    """Train without end; yields the loss and what `measure` returns of an epoch, over all ranks."""
    A = load(store, grid, algorithm, order, sparsity_aware=aware)
    model = GCN(A, [store.width, *args.hidden, store.classes])
    X = load_features(store, model.input_layout)
    targets = model.targets(*load_targets(store, model.output_layout))
    comm = grid.world
    records = train(model, X, targets, Adam(0.01), 1 << 62, eval_every=0, timing=True)
    while True:
        comm.barrier()
        before = sent(args.interface)
        comm.barrier()
        with Ledger() as ledger:
            record = next(records)
        comm.barrier()
        card = sent(args.interface) - before
        rank: list[Any] = [record["seconds"], record["phases"]["comm"], ledger.bytes / 1e6, card / 1e6]
        seconds, exposed, received, cards = np.array(comm.gather_objects(rank)).T
        yield (
            record["loss"],
            [seconds.max(), exposed.max(), received.sum(), received.max(), cards.max(), cards.sum()],
        )


def sent(interface: str | None) -> int:
    """Return bytes that this host's interface has sent so far."""
    if interface is None:
        return 0
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise SystemExit(f"no interface {interface} here; name one with --interface")


def report(
    rows: list[tuple[str, np.ndarray]], store: Store, algorithm: str, ranks: int, args: argparse.Namespace
) -> str:
    """Write the results as Markdown."""
    widths = "-".join(map(str, [store.width, *args.hidden, store.classes]))
    shape = "" if algorithm == "1d" else f", {ranks // 2} x 2"
    lines = [
        f"## {args.name}: {store.path.stem}, {algorithm} on {ranks} ranks{shape} ({date.today()})",
        "",
        f"`mpiexec -n {ranks} python benchmarks/sparsity.py {shlex.join(sys.argv[1:])}`; {timing.machine()}. "
        f"{store.n:,} nodes, "
        f"{store.nnz:,} non-zeros, widths {widths}; medians of {args.epochs} epochs in turns, slowest rank.",
        "",
        "| products, order | seconds per epoch | speed-up | exposed communication | MB received per rank | "
        "at most "
        "| MB sent by the busiest card | wire / ledger |",
        "|---|" + "---:|" * 7,
    ]
    oblivious = rows[0][1][0]
    for what, (seconds, exposed, total, most, card, cards) in rows:
        wire = f"{card:.1f} | {cards / total:.3f}" if args.interface else " |"
        lines.append(
            f"| {what} | {seconds:.3f} | {oblivious / seconds:.2f} | {exposed:.3f} s | {total / ranks:.2f} | "
            f"{most:.2f} "
            f"| {wire} |"
        )
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    main()

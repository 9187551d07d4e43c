"""Cora as Kipf and Welling trained it, with every distributed algorithm, against one rank in float64 seed by
seed.

Two layers, hidden 16, dropout 0.5, weight decay 5e-4 on the first layer, Adam 0.01, 200 epochs,
row-normalised features. Prints a Markdown section for the number of ranks it was launched on; `--out FILE`
appends it to a file:

    distgnn prepare PLANETOID/cora cora.dg
    for P in 1 2 3 4 6 8 9; do
        mpiexec -n $P python benchmarks/cora.py cora.dg --serial cora-serial.npz --out
        benchmarks/results/cora.md
    done

With more ranks than cores set MPIR_CVAR_ENABLE_HEAVY_YIELD=1 (MPICH), so that waiting ranks let the others
work. The serial curves of all seeds are computed by the first launch (rank 0) and kept in the file given by
`--serial`, together with what they are of: another store, order or setting computes them again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.nn.features import normalize_rows
from distgnn.nn.optim import Adam
from distgnn.operators import ALGORITHMS, grids, make_grid
from distgnn.store import load_targets
from distgnn.train.full_graph import train

HIDDEN, DROPOUT, DECAY, LR, EPOCHS = 16, 0.5, [5e-4, 0.0], 0.01, 200

COLUMNS = (
    "algorithm",
    "grid",
    "test accuracy, %",
    "largest relative difference of a loss",
    "of an accuracy, points",
    "epoch, ms",
)


def problem(store: dg.Store) -> str:
    """Describe a loss curve: the graph, the order of its nodes, and how it is trained."""
    names = ("source", "n", "nnz", "edges", "normalize", "width", "classes", "split", "seed")
    facts = {name: store.manifest[name] for name in names}
    training = {"hidden": HIDDEN, "dropout": DROPOUT, "decay": DECAY, "lr": LR, "epochs": EPOCHS}
    return json.dumps(facts | {"order": store.order().name} | training, sort_keys=True)


def serial(store: dg.Store, seeds: int, path: Path) -> dict[str, np.ndarray]:
    """Return losses (seeds x epochs) and final test accuracies of the reference, from `path` if they are
    there.
    """
    subject = problem(store)
    if path.exists():
        kept = np.load(path)
        if "problem" in kept and str(kept["problem"]) == subject and len(kept["accuracy"]) >= seeds:
            return {name: kept[name][:seeds] for name in ("loss", "accuracy")}
    found = distributed(store, make_grid(MPI.COMM_SELF, "1d", backend="numpy"), "1d", seeds, "float64")
    curves = {name: found[name] for name in ("loss", "accuracy")}
    np.savez(path, **curves, problem=subject)
    return curves


def distributed(
    store: dg.Store, grid: dg.Grid, algorithm: str, seeds: int, dtype: str = "float32"
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return the same of one algorithm on one grid, and the median seconds of an epoch."""
    A = dg.load(store, grid, algorithm, dtype=dtype)
    losses, found, seconds = [], [], []
    X = targets = None
    for seed in range(seeds):
        model = dg.nn.GCN(A, [store.width, HIDDEN, store.classes], seed, DROPOUT)
        if X is None:
            X = dg.load_features(store, model.input_layout, dtype=dtype)
            normalize_rows(X)
            targets = model.targets(*load_targets(store, model.output_layout))
        records = list(train(model, X, targets, Adam(LR, DECAY), EPOCHS, eval_every=0))
        losses.append([record["loss"] for record in records])
        seconds += [record["seconds"] for record in records]
        found.append(model.evaluate(X, targets)["test_acc"])
    return {"loss": np.array(losses), "accuracy": np.array(found), "seconds": np.median(seconds)}


def row(name: str, shape: str, run: dict[str, Any], reference: dict[str, np.ndarray]) -> str:
    """Return one line of the table; differences are the largest over all seeds (and epochs)."""
    accuracy = 100 * run["accuracy"]
    loss = abs(run["loss"] / reference["loss"] - 1).max()
    moved = 100 * abs(run["accuracy"] - reference["accuracy"]).max()
    cells = (name, shape, f"{accuracy.mean():.2f} ± {accuracy.std():.2f}", f"{loss:.1e}", f"{moved:.1f}")
    return "| " + " | ".join([*cells, f"{1000 * run['seconds']:.1f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("store")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), help="comma-separated (default: all)")
    parser.add_argument(
        "--all-grids", action="store_true", help="every grid of every algorithm, not only its default"
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--serial", type=Path, default=Path("cora-serial.npz"), help="where the serial curves are kept"
    )
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    store = dg.Store(args.store)
    reference = serial(store, args.seeds, args.serial) if comm.rank == 0 else None
    comm.Barrier()
    rows = []
    for name in args.algorithms.split(","):
        for sizes in grids(name, comm.size)[: None if args.all_grids else 1]:
            run = distributed(store, make_grid(comm, name, sizes), name, args.seeds)
            if reference is not None:
                rows.append(row(name, "x".join(str(size) for size in sizes.values()), run, reference))
                print(rows[-1], file=sys.stderr, flush=True)
    if reference is None:
        return
    serial_mean, serial_deviation = 100 * reference["accuracy"].mean(), 100 * reference["accuracy"].std()
    lines = [
        table.heading(args, comm.size)
        + f". One rank in float64: test accuracy {serial_mean:.2f} ± {serial_deviation:.2f} % "
        f"over {args.seeds} seeds.",
        "",
        *table.columns(*COLUMNS),
        *rows,
    ]
    table.publish(args, "\n".join(lines))


if __name__ == "__main__":
    main()

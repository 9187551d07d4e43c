"""Losses, accuracies and bytes of training whose messages have 16 bits, beside the exact training.

    distgnn prepare PLANETOID/cora cora.dg
    distgnn prepare FACEBOOK facebook.dg --split 0.6/0.2/0.2
    mpiexec -n 4 python benchmarks/sixteen_bits.py cora.dg --epochs 200
    mpiexec -n 4 python benchmarks/sixteen_bits.py facebook.dg --epochs 40 --hidden 64
    python benchmarks/sixteen_bits.py cora.dg --mixed       on a GPU, or with PYTHONPATH=tests/fake_cupy

Trains with the default recipe. Dropout masks, as all that is drawn, are the same in all trainings of a
seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import table
from distgnn.comm.launch import abort_on_error
from distgnn.local.narrow import KINDS
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE
from distgnn.train import Run, Settings

WAYS = [(name, False) for name in ALGORITHMS]
WAYS += [(name, aware) for name in SPARSITY_AWARE for aware in (True, "cover")]
SENDS = {False: "", True: ", needed rows", "cover": ", covers"}
GRIDS = {"1.5d": "2x2", "2d": "2x2", "3d": "2x2x1", "rdm": "2x2"}  # others have one that is not flat
EXACT = "float32"
MESSAGES: dict[str, dict[str, Any]] = {EXACT: {}, **{wire: {"wire": wire} for wire in KINDS}}
MIXED: dict[str, dict[str, Any]] = {
    EXACT: {}, "bfloat16": MESSAGES["bfloat16"],
    "bfloat16, mixed precision": MESSAGES["bfloat16"] | {"mixed_precision": True},
}  # fmt: skip


class Trained(NamedTuple):
    """A training: losses by epoch, accuracy on the test nodes, MB that the busiest rank receives in all."""

    losses: np.ndarray
    accuracy: float
    megabytes: float


def trained(comm: MPI.Intracomm, store: str, **settings: Any) -> Trained:
    """Train to the end. Collective."""
    run = Run(store, Settings(**settings, tune_gemm=False, keep_best="none"), comm)
    losses = [float(record["loss"] or np.nan) for record in run.train()]
    end: Any = run.end
    run.grid.free()
    return Trained(np.array(losses), 100 * end["test_acc"], max(end["bytes"]) / 1e6)


def beside(exact: Trained, other: Trained) -> str:
    """Return the cells of a training beside the exact one: losses and bytes."""
    apart = np.abs(other.losses / exact.losses - 1)
    return f"{100 * apart.max():.3f} | {100 * apart[-1]:.3f} | {other.megabytes / exact.megabytes:.3f}"


def ways(comm: MPI.Intracomm, args: Any) -> list[str]:
    """Make the table of every way to train, of one seed."""
    apart = "most apart, %", "last apart, %", "MB / exact"
    lines = table.columns("way", "messages", "last loss", "MB", *apart)
    for name, aware in WAYS:
        how = {"algorithm": name, "sparsity_aware": aware, "grid": GRIDS.get(name), **_network(args)}
        exact = trained(comm, args.store, **how)
        start = f"| {name}{SENDS[aware]} |"
        lines.append(f"{start} float32 | {exact.losses[-1]:.6f} | {exact.megabytes:.2f} | | | |")
        for wire in KINDS:
            other = trained(comm, args.store, wire=wire, **how)
            numbers = f"{other.losses[-1]:.6f} | {other.megabytes:.2f}"
            lines.append(f"{start} {wire} | {numbers} | {beside(exact, other)} |")
    return lines


def seeds(comm: MPI.Intracomm, args: Any) -> list[str]:
    """Make the table of accuracies on the test nodes over seeds, by 1d with needed rows or on one GPU."""
    how = {"algorithm": "1d", **_network(args)}
    how |= {"backend": "cupy"} if args.mixed else {"sparsity_aware": True}
    what = "16 bits" if args.mixed else "messages"
    lines = table.columns(what, "test accuracy, %", "apart from exact, points", "most apart, %")
    lines[0] += " by seed |"
    lines[1] += "---|"
    compared = {name: how for name, how in (MIXED if args.mixed else MESSAGES).items() if name in args.kinds}
    if args.host:
        compared[EXACT] = {"backend": "numpy"}
    by_name: dict[str, list[Trained]] = {name: [] for name in compared}
    for seed in range(args.seeds):
        for name, results in by_name.items():
            results.append(trained(comm, args.store, seed=seed, **how | compared[name]))
    for name, results in by_name.items():
        lines.append(_row(name, results, by_name[EXACT]))
    return lines


def _row(name: str, results: Sequence[Trained], exact: Sequence[Trained]) -> str:
    each = np.array([result.accuracy for result in results])
    pairs = list(zip(results, exact, strict=True))
    apart = np.mean([one.accuracy - other.accuracy for one, other in pairs])
    most = max(np.abs(one.losses / other.losses - 1).max() for one, other in pairs)
    listed = " ".join(f"{accuracy:.2f}" for accuracy in each)
    numbers = f"{each.mean():.2f} ± {each.std():.2f} | {apart:+.2f} | {100 * most:.3f}"
    return f"| {name} | {numbers} | {listed} |"


def _network(args: Any) -> dict[str, Any]:
    features = {"normalize_features": False} if args.raw_features else {}
    return {"epochs": args.epochs, "hidden": args.hidden, "eval_every": 0, **features}


def main() -> None:
    abort_on_error()
    parser = table.arguments(__doc__)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--mixed", action="store_true", help="compare mixed precision, on a GPU")
    parser.add_argument("--kinds", nargs="+", choices=[*MESSAGES, *MIXED], default=[*MESSAGES, *MIXED])
    parser.add_argument("--host", action="store_true", help="train in float32 on the host")
    parser.add_argument("--raw-features", action="store_true", help="counts are not divided by their sums")
    parser.add_argument("--ways", action="store_true", help="compare every way to train, not seeds")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    lines = (ways if args.ways else seeds)(comm, args)
    if comm.rank == 0:
        table.publish(args, "\n".join([table.heading(args, comm.size), "", *lines, ""]))


if __name__ == "__main__":
    main()

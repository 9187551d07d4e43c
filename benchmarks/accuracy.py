"""Test accuracies of minibatch training beside full-graph training, on any number of ranks.

    distgnn prepare PLANETOID/cora cora.dg
    distgnn prepare FACEBOOK facebook.dg --split 0.6/0.2/0.2
    for P in 1 4 8; do
        mpiexec -n $P python benchmarks/accuracy.py cora.dg facebook.dg --out benchmarks/results/accuracy.md
    done

Runs `distgnn train` with the flags in SETTINGS, for several seeds of weights, dropout and samples. What is
compared is the accuracy after the last update; nothing is chosen by it or by the validation nodes.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
from mpi4py import MPI

import table
from distgnn import cli
from distgnn.comm.launch import abort_on_error
from distgnn.store import Store

#: "planetoid": few training nodes, as Kipf and Welling trained them; "other": everything else.
COMMON = {
    "planetoid": "--recipe plain --normalize-features --dropout 0.5 --weight-decay 5e-4,0 --hidden 16",
    "other": "--recipe plain --hidden 64",
}
SETTINGS = {
    "planetoid": {
        "full-graph GCN": "--epochs 200",
        "full-graph GraphSAGE": "--model sage --epochs 200",
        "SAGE": "--sampler sage --fanout 10,10 --batch-size 32 --epochs 200",
        "SAGE, GCN layers": "--sampler sage --model gcn --fanout 10,10 --batch-size 32 --epochs 200",
        "LADIES": "--sampler ladies --fanout 256,256 --batch-size 32 --epochs 200",
        "LADIES, counts": "--sampler ladies --importance counts --fanout 256,256 "
        "--batch-size 32 --epochs 200",
        "FastGCN": "--sampler fastgcn --fanout 400,400 --batch-size 32 --epochs 200",
        "SAINT": "--sampler saint --fanout 1000 --batch-size 32 --epochs 200",
    },
    "other": {
        "full-graph GCN": "--epochs 100",
        "full-graph GraphSAGE": "--model sage --epochs 100",
        "SAGE": "--sampler sage --fanout 10,10 --batch-size 256 --epochs 15",
        "LADIES": "--sampler ladies --fanout 1024,1024 --batch-size 256 --epochs 15",
    },
}


def main() -> None:
    abort_on_error()
    parser = table.arguments(__doc__)
    parser.add_argument("stores", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    lines = [line for path in args.stores for line in rows_of(comm, path, args.seeds)]
    if comm.rank == 0:
        command = f"mpiexec -n {comm.size} python {shlex.join(sys.argv)}"
        title = f"## {comm.size} rank{'s' if comm.size > 1 else ''}"
        text = "\n".join([title, "", f"`{command}`, {date.today()}", "", *lines, ""])
        table.publish(args, text)


def rows_of(comm: MPI.Intracomm, path: str, seeds: int) -> list[str]:
    """Return the rows of one store, for all of its settings."""
    store = Store(path)
    kind = "planetoid" if store.manifest["split"]["train"] < store.n / 10 else "other"
    facts = f"{store.n:,} nodes, {store.nnz:,} non-zeros, {store.width} features"
    lines = [f"{Path(path).stem}: {facts}; {COMMON[kind]}", "",
             "| training | flags | test accuracy, % | by seed |", "|---|---|---:|---|"]  # fmt: skip
    for name, flags in SETTINGS[kind].items():
        words = [*COMMON[kind].split(), *flags.split()]
        found = [100 * accuracy(comm, path, [*words, "--seed", str(seed)]) for seed in range(seeds)]
        each = " ".join(f"{one:.2f}" for one in found)
        lines.append(f"| {name} | `{flags}` | {np.mean(found):.2f} ± {np.std(found):.2f} | {each} |")
        if comm.rank == 0:
            print(lines[-1], file=sys.stderr, flush=True)
    return [*lines, ""]


def accuracy(comm: MPI.Intracomm, path: str, flags: list[str]) -> float:
    """Return the accuracy on the test nodes after the last update. Collective."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(comm.bcast(folder)) / "run.jsonl"
        words = ["train", path, *flags, "--eval-every", "0", "--quiet", "--log", str(log)]
        cli.command_module("train").run(cli.parse(words), comm)
        found = json.loads(log.read_text().splitlines()[-1])["test_acc"] if comm.rank == 0 else None
        comm.Barrier()
    return comm.bcast(found)


if __name__ == "__main__":
    main()

"""Memory of a rank that trains, by algorithm, beside the least that it needs and beside the ledger's peak.

    python benchmarks/training_memory.py --out benchmarks/results/training-memory.md

A row is a job of its own, on a store that is made for it: an R-MAT graph, widths 64-64-64-16, no dropout, two
epochs. Measured is how far the high-water mark of the process (Linux only) rises above a process that has
trained a small graph before, on the rank where it rises most; of shared memory, its part. The least is A,
A X, the inputs of two layers, one block to work with, each cut over the ranks (over those of a replica in
`1.5d`), and 2 MiB of panels; in `3d` two shards of A more, as its layers cut it another way; in `rdm` all
of A once for the node's ranks. Nine layers keep the inputs of eight, with `recompute` of one and of three
that are gone through again; minibatches hold A once more for the node's ranks, and X beside A X; predictions
the input of a layer and its output. The arrays that `fit` is given on rank 0 are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import high_water
import table
from distgnn.comm.launch import abort_on_error
from distgnn.train import Run, Settings
from distgnn.train.predict import Predictor

WIDTH, CLASSES, MIB = 64, 16, 2**20
#: Settings by what the table calls them, and the ranks among which a replica cuts its blocks, of 4.
WAYS: dict[str, dict[str, object]] = {
    "1d": {},
    "1d, needed rows": {"sparsity_aware": True},
    "1d, covers": {"sparsity_aware": "cover"},
    "1.5d 2x2": {"algorithm": "1.5d", "grid": "2x2"},
    "2d 2x2": {"algorithm": "2d", "grid": "2x2"},
    "3d-split 2x2x1": {"algorithm": "3d-split", "grid": "2x2x1"},
    "3d 2x2x1": {"algorithm": "3d", "grid": "2x2x1"},
    "3d 1x2x2": {"algorithm": "3d", "grid": "1x2x2"},
    "rdm 1x4": {"algorithm": "rdm", "grid": "1x4"},
    "rdm 1x4, needed rows": {"algorithm": "rdm", "grid": "1x4", "sparsity_aware": True},
    "1d, dropout 0.5": {"dropout": 0.5},
    "1d, GAT of 8 heads": {"model": "gat", "heads": [8, 8, 1]},
    "1d, 9 layers": {"layers": 9, "hidden": [WIDTH] * 8},
    "1d, 9 layers, recompute 3": {"layers": 9, "hidden": [WIDTH] * 8, "recompute": 3},
    "sage, minibatches": {"model": "sage", "sampler": "sage", "fanout": [10, 5, 5]},
    "predict": {},
    "fit": {},
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=1 << 20)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--one", help="be one of the jobs, on the stores in this folder")
    args = parser.parse_args()
    if args.one:
        one(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, nodes in {"warm": 4096, "graph": args.nodes}.items():
            store(Path(folder), name, nodes, args.degree)
        nnz = dg.Store(Path(folder, "graph.dg")).nnz
        rows = [row(way, job(way, folder, args), nnz, args) for way in args.ways]
    graph = f"{args.nodes:,} nodes, {nnz:,} non-zeros, {args.ranks} ranks. MiB a rank:"
    heads = table.columns("way", "process", "ledger", "least", "process / least", "ledger / process")
    table.publish(args, "\n".join([f"{table.heading(args)}. {graph}", "", *heads, *rows]))


def store(folder: Path, name: str, nodes: int, degree: int) -> None:
    """Generate a graph, and prepare it."""
    distgnn = [sys.executable, "-m", "distgnn"]
    sizes = ["--nodes", nodes, "--degree", degree, "--features", WIDTH, "--classes", CLASSES]
    for words in (
        ["generate", "rmat", folder / name, *sizes],
        ["prepare", folder / name, f"{folder / name}.dg"],
    ):
        subprocess.run([*distgnn, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def job(way: str, folder: str, args: argparse.Namespace) -> list[int]:
    """Return the bytes by which memory rises, and the ledger's peak, in processes of their own."""
    launcher = [os.environ.get("MPIEXEC", "mpiexec"), "-n", str(args.ranks)]
    command = [*launcher, sys.executable, __file__, "--one", folder, "--ways", way]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(args: argparse.Namespace) -> None:
    """Train, and print on rank 0 the rise of memory and the ledger's peak, of the ranks with the most."""
    comm, (way,) = MPI.COMM_WORLD, args.ways
    given = {
        "hidden": [WIDTH, WIDTH],
        "layers": 3,
        "dropout": 0.0,
        "epochs": 2,
        "eval_every": 0,
        "keep_best": "none",
    }
    settings = Settings(**{**given, **WAYS[way]})
    work = {"predict": predicted, "fit": fitted}.get(way, trained)
    work(Path(args.one, "warm"), settings)
    if way == "fit":
        arrays(Path(args.one, "graph"))
    before = of_others()
    with dg.Ledger() as ledger:
        rise = high_water.rise(lambda: work(Path(args.one, "graph"), settings)) - SHARED[-1] + before
    figures = [comm.allreduce(figure, MPI.MAX) for figure in (rise, sum(ledger.peak.values()))]
    if comm.rank == 0:
        print(json.dumps(figures))


def trained(path: Path, settings: Settings) -> None:
    run = Run(f"{path}.dg", settings, MPI.COMM_WORLD)
    for _ in run.train():
        SHARED.append(of_others())


#: Bytes of other ranks in what this one has mapped, while it holds A.
SHARED: list[int] = []


def of_others() -> int:
    """Return the bytes of shared memory that are the parts of other ranks."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    part = next(int(line.split()[1]) for line in lines if line.startswith("Pss_Shmem:"))
    MPI.COMM_WORLD.Barrier()
    return high_water.status("RssShmem") - 1024 * part


def predicted(path: Path, settings: Settings) -> None:
    weights = path.with_name("weights")
    if path.name == "warm":
        trained(path, replace(settings, checkpoint=str(weights)))
    predictor = Predictor(f"{path}.dg", weights)
    predictor.write(path.with_suffix(".npz"), force=True)
    SHARED.append(of_others())


@cache
def arrays(path: Path) -> tuple[Any, ...]:
    """Read what `fit` is given, on rank 0."""
    names = "edges", "features", "labels"
    edges, X, y = (np.load(path / f"{name}.npy") if MPI.COMM_WORLD.rank == 0 else None for name in names)
    return None if edges is None else edges.T.copy(), X, y


def fitted(path: Path, settings: Settings) -> None:
    how: Any = {"dropout": 0.0, "epochs": 2, "eval_every": 0, "keep_best": "none", "algorithm": "1d"}
    fitted = dg.fit(*arrays(path), directed=False, hidden=settings.hidden, **how)
    SHARED.append(of_others())
    del fitted


def row(way: str, figures: list[int], nnz: int, args: argparse.Namespace) -> str:
    """Write a row of the table."""
    process, ledger = (figure / MIB for figure in figures)
    copies = 2 if way.startswith("1.5d") else 1
    A, block = (
        part / args.ranks * copies / MIB for part in (8 * nnz + 4 * args.nodes, 4 * args.nodes * WIDTH)
    )
    shards = 3 if way.startswith("3d ") else 2 if "minibatches" in way else 1
    blocks = {"1d, 9 layers": 10, "1d, 9 layers, recompute 3": 6, "predict": 2, "sage, minibatches": 5}
    least = A * shards + blocks.get(way, 4) * block + 2
    ratios = f"{process / least:.2f} | {ledger / process:.2f}"
    return f"| {way} | {process:.0f} | {ledger:.0f} | {least:.0f} | {ratios} |"


if __name__ == "__main__":
    abort_on_error()
    main()

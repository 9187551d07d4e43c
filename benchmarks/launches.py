"""Launches, waits and copies of an epoch of `distgnn train` and `dg.fit` on one GPU, counted without one.

    PYTHONPATH=tests/fake_cupy python benchmarks/launches.py --out benchmarks/results/launches.md
    PYTHONPATH=tests/fake_cupy python benchmarks/launches.py --models gat --by-name      kernels of each row

The stand-in for CuPy counts what a GPU would be asked for: kernels that the host launches, times that it
waits, and copies either way, from one epoch's record to the next. Each training runs by ``dg.fit``, kernel by
kernel and as CUDA graphs, and by the loop of ``gpu_epoch.py``, which takes records and no more. Dropout is of
0.5, of attention too; sparse and dense products take the expected form, without trials.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any

os.environ["DISTGNN_SPMM_TUNE"] = "0"  # a trial is a launch that later epochs do not repeat

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import gpu_timing
import table
from distgnn import gallery
from distgnn.local.cuda import cublas
from gpu_epoch import Problem, Training

MODELS = ["gcn", "sage", "gat", "gatv2"]
WIDTH, CLASSES, DROPOUT, EPOCHS = 16, 5, 0.5, 6
COUNTED = "launches", "synchronizations", "device to host", "host to device"
HEADS = (
    "model", "dropout", "evaluated", "launches", "waits", "waits of the loop", "copies to the host",
    "to the device", "as CUDA graphs: graphs", "kernels in them", "other launches", "waits",
    "copies to the host", "to the device",
)  # fmt: skip


def by_fit(A: sp.csr_array, stand_in: Any, **settings: Any) -> Any:
    """Train by `dg.fit`; return what the stand-in saw between the last two epochs but one."""
    r, taken, seen = np.random.default_rng(0), ExitStack(), []
    n = A.shape[0]

    def watch(record: Any) -> None:
        if record["epoch"] == EPOCHS - 2:
            seen.append(taken.enter_context(stand_in.observed()))
        elif record["epoch"] == EPOCHS - 1:
            taken.close()

    X, y = r.standard_normal((n, WIDTH), np.float32), r.integers(0, CLASSES, n)
    settings |= {"epochs": EPOCHS, "keep_best": "none", "tune_gemm": False}  # equal from run to run
    dg.fit(A, X, y, comm=MPI.COMM_SELF, backend="cupy", on_epoch=watch, **settings)
    return seen[0]


def by_loop(A: sp.csr_array, stand_in: Any, on: Any, model: str, **how: Any) -> Any:
    """Train by the loop of ``gpu_epoch.py``; return what the stand-in saw in one epoch."""
    network = f"{model}-8-1" if model in ("gat", "gatv2") else model
    training = Training(Problem("", network, A), on, EPOCHS, how)
    for _ in range(EPOCHS - 2):
        next(training.epochs)
    with stand_in.observed() as seen:
        next(training.epochs)
    return seen


def counted(seen: Any) -> list[int]:
    return [seen.counts[name] for name in COUNTED]


def rows(args: Any, on: Any, stand_in: Any) -> Iterator[tuple[str, Counter[str]]]:
    """Yield the table's rows, and the launches of each by name."""
    A = gallery.rmat(args.nodes, degree=16).A.astype(np.float32)
    for model, dropout, every in product(args.models, (0.0, DROPOUT), (0, 1)):
        how: dict[str, Any] = {"model": model, "dropout": dropout, "eval_every": every}
        loop = by_loop(A, stand_in, on, **how)
        if model in ("gat", "gatv2"):
            how["attention_dropout"] = dropout
        queued, graphs = (by_fit(A, stand_in, cuda_graph=graph, **how) for graph in (False, True))
        launches, waits, *copies = counted(queued)
        asked, waited, *copied = counted(graphs)
        replays = graphs.launches["graph"]
        cells = [model, dropout or "", "yes" if every else "", launches, waits, counted(loop)[1], *copies]
        cells += [replays, graphs.counts["replayed"], asked - replays, waited, *copied]
        yield f"| {' | '.join(map(str, cells))} |", queued.launches


def main() -> int:
    parser = table.arguments(__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--by-name", action="store_true", help="print launches by name under each row")
    args = parser.parse_args()
    on, report = gpu_timing.bound("launches"), gpu_timing.Report(args)
    try:
        stand_in = importlib.import_module("cupy.stand_in")
    except ModuleNotFoundError:
        print("launches: counts on the stand-in; PYTHONPATH=tests/fake_cupy", file=sys.stderr)
        return 2
    made = importlib.import_module("cupy._cublas")
    cublas.library = lambda: made  # type: ignore[assignment]
    report.say(table.heading(args), "", *table.columns(*HEADS))
    named = []
    for row, launches in rows(args, on, stand_in):
        report.say(row)
        named.append((row, launches))
    if args.by_name:
        for row, launches in named:
            title = ", ".join(cell for cell in row.strip("| ").split(" | ")[:3] if cell.strip())
            report.say("", *table.columns(title, "launches"))
            report.say(*(f"| {name} | {count} |" for name, count in launches.most_common()))
    report.say("")
    return 0


if __name__ == "__main__":
    sys.exit(main())

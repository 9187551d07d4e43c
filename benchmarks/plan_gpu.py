"""Predicted beside measured seconds of epochs on one GPU.

    python benchmarks/plan_gpu.py --machine h200 --out benchmarks/results/plan-gpu.md
    python benchmarks/plan_gpu.py --machine FILE --measure --kept-in FOLDER       on a GPU

The network and the graphs are those of ``gpu_epoch.py``: 128-128-128-40, float32, no dropout, the features
multiplied by A in every epoch. What a machine file is told of a graph is how many nodes and non-zeros it has
and how soon rows of B are read again (``plan/reuse.py``). Without ``--measure`` the measured seconds are
those of ``results/gpu.md``, by kernels of that day.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.arrays import backend
from distgnn.nn.optim import Adam
from distgnn.plan.choices import plan
from distgnn.plan.cost_model import Estimate
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.machine import Machine, read
from distgnn.train.full_graph import train
from distgnn.train.settings import Settings
from gpu_epoch import WIDTHS, normalized

MS, WARM_UP, EPOCHS = 1e3, 20, 20


class Case(NamedTuple):
    """An epoch on a graph. ``known``: milliseconds of ``results/gpu.md``, the least and the most."""

    graph: str
    cuda_graph: bool
    tf32: bool
    known: tuple[float, float]

    @property
    def how(self) -> str:
        kinds = ["CUDA graphs"] * self.cuda_graph + ["TF32"] * self.tf32
        return ", ".join(kinds) or "as it is"


CASES = [
    Case("rmat-14-16", False, False, (2.90, 4.71)), Case("rmat-14-16", True, False, (0.361, 0.418)),
    Case("rmat-14-16", False, True, (3.00, 3.00)), Case("rmat-16-492", False, False, (4.24, 4.24)),
    Case("rmat-20-16", False, False, (12.50, 13.10)), Case("rmat-20-16", True, False, (12.10, 12.10)),
    Case("rmat-20-16", False, True, (8.84, 8.84)),
]  # fmt: skip


def planned(A: sp.csr_array, case: Case, machine: Machine) -> Estimate:
    """Plan an epoch."""
    n = A.shape[0]
    labels, split = np.zeros(n, np.int64), np.ones(n, np.uint8)
    labels[0] = WIDTHS[-1] - 1
    graph = Graph.known(A, WIDTHS[0], WIDTHS[-1], labels, split)
    settings = Settings(
        recipe="plain", hidden=WIDTHS[1:-1], keep_aggregate=False, eval_every=0, algorithm="1d",
        cuda_graph=case.cuda_graph, tf32=case.tf32,
    )  # fmt: skip
    return plan(settings, {None: graph}, 1, machine).best.estimate


def measured(A: sp.csr_array, case: Case) -> float:
    """Return the median seconds of an epoch on the GPU here."""
    on, random, n = backend.get("cupy"), np.random.default_rng(0), A.shape[0]
    on.bind(0)
    on.use_tf32(case.tf32)
    operator = dg.distribute(A, dg.Grid(MPI.COMM_SELF, backend=on, rows=1), "1d")
    model = dg.nn.GCN(operator, WIDTHS, keep_aggregate=False)
    model.tune()
    targets = model.targets(random.integers(0, WIDTHS[-1], n).astype(np.int32), np.ones(n, np.uint8))
    X = dg.scatter(random.standard_normal((n, WIDTHS[0]), np.float32), model.input_layout)
    how: Any = {"eval_every": 0, "cuda_graph": case.cuda_graph}
    run, seconds = train(model, X, targets, Adam(0.01), WARM_UP + EPOCHS, **how), list[float]()
    for _ in range(WARM_UP + EPOCHS):
        on.synchronize()
        started = time.perf_counter()
        next(run)
        on.synchronize()
        seconds.append(time.perf_counter() - started)
    on.use_tf32(False)
    return float(np.median(seconds[WARM_UP:]))


def rows(args: argparse.Namespace) -> Iterator[str]:
    """Give a line for each epoch."""
    machine, graphs = read(args.machine), dict[str, sp.csr_array]()
    yield from table.columns("graph", "epoch", "sparse", "dense", "passes", "other", "planned, ms",
                             "measured, ms", "planned / measured")  # fmt: skip
    for case in CASES:
        if case.graph not in args.graphs:
            continue
        if case.graph not in graphs:
            graphs = {case.graph: normalized(case.graph, args.kept_in)}
        A = graphs[case.graph]
        estimate = planned(A, case, machine)
        phases = {name: MS * seconds for name, seconds in estimate.phases.items()}
        passes = sum(phases.get(name, 0.0) for name in ("activation", "loss", "optimizer"))
        parts = [phases["spmm"], phases["gemm"], passes, phases["other"]]
        known = (MS * measured(A, case),) * 2 if args.measure else case.known
        ratios = [f"{MS * estimate.seconds / ms:.2f}" for ms in dict.fromkeys(known)]
        texts = [f"{ms:.3g}" for ms in dict.fromkeys(known)]
        yield (
            f"| {case.graph} | {case.how} | {' | '.join(f'{part:.3f}' for part in parts)} "
            f"| {MS * estimate.seconds:.3f} | {' to '.join(texts)} | {' to '.join(ratios)} |"
        )


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--machine", default="h200", help="name, or TOML file")
    parser.add_argument("--graphs", nargs="+", default=[case.graph for case in CASES], metavar="rmat-K-D")
    parser.add_argument("--measure", action="store_true", help="measure epochs on the GPU here")
    parser.add_argument("--kept-in", type=Path, metavar="FOLDER", help="read graphs from here, or save them")
    args = parser.parse_args()
    table.publish(args, "\n".join([table.heading(args), "", *rows(args)]))


if __name__ == "__main__":
    main()

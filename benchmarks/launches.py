"""Launches, waits and copies of an epoch, counted on the stand-in for CuPy. It takes no times.

    PYTHONPATH=tests/fake_cupy DISTGNN_SPMM_TUNE=0 python benchmarks/launches.py

A GCN of three layers on one rank, Adam. A CUDA graph is one launch; in brackets, the kernels in graphs.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn import gallery
from distgnn.nn import GCN, Adam
from distgnn.train.full_graph import train

WIDTHS, NODES, WARM_UP = [16, 16, 16, 5], 256, 5
NETWORKS: dict[str, dict[str, Any]] = {"plain": {}, "dropout and bias": {"dropout": 0.5, "bias": True}}


def main() -> int:
    table.arguments(__doc__).parse_args()
    from cupy import stand_in  # refuses to be anything but the stand-in

    header = "network", "evaluated", "CUDA graphs", "launches", "waits", "copies out", "in"
    print(*table.columns(*header), sep="\n")
    ways = [False, True] if "cuda_graph" in inspect.signature(train).parameters else [False]
    for name, options in NETWORKS.items():
        for evaluated in (True, False):
            for graphs in ways:
                counts = counted(stand_in, options, evaluated, graphs)
                kernels = f"{counts['launches']}" + f" ({counts['replayed']})" * graphs
                copies = f"{counts['device to host']} | {counts['host to device']}"
                yes = [["no", "yes"][x] for x in (evaluated, graphs)]
                print(f"| {name} | {' | '.join(yes)} | {kernels} | {counts['synchronizations']} | {copies} |")
    return 0


def counted(stand_in: Any, options: dict[str, Any], evaluated: bool, graphs: bool) -> dict[str, int]:
    """Count what an epoch does after some to warm up."""
    random = np.random.default_rng(0)
    A = gallery.rmat(NODES, degree=16).A.astype(np.float32)
    grid = dg.Grid(MPI.COMM_SELF, backend="cupy", rows=1)
    model = GCN(dg.distribute(A, grid, "1d"), WIDTHS, **options)
    labels = random.integers(0, WIDTHS[-1], NODES).astype(np.int32)
    targets = model.targets(labels, np.ones(NODES, np.uint8))
    X = dg.scatter(random.standard_normal((NODES, WIDTHS[0])).astype(np.float32), model.input_layout)
    how: dict[str, Any] = {"cuda_graph": True} if graphs else {}
    if graphs:
        import cupy._cublas as in_place  # of the library, which is not there

        from distgnn.local.cuda import cublas

        setattr(cublas, "library", lambda: in_place)  # noqa: B010
    epochs = train(model, X, targets, Adam(0.01), 2 * WARM_UP, eval_every=int(evaluated), **how)
    for _ in range(WARM_UP):
        next(epochs)
    with stand_in.observed() as seen:
        next(epochs)
    return seen.counts


if __name__ == "__main__":
    sys.exit(main())

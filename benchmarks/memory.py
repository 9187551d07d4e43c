"""Peak memory of training against the formula of MG-GCN section 4.2, and against keeping every intermediate result.

    mpiexec -n 4 python benchmarks/memory.py --out benchmarks/results/memory.md

All widths are equal, so that a buffer is n d / P numbers: L + 1 of them belong to the layers and two are the panels that `1d`
receives into. Measured is how far the resident memory of each rank rises while it trains, beyond the adjacency matrix and the
features: the kernel's high-water mark of the process (Linux only), on the rank where it is highest.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import shlex
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
from distgnn import local
from distgnn.algorithms import make_grid
from distgnn.bench import timing
from distgnn.bench.spmm import uniform
from distgnn.gcn.loss import Targets, softmax_cross_entropy
from distgnn.gcn.optim import Adam
from distgnn.gcn.training import train
from distgnn.reference import normalize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1 << 18)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3, 5, 8])
    parser.add_argument("--out", type=Path, help="file to append to")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    grid = make_grid(comm, "1d")
    A = dg.distribute(normalize(uniform(args.nodes, args.degree)).astype(np.float32), grid, "1d")
    rng = np.random.default_rng(comm.rank)
    X = dg.DistDense.empty(A.input_layout, (args.nodes, args.width), np.float32)
    X.block[...] = rng.standard_normal(X.block.shape, dtype=np.float32)
    labels = rng.integers(0, args.width, len(X.block)).astype(np.int32)
    targets = Targets(A.output_layout, args.width, labels, np.ones(len(labels), np.uint8))
    buffer = X.block.nbytes
    rows = []
    for layers in args.layers:
        ours = comm.allreduce(rise(lambda layers=layers: few_buffers(A, X, targets, layers)), MPI.MAX) / buffer
        theirs = comm.allreduce(rise(lambda layers=layers: every_intermediate(A, X, targets, layers)), MPI.MAX) / buffer
        rows.append((layers, ours, theirs))
    if comm.rank == 0:
        text = report(rows, buffer, comm.size, args)
        print(text)
        if args.out:
            with args.out.open("a") as file:
                file.write(text)


def rise(run: Callable[[], Any]) -> int:
    """Bytes by which resident memory was above its start, at its peak, while `run` ran."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    run()
    return status("VmHWM") - before


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def few_buffers(A: dg.DistSparse, X: dg.DistDense, targets: Targets, layers: int) -> None:
    """Two epochs of the library's network."""
    A.grid.workspace.clear()
    model = dg.gcn.GCN(A, [X.shape[1]] * (layers + 1), keep_aggregate=False, product_order="transform-first")
    list(train(model, X, targets, Adam(0.01), 2, eval_every=0))
    A.grid.workspace.clear()


def every_intermediate(A: dg.DistSparse, X: dg.DistDense, targets: Targets, layers: int) -> None:
    """Two epochs as one writes them first: every result in an array of its own, kept until the epoch ends."""
    weights = [np.eye(X.shape[1], dtype=np.float32) for _ in range(layers)]
    for _ in range(2):
        kept: list[tuple[dg.DistDense, dg.DistDense]] = []
        H = X
        for index, W in enumerate(weights):
            AHW = A @ H.like(local.gemm(H.block, W))
            kept.append((H, AHW))
            H = H.like(np.maximum(AHW.block, 0)) if index < layers - 1 else AHW
        _, G = softmax_cross_entropy(H, targets)
        gradients = [G]
        for index in reversed(range(layers)):
            H, _ = kept[index]
            S = A.T @ gradients[-1]
            dW = local.gemm(H.block, S.block, trans_a=True)
            A.grid.world.allreduce(dW)
            dH = local.gemm(S.block, weights[index], trans_b=True)
            gradients += [S, H.like(dH * (H.block > 0))]
            weights[index] = weights[index] - np.float32(0.01) * dW


def report(rows: list[tuple[int, float, float]], buffer: int, ranks: int, args: argparse.Namespace) -> str:
    """Markdown."""
    lines = [
        f"# {date.today()}: `mpiexec -n {ranks} python benchmarks/memory.py {shlex.join(sys.argv[1:])}`",
        "",
        f"{timing.machine()}. {args.nodes:,} nodes, width {args.width} everywhere, float32, `1d` on {ranks} ranks: a buffer is "
        f"{buffer / 2**20:.0f} MiB. Buffers at the peak, beyond the adjacency matrix and the features:",
        "",
        "| layers | L + 3 | measured | / (L + 3) | keeping every intermediate | / measured |",
        "|---:|---:|---:|---:|---:|---:|",
        *(f"| {n} | {n + 3} | {ours:.2f} | {ours / (n + 3):.3f} | {all_:.2f} | {all_ / ours:.2f} |" for n, ours, all_ in rows),
    ]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    main()

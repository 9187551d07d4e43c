"""Peak memory of training against the formula of MG-GCN section 4.2, and against keeping every intermediate
result.

    python benchmarks/memory.py --out benchmarks/results/memory.md

Every row and column of the table is a job of its own, as a process does not always return what it once
needed. All widths are equal, so that a buffer is n d / P numbers: L + 1 of them belong to the layers and two
are the panels that `1d` receives into. Measured is how far the resident memory of each rank rises while it
trains, beyond the adjacency matrix and the features: the kernel's high-water mark of the process (Linux
only), on the rank where it is highest. A narrow network is trained before, so that what the libraries keep
for themselves is there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import distgnn as dg
import high_water
import table
from distgnn import local
from distgnn.bench.spmm import uniform
from distgnn.comm.launch import abort_on_error
from distgnn.nn.loss import Targets, softmax_cross_entropy
from distgnn.nn.optim import Adam
from distgnn.nn.reference import normalize
from distgnn.operators import make_grid
from distgnn.train.full_graph import train

WARM_UP = 8  # features


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=1 << 18)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3, 5, 8])
    parser.add_argument(
        "--one", choices=list(NETWORKS), help="be one of the jobs: print the bytes for the first of --layers"
    )
    args = parser.parse_args()
    if args.one:
        one(NETWORKS[args.one], args)
        return
    rows = [(layers, *(job(name, layers, args) for name in NETWORKS)) for layers in args.layers]
    text = report(rows, args)
    table.publish(args, text)


def job(name: str, layers: int, args: argparse.Namespace) -> int:
    """Measure the bytes at the peak of one network, in processes of their own."""
    sizes = [
        "--nodes",
        str(args.nodes),
        "--degree",
        str(args.degree),
        "--width",
        str(args.width),
        "--layers",
        str(layers),
    ]
    launcher = [os.environ.get("MPIEXEC", "mpiexec"), "-n", str(args.ranks)]
    command = [*launcher, sys.executable, __file__, "--one", name, *sizes]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def one(network: Callable[..., None], args: argparse.Namespace) -> None:
    """Print on rank 0 how far memory rises while a network trains."""
    comm = MPI.COMM_WORLD
    grid = make_grid(comm, "1d")
    A = dg.distribute(normalize(uniform(args.nodes, args.degree)).astype(np.float32), grid, "1d")
    network(A, *problem(A, WARM_UP), 2)
    X, targets = problem(A, args.width)
    most = comm.allreduce(high_water.rise(lambda: network(A, X, targets, args.layers[0])), MPI.MAX)
    if comm.rank == 0:
        print(most)


def problem(A: dg.DistSparse, width: int) -> tuple[dg.DistDense, Targets]:
    """Make random features and labels."""
    rng = np.random.default_rng(A.grid.world.rank)
    X = dg.DistDense.empty(A.input_layout, (A.shape[1], width), np.float32)
    rng.standard_normal(out=X.block, dtype=np.float32)
    labels = rng.integers(0, width, len(X.block)).astype(np.int32)
    return X, Targets(A.output_layout, width, labels, np.ones(len(labels), np.uint8))


def few_buffers(A: dg.DistSparse, X: dg.DistDense, targets: Targets, layers: int) -> None:
    """Train two epochs of the library's network."""
    A.grid.workspace.clear()
    model = dg.nn.GCN(A, [X.shape[1]] * (layers + 1), keep_aggregate=False, product_order="transform-first")
    list(train(model, X, targets, Adam(0.01), 2, eval_every=0))
    A.grid.workspace.clear()


def every_intermediate(A: dg.DistSparse, X: dg.DistDense, targets: Targets, layers: int) -> None:
    """Train two epochs as one writes them first: every result in an array of its own, kept until the epoch
    ends.
    """
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


NETWORKS: dict[str, Callable[..., None]] = {"few": few_buffers, "every": every_intermediate}


def report(rows: list[tuple[int, int, int]], args: argparse.Namespace) -> str:
    """Write the results as Markdown."""
    buffer = 4 * args.nodes * args.width / args.ranks
    lines = [
        table.heading(args) + f". {args.nodes:,} nodes, width {args.width} everywhere, float32, "
        f"`1d` on {args.ranks} ranks: a buffer "
        f"is {buffer / 2**20:.0f} MiB. Buffers at the peak, beyond the adjacency matrix and the features:",
        "",
        *table.columns(
            "layers", "L + 3", "measured", "/ (L + 3)", "keeping every intermediate", "/ measured"
        ),
    ]
    for layers, few, every in rows:
        ours = few / buffer
        cells = (f"{ours:.2f}", f"{ours / (layers + 3):.3f}", f"{every / buffer:.2f}", f"{every / few:.2f}")
        lines.append(f"| {layers} | {layers + 3} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    abort_on_error()
    main()

"""The original order of nodes against a random one (MG-GCN sections 5.2 and 6.3, Figure 7).

    mpiexec -n 4 python benchmarks/orders.py --out benchmarks/results/orders.md          # and -n 8

Epochs of both orders alternate. Where ranks share cores, a rank that waits lends its core to the others, so
that seconds hide the imbalance that ranks on cores of their own would feel; hence the non-zeros of the
fullest rank against the mean beside them.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import table
from distgnn import gallery
from distgnn.layout import partition
from distgnn.nn.reference import normalize
from distgnn.operators import make_grid
from training import epochs

BARE = {"features": 0, "classes": 0}
GRAPHS = {
    "R-MAT": lambda n: gallery.rmat(n, degree=32, scramble=False, **BARE).A,
    "planted partition": lambda n: (
        gallery.sbm(n, degree_exponent=2.5, size_exponent=2.5, scramble=False, **BARE).A
    ),
    "road-like": lambda n: gallery.road(n, **BARE).A,
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=1 << 16)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 128, 32])
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each, after one to warm up")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    rows = [line for name, make in GRAPHS.items() for line in measure(comm, name, make(args.nodes), args)]
    if comm.rank == 0:
        lines = [
            table.heading(args, comm.size)
            + f". {args.nodes:,} nodes, widths {'-'.join(map(str, args.widths))}, dropout 0.5, `1d` on "
            f"{comm.size} ranks of this machine; medians of {args.epochs} epochs in turns.",
            "",
            *table.columns(
                "graph",
                "order",
                "non-zeros of a rank, max / mean",
                "of a stage, max / mean",
                "seconds per epoch",
            ),
            *rows,
        ]
        text = "\n".join(lines) + "\n\n"
        table.publish(args, text)


def measure(comm: MPI.Intracomm, name: str, graph: sp.csr_array, args: argparse.Namespace) -> list[str]:
    """Measure each order; return a line for each."""
    A = normalize(graph).astype(np.float32)
    shuffle = np.random.default_rng(0).permutation(A.shape[0])
    matrices = {"original": A, "random": A[shuffle][:, shuffle]}
    grid = make_grid(comm, "1d")
    runs = {order: epochs(grid, matrix, "1d", args.widths, dropout=0.5) for order, matrix in matrices.items()}
    found: dict[str, list[float]] = {order: [] for order in runs}
    for _ in range(1 + args.epochs):
        for order, run in runs.items():
            grid.world.barrier()
            found[order].append(comm.allreduce(next(run)["seconds"], MPI.MAX))
    lines = []
    for order, samples in found.items():
        ranks, stages = balance(matrices[order], comm.size)
        lines.append(f"| {name} | {order} | {ranks:.2f} | {stages:.2f} | {np.median(samples[1:]):.3f} |")
    return lines


def balance(A: sp.csr_array, ranks: int) -> tuple[float, float]:
    """Return non-zeros of the fullest block row over the mean; and, summed over stages, of each stage's
    fullest block over the mean.
    """
    parts = partition(A.shape[0], ranks)
    column = np.searchsorted(parts, A.indices, side="right") - 1
    rows = [column[A.indptr[first] : A.indptr[last]] for first, last in pairwise(parts)]
    counts = np.array([np.bincount(row, minlength=ranks) for row in rows])
    return counts.sum(1).max() / counts.sum(1).mean(), counts.max(0).sum() / counts.mean(0).sum()


if __name__ == "__main__":
    main()

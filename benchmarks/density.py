"""Seconds per edge and epoch while the density grows (MG-GCN section 6.5, Figure 9).

    # and the same under mpiexec -n 2, -n 4
    python benchmarks/density.py --out benchmarks/results/density.md

Nodes stay, edges are multiplied: a Chung-Lu graph with the degrees of OGBN-Arxiv's kind (power law of
exponent 2.6, mean 13 of every node's neighbours), every degree times 1, 2, 4 ... 128. Communication depends
on the nodes alone, computation on the edges.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import table
from distgnn.nn.reference import normalize
from distgnn.operators import make_grid
from training import epochs

EXPONENT, LEAST_DEGREE = 2.6, 5.0


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=1 << 15)
    parser.add_argument("--scales", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 128, 40])
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs after one to warm up")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    grid = make_grid(comm, "1d")
    rows = []
    for scale in args.scales:
        A = normalize(arxiv_like(args.nodes, scale)).astype(np.float32)
        records = epochs(grid, A, "1d", args.widths, dropout=0.5)
        found = []
        for _ in range(1 + args.epochs):
            record = next(records)
            slowest = np.array([record["seconds"], *record["phases"].values()])
            comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
            found.append(slowest)
        seconds, spmm, gemm, exposed, _ = np.median(found[1:], axis=0)
        rows.append(
            f"| {scale} | {A.nnz:,} | {A.nnz / args.nodes:.0f} | {seconds:.4f} | {seconds / A.nnz * 1e9:.1f} "
            f"| {spmm / seconds:.0%} | {gemm / seconds:.0%} | {exposed / seconds:.0%} |"
        )
        del records, A
    if comm.rank == 0:
        lines = [
            table.heading(args, comm.size)
            + f". {args.nodes:,} nodes, widths {'-'.join(map(str, args.widths))}, dropout 0.5, `1d` on "
            f"{comm.size} rank(s) of this machine; median of {args.epochs} epochs, slowest rank.",
            "",
            *table.columns(
                "edges times",
                "non-zeros",
                "per node",
                "seconds per epoch",
                "ns per non-zero",
                "SpMM",
                "GEMM",
                "exposed communication",
            ),
            *rows,
        ]
        text = "\n".join(lines) + "\n\n"
        table.publish(args, text)


def arxiv_like(nodes: int, scale: int, seed: int = 0) -> sp.csr_array:
    """Make an undirected graph; node v has about `scale` times the degree of a power law, whose sum over
    nodes is twice the edges.
    """
    rng = np.random.default_rng(seed)
    weight = np.minimum(LEAST_DEGREE * rng.random(nodes) ** (-1 / (EXPONENT - 1)), nodes / 16)
    edges = int(scale * weight.sum() / 2)
    ends = np.searchsorted(np.cumsum(weight / weight.sum()), rng.random((2, edges)), side="right").clip(
        max=nodes - 1
    )
    A = sp.coo_array((np.ones(edges, np.float32), (ends[0], ends[1])), shape=(nodes, nodes)).tocsr()
    A = (A + A.T).tocsr()
    A.data[:] = 1
    return A


if __name__ == "__main__":
    main()

"""Words that sampling on a partitioned graph and feature fetching move, counted and by formula (sections 5.2
and 6 of ``matrix-sampling.txt``).

    mpiexec -n 8 python benchmarks/fetching.py --out benchmarks/results/fetching.md

The same minibatches of an R-MAT graph for every replication factor c. The first product of GraphSAGE (a row
of Q for each vertex of a minibatch) and of LADIES (a row for each minibatch), Q cut over the process rows;
then every rank fetches the features of its own minibatches' neighbourhoods, minibatch after minibatch. Every
rank's words must be those of the formula. Nothing is timed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import date

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.comm.launch import abort_on_error
from distgnn.gallery import rmat
from distgnn.layout import Cut, Layout, partition
from distgnn.operators import grids, make_grid
from distgnn.sampling.fetch import Features
from distgnn.sampling.spgemm import Partitioned


def main() -> None:
    abort_on_error()
    parser = table.arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=1 << 15)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--bulk", type=int, default=32, help="minibatches")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    A = rmat(args.nodes, degree=args.degree, features=0, classes=0).A
    batches = (
        np.random.default_rng(0).permutation(args.nodes)[: args.bulk * args.batch_size].reshape(args.bulk, -1)
    )
    sage = sp.csr_array(
        (np.ones(batches.size), batches.reshape(-1), np.arange(batches.size + 1)), (batches.size, args.nodes)
    )
    bounds = np.arange(0, batches.size + 1, batches.shape[1])
    ladies = sp.csr_array((np.ones(batches.size), batches.reshape(-1), bounds),
                          (args.bulk, args.nodes))  # fmt: skip
    products: list[str] = []
    fetches: list[str] = []
    for sizes in sorted(grids("1.5d", comm.size), key=lambda sizes: sizes["reps"]):
        if sizes["rows"] == 1:
            continue
        grid = make_grid(comm, "1.5d", sizes)
        products += [multiply(grid, A, name, Q) for name, Q in (("SAGE", sage), ("LADIES", ladies))]
        fetches.append(fetch(grid, A, batches, args.features))
        grid.free()
    if comm.rank == 0:
        text = report(A, products, fetches, comm.size, args)
        table.publish(args, text)


def multiply(grid: dg.Grid, A: sp.csr_array, name: str, Q: sp.csr_array) -> str:
    """Multiply; return a line of the table of products."""
    graph = Partitioned(grid, A)
    cuts = partition(Q.shape[0], grid.shape["rows"])
    Qs = [Q[first:last] for first, last in zip(cuts[:-1], cuts[1:], strict=True)]
    with dg.Ledger() as counted:
        graph.multiply(Qs[grid.coords["rows"]])
    parts = product_words(A, Qs, grid)
    same(grid, counted.words, sum(parts))
    table = np.array(grid.world.gather_objects(parts))
    each = " | ".join(f"{words:,}" for words in [*table.sum(axis=0), table.sum(), table.sum(axis=1).max()])
    return f"| {name} | {grid.shape['reps']} | {grid.shape['rows']} x {grid.shape['reps']} | {each} |"


def product_words(A: sp.csr_array, Qs: list[sp.csr_array], grid: dg.Grid) -> list[int]:
    """Count the words that this rank receives: row numbers and lengths, rows of A, partial products."""
    rows, c, i, j = grid.shape["rows"], grid.shape["reps"], grid.coords["rows"], grid.coords["reps"]
    block = np.repeat(np.arange(rows), np.diff(partition(A.shape[0], rows)))  # of each vertex
    column = block // -(-rows // c)  # the process column whose stage it is
    read = [np.isin(np.arange(A.shape[0]), Q.indices) for Q in Qs]
    mine = read[i] & (column == j) & (block != i)
    asked = sum(int((other & (column == j) & (block == i)).sum()) for k, other in enumerate(read) if k != i)
    only = [sp.diags_array((column == r).astype(float)) for r in range(c)]
    partial = [Qs[i].shape[0] + 2 * (sp.csr_array(Qs[i] @ only[r]) @ A).nnz
               for r in range(c) if r != j]  # fmt: skip
    return [asked + int(mine.sum()), 2 * int(np.diff(A.indptr)[mine].sum()), sum(partial)]


def fetch(grid: dg.Grid, A: sp.csr_array, batches: np.ndarray, f: int) -> str:
    """Fetch; return a line of the table: every rank has its own minibatches, as many on all."""
    X = np.arange(A.shape[0] * f, dtype=np.float32).reshape(-1, f)
    features = Features(dg.scatter(X, Layout(grid, Cut(("rows",)), Cut())))
    P, rows, c, i, j = (
        grid.size,
        grid.shape["rows"],
        grid.shape["reps"],
        grid.coords["rows"],
        grid.coords["reps"],
    )
    block = np.repeat(np.arange(rows), np.diff(partition(A.shape[0], rows)))
    words = numbers = distinct = messages = 0
    for step in range(len(batches) // P):
        neighbourhoods = [np.unique(A[batches[step * P + rank]].indices) for rank in range(P)]
        ids = neighbourhoods[grid.rank]
        with dg.Ledger() as counted:
            rows_of_X = features.fetch(ids)
        np.testing.assert_array_equal(grid.backend.to_host(rows_of_X), X[ids])
        remote = int((block[ids] != i).sum()) * f
        asked = sum(int((block[neighbourhoods[k * c + j]] == i).sum()) for k in range(rows) if k != i)
        same(grid, counted.words, remote + asked)
        words, numbers, distinct, messages = (
            words + remote,
            numbers + asked,
            distinct + ids.size,
            messages + counted.messages,
        )
    table = np.array(grid.world.gather_objects((words, numbers, distinct, messages)))
    total, even = table[:, 0].sum(), table[:, 2].sum() * f / P
    steps = len(batches) // P
    return (
        f"| {c} | {rows} x {c} | {total / c / steps:,.0f} | {even * (P // c - 1) / steps:,.0f} | "
        f"{total / P / steps:,.0f} "
        f"| {even * (1 - c / P) / steps:,.0f} | {table[:, 1].sum() / P / steps:,.0f} | "
        f"{table[:, 3].max() / steps:.0f} |"
    )


def same(grid: dg.Grid, counted: int, formula: int) -> None:
    with grid.world.together():
        if counted != formula:
            raise SystemExit(f"rank {grid.rank}: counted {counted} words, the formula says {formula}")


def report(
    A: sp.csr_array, products: list[str], fetches: list[str], ranks: int, args: argparse.Namespace
) -> str:
    """Write the results as Markdown."""
    lines = [
        f"## R-MAT, {A.shape[0]:,} nodes, {A.nnz:,} non-zeros, on {ranks} ranks ({date.today()})",
        "",
        f"`mpiexec -n {ranks} python benchmarks/fetching.py {shlex.join(sys.argv[1:])}`; {args.bulk} "
        "minibatches of "
        f"{args.batch_size} vertices, {args.features} features. Words received; on every rank equal to the "
        "formula.",
        "",
        "Products Q A, words of all ranks together:",
        "",
        "| Q | c | grid | row numbers, lengths | rows of A | partial products | sum | the busiest rank |",
        "|---|" + "---:|" * 7,
        *products,
        "",
        "Feature fetching, means per step (a minibatch on every rank):",
        "",
        "| c | grid | words in a process column | D₀ f (P/c - 1) | words per rank | D₀ f (1 - c/P) | row "
        "numbers per rank "
        "| messages of the busiest rank |",
        "|" + "---:|" * 8,
        *fetches,
    ]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    main()

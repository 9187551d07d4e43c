"""Words by matrix of an epoch on minibatches of a partitioned graph, for every number of copies.

    mpiexec -n 4 python benchmarks/sampling_words.py --out benchmarks/results/sampling-words.md

GraphSAGE and LADIES on an R-MAT, all ranks' words added up as the ledger counts them: questions, lengths and
degrees (``rows``), columns to pick, rows, draws or picked edges (``adjacency``), sums of rows, and features,
whose row numbers are in ``rows``, too. `formula` is what the docstring of `Partitioned` gives for all but
features, counted from the samples of the whole graph. `--earlier` leaves it out, for the code before.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.comm.launch import abort_on_error
from distgnn.gallery import rmat
from distgnn.layout import nested, partition
from distgnn.nn import GCN, SGD, SageMean
from distgnn.operators import grids, make_grid
from distgnn.sampling import Block, GraphSage, Ladies, Partitioned, Replicated, Sampler
from distgnn.train import MinibatchTraining

MATRICES = "rows", "columns", "adjacency", "sums", "features"
SAMPLERS = {"sage": GraphSage, "ladies": Ladies}
FANOUT = {"sage": (15, 10), "ladies": (512, 512)}
WIDTHS, CLASSES = (64, 64), 8
Lists = list[np.ndarray]


def main() -> None:
    abort_on_error()
    parser = table.arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=1 << 14)
    parser.add_argument("--degree", type=int, default=32)
    parser.add_argument("--minibatches", type=int, default=16, help="of an epoch, which are one update")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--bulk", type=int, default=4)
    parser.add_argument("--earlier", action="store_true", help="without the formula")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    A = rmat(args.nodes, degree=args.degree, features=0, classes=0).A.astype(np.float32)
    sizes = sorted((grid for grid in grids("1.5d", comm.size) if grid["reps"] <= 4), key=lambda g: g["reps"])
    lines = [line for name in SAMPLERS for line in measured(comm, A, name, sizes, args)]
    if comm.rank == 0:
        head = table.columns("sampler", "P", "c", *MATRICES, "together", "/ c = 1", "formula / ledger")
        size = f"R-MAT, {A.shape[0]:,} nodes, {A.nnz:,} non-zeros; {args.minibatches} minibatches"
        heading = f"{table.heading(args, comm.size)} {size} of {args.batch}, {args.bulk} in a bulk."
        table.publish(args, "\n".join([heading, "", *head, *lines]))


def measured(
    comm: MPI.Intracomm, A: sp.csr_array, name: str, sizes: list[dict[str, int]], args: argparse.Namespace
) -> Iterator[str]:
    first = 0.0
    for axes in sizes:
        grid = make_grid(comm, "1.5d", axes, backend="numpy")
        training = made(grid, A, SAMPLERS[name](Partitioned(grid, A), FANOUT[name]), args)
        with dg.Ledger() as counted:
            list(training.updates(SGD(0.1), 1))
        own = Counter({entry["matrix"]: 0 for entry in counted.entries()})
        for entry in counted.entries():
            own[entry["matrix"]] += entry["words"]
        words = [comm.allreduce(float(own[matrix])) for matrix in MATRICES]
        total = sum(words)
        first = first or total
        asked = words[-1] / WIDTHS[0]  # for a row of features, its number
        formula = (
            ""
            if args.earlier
            else f"{expected(training, A, name, axes, args) / (sum(words[:-1]) - asked):.6f}"
        )
        millions = " | ".join(f"{number / 1e6:.3f}" for number in (*words, total))
        yield f"| {name} | {comm.size} | {axes['reps']} | {millions} | {total / first:.2f} | {formula} |"
        grid.free()


def made(grid: dg.Grid, A: sp.csr_array, sampler: Sampler, args: argparse.Namespace) -> MinibatchTraining:
    """Make a training of so many minibatches."""
    n = A.shape[0]
    model = (SageMean if isinstance(sampler, GraphSage) else GCN)(
        dg.distribute(A, grid, "1.5d"), [*WIDTHS, CLASSES]
    )
    split = np.full(n, 2, np.uint8)
    split[np.random.default_rng(0).choice(n, args.minibatches * args.batch, replace=False)] = 1
    targets = model.targets((np.arange(n) % CLASSES).astype(np.int32), split)
    X = dg.scatter(np.ones((n, WIDTHS[0]), np.float32), model.input_layout)
    return MinibatchTraining(model, X, targets, sampler, args.batch, args.minibatches, args.bulk)


def expected(
    training: MinibatchTraining, A: sp.csr_array, name: str, axes: dict[str, int], args: argparse.Namespace
) -> int:
    """Count the words of the graph by the formula, of all ranks, from the samples of the whole graph."""
    ranks, batches, words = axes["rows"] * axes["reps"], training.minibatches.epoch(1), 0
    parts = nested(partition(A.shape[0], axes["rows"]), axes["reps"])
    sampler = SAMPLERS[name](Replicated(A), FANOUT[name])
    turns = training.turns
    for start in range(0, len(turns), args.bulk):
        bulk = turns[start : start + args.bulk]
        numbers = [[t.numbers[r] for t in bulk if t.numbers[r] is not None] for r in range(ranks)]
        drawn = [sampler.sample_at([batches[i] for i in own], epoch=1, first=own) for own in numbers]
        for hop, fanout in enumerate(FANOUT[name]):
            lists = [[sample.blocks[-1 - hop].rows for sample in own] for own in drawn]
            if name == "sage":
                words += sum(answered(A, parts, lists, r, fanout) for r in range(ranks))
            else:
                blocks = [[sample.blocks[-1 - hop] for sample in own] for own in drawn]
                words += sum(summed(A, parts, lists, r) for r in range(ranks))
                words += picked(A, parts, lists, blocks)
    return words


def elsewhere(parts: np.ndarray, lists: Lists, rank: int) -> np.ndarray:
    """Return the vertices of these lists whose rows other ranks hold."""
    ids = np.concatenate([*lists, np.empty(0, int)]).astype(int)
    return ids[(ids < parts[rank]) | (ids >= parts[rank + 1])]


def asked(parts: np.ndarray, lists: list[Lists], rank: int) -> int:
    """Count the words of a rank's questions, which the others receive."""
    return 2 * len(lists[rank]) * (len(lists) - 1) + elsewhere(parts, lists[rank], rank).size


def answered(A: sp.csr_array, parts: np.ndarray, lists: list[Lists], rank: int, fanout: int) -> int:
    """Count the words of a rank's draws, or rows, with those of its questions."""
    ids, times = np.unique(elsewhere(parts, lists[rank], rank), return_counts=True)
    degrees = np.diff(A.indptr)[ids]
    entries = np.minimum(times * np.minimum(degrees, fanout), degrees)
    return asked(parts, lists, rank) + int(times.sum()) + 2 * int(entries.sum())


def picked(A: sp.csr_array, parts: np.ndarray, lists: list[Lists], blocks: list[list[Block]]) -> int:
    """Count the words of all ranks' edges, with those of their questions."""
    from distgnn.sampling.owners import picked_by_owners  # not in the code before

    ranks, columns = len(lists), sum(len(block.cols) for own in blocks for block in own)
    rows = sum(len(batch) for own in lists for batch in own)
    if not picked_by_owners(ranks, columns, rows, A.nnz / A.shape[0]):
        once = [[np.unique(np.concatenate([*own, np.empty(0, int)]))] for own in lists]
        return sum(answered(A, parts, once, r, A.shape[1]) for r in range(ranks))
    words = (ranks - 1) * (columns + sum(map(len, lists)))
    for rank, own in enumerate(blocks):
        words += asked(parts, lists, rank)
        for block in own:
            away = (block.rows < parts[rank]) | (block.rows >= parts[rank + 1])
            words += int(away.sum()) + 2 * int(np.diff(block.indptr)[away].sum())
    return words


def summed(A: sp.csr_array, parts: np.ndarray, lists: list[Lists], rank: int) -> int:
    """Count the words of a rank's sums, with those of its questions."""
    words, ids = asked(parts, lists, rank), np.concatenate([*lists[rank], np.empty(0, int)]).astype(int)
    pointers = np.cumsum([0, *map(len, lists[rank])])
    Q = sp.csr_array((np.ones(ids.size), ids, pointers), shape=(len(lists[rank]), A.shape[0])).tocsc()
    for q in range(len(parts) - 1):
        if q != rank:
            block = slice(parts[q], parts[q + 1])
            sums = (Q[:, block].tocsr() @ abs(A[block])).nnz
            rows = np.unique(ids[(ids >= parts[q]) & (ids < parts[q + 1])])
            degrees = int(np.diff(A.indptr)[rows].sum())
            words += min(len(lists[rank]) + 2 * sums, rows.size + 2 * degrees)
    return words


if __name__ == "__main__":
    main()

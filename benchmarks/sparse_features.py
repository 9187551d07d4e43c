"""Epochs on sparse features beside the same ones dense, in turns, on a store whose features are sparse.

    distgnn prepare facebook facebook.dg --split 0.6/0.2/0.2
    python benchmarks/sparse_features.py facebook.dg --out benchmarks/results/sparse-features.md
    # and under mpiexec -n 4

A GCN of one hidden layer, whole graph, float32, without evaluation. Without dropout dense features keep A X.
Seconds are the slowest rank's, medians; words those of the busiest rank.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

import distgnn as dg
import table
from distgnn.nn import GCN, Adam
from distgnn.nn.features import normalize_rows
from distgnn.operators.sparse_features import SparseFeatures
from distgnn.train import train

Epochs = Iterator[Any]


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store")
    parser.add_argument("--algorithms", nargs="+", default=["1d"])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=16)
    args = parser.parse_args()
    comm, store = MPI.COMM_WORLD, dg.Store(args.store)
    rows = table.columns("", "dropout", "sparse ms", "dense ms", "ratio", "words", "words, dense")
    for algorithm in args.algorithms:
        for dropout in (0.5, 0.0):
            rows.append(row(comm, args, store, algorithm, dropout))
    if comm.rank == 0:
        share = (store.feature_nnz or 0) / (store.n * store.width)
        what = f"{store.n:,} nodes, {store.nnz:,} non-zeros, {store.width:,} features, {share:.2%} not 0"
        table.publish(args, "\n".join([f"{table.heading(args, comm.size)}. {what}.", "", *rows]))


def row(comm: MPI.Intracomm, args: Namespace, store: dg.Store, algorithm: str, dropout: float) -> str:
    """Measure one way, epochs of sparse and of dense features in turns."""
    grid = dg.make_grid(comm, algorithm, backend="numpy")
    A = dg.load(store, grid, algorithm)
    taken, sent = ([], []), ([], [])
    both = [epochs(args, store, A, dropout, sparse) for sparse in (True, False)]
    for _ in range(args.epochs):
        for ours, words, running in zip(taken, sent, both, strict=True):
            record = next(running)
            ours.append(comm.allreduce(record["seconds"], MPI.MAX))
            words.append(comm.allreduce(record["words"], MPI.MAX))
    sparse, dense = (1e3 * median(times[3:]) for times in taken)
    words = " | ".join(f"{counts[-1]:,}" for counts in sent)
    way = f"`{algorithm}` {'x'.join(map(str, grid.shape.values()))}"
    return f"| {way} | {dropout} | {sparse:.1f} | {dense:.1f} | {dense / sparse:.1f} | {words} |"


def epochs(args: Namespace, store: dg.Store, A: Any, dropout: float, sparse: bool) -> Epochs:
    """Begin a training."""
    model = GCN(A, [store.width, args.hidden, store.classes], dropout=dropout, bias=True)
    X = dg.load_features(store, model.input_layout)
    assert isinstance(X, SparseFeatures), "the store has dense features"
    normalize_rows(X)
    targets = model.targets(*(np.asarray(part) for part in (store.labels(), store.split())))
    return train(model, X if sparse else X.to_dense(), targets, Adam(0.01), args.epochs, eval_every=0)


if __name__ == "__main__":
    main()

"""Epochs on sparse features beside torch's with sparse X, in turns, on a store whose features are sparse.

    distgnn prepare facebook facebook.dg --split 0.6/0.2/0.2
    OMP_NUM_THREADS=1 python benchmarks/sparse_features_peer.py facebook.dg --out FILE

Needs torch. A GCN of one hidden layer with biases, Adam, whole graph, float32, without evaluation, one rank
and one thread. torch multiplies by ``torch.sparse.mm``, with X and A both CSR or both COO; its dropout is of
stored values. Seconds of processor; lower quartiles, as other programs use the cores.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy, dropout

import distgnn as dg
import sparse_features
import table
from distgnn.split import TRAIN

LAYOUTS = ("csr", "coo")
Epoch = Callable[[], object]


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    store = dg.Store(args.store)
    names = "distgnn", *(f"torch, {layout}" for layout in LAYOUTS)
    rows = table.columns("dropout", *(f"{name}, ms" for name in names), "distgnn is faster by", "noise")
    rows += [row(args, store, rate) for rate in (0.5, 0.0)]
    what = f"{store.n:,} nodes, {store.nnz:,} non-zeros, {store.width:,} features; torch {torch.__version__}"
    noise = "Noise: the upper quartile of distgnn's epochs over the lower one."
    table.publish(args, "\n".join([f"{table.heading(args)}. {what}. {noise}", "", *rows]))


def row(args: Namespace, store: dg.Store, rate: float) -> str:
    """Measure epochs with one rate of dropout in turns."""
    A = dg.load(store, dg.make_grid(MPI.COMM_SELF, "1d", backend="numpy"), "1d")
    ours = sparse_features.epochs(args, store, A, rate, sparse=True)
    runs: list[Epoch] = [lambda: next(ours), *(theirs(args, store, rate, layout) for layout in LAYOUTS)]
    times = np.zeros((args.epochs, len(runs)))
    for turn in times:
        for number, run in enumerate(runs):
            began = time.process_time()
            run()
            turn[number] = 1e3 * (time.process_time() - began)
    low, high = np.percentile(times[len(times) // 10 :], [25, 75], axis=0)
    cells = *low, min(low[1:]) / low[0], high[0] / low[0]
    return f"| {rate} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"


def theirs(args: Namespace, store: dg.Store, rate: float, layout: str) -> Epoch:
    """Return a call that trains one epoch by torch."""
    order, n = store.order(), store.n
    A, X = tensor(order.block((0, n), (0, n)), layout), tensor(store.sparse_features(order), layout)
    y = torch.tensor(store.labels(order).reshape(-1).astype(np.int64))
    rows = torch.tensor(np.flatnonzero(store.split(order).reshape(-1) == TRAIN))
    widths = [store.width, args.hidden, store.classes]
    weights = [torch.nn.init.xavier_uniform_(torch.empty(a, b)) for a, b in pairwise(widths)]
    parameters = [torch.nn.Parameter(p) for p in (*weights, *(torch.zeros(b) for b in widths[1:]))]
    W0, W1, b0, b1 = parameters
    optimizer = torch.optim.Adam(parameters, lr=0.01)

    def epoch() -> None:
        optimizer.zero_grad()
        H = torch.relu(torch.sparse.mm(A, torch.sparse.mm(dropped(X, rate), W0)) + b0)
        Z = torch.sparse.mm(A, dropout(H, rate) @ W1) + b1
        loss = cross_entropy(Z[rows], y[rows])
        loss.backward()
        optimizer.step()
        loss.item()

    return epoch


def tensor(matrix: object, layout: str) -> torch.Tensor:
    """Make a sparse tensor of a SciPy matrix."""
    csr = matrix.tocsr().astype(np.float32)  # type: ignore[attr-defined]
    made = torch.sparse_csr_tensor(*map(torch.tensor, (csr.indptr, csr.indices, csr.data)), size=csr.shape)
    return made if layout == "csr" else made.to_sparse_coo().coalesce()


def dropped(X: torch.Tensor, rate: float) -> torch.Tensor:
    """Drop some of the stored values."""
    if rate == 0:
        return X
    values = dropout(X.values(), rate)
    if X.layout == torch.sparse_csr:
        return torch.sparse_csr_tensor(X.crow_indices(), X.col_indices(), values, size=X.shape)
    return torch.sparse_coo_tensor(X.indices(), values, size=X.shape, is_coalesced=True)


if __name__ == "__main__":
    main()

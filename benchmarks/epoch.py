"""Seconds per full-graph epoch of a three-layer GCN on one rank, beside PyTorch Geometric's GCNConv.

Needs torch and torch-geometric. R-MAT with 2^16 nodes and about 1.9 million non-zeros, widths 128-128-128-32,
Adam, dropout 0.5, cached normalisation on both sides; all epochs in turns in one process, so that whatever
else the machine does hits all alike.

    OMP_NUM_THREADS=1 python benchmarks/epoch.py --out benchmarks/results/epoch-host.md
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
import table
from distgnn import gallery
from distgnn.bench import timing
from distgnn.local import host
from distgnn.nn.optim import Adam
from distgnn.nn.reference import normalize
from distgnn.train.full_graph import train

LR, WEIGHT_DECAY = 0.01, 5e-4


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--scale", type=int, default=16, help="log2 of the nodes")
    parser.add_argument(
        "--degree", type=float, default=32, help="non-zeros per node before duplicates are merged"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 128, 128, 32])
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each, after one to warm up")
    parser.add_argument("--clock", choices=list(timing.CLOCKS), default="wall")
    args = parser.parse_args()

    graph = gallery.rmat(1 << args.scale, degree=args.degree)
    rng = np.random.default_rng(0)
    n, classes = graph.A.shape[0], args.widths[-1]
    X = rng.standard_normal((n, args.widths[0])).astype(np.float32)
    labels, split = rng.integers(0, classes, n).astype(np.int32), rng.integers(1, 4, n).astype(np.uint8)

    phases: list[dict[str, float]] = []
    runs: dict[str, Callable[[], Any]] = {"distgnn": ours(graph.A, X, labels, split, args, phases)}
    try:
        runs["PyG, CSR adjacency"] = pyg(graph.A, X, labels, split, args, csr=True)
        runs["PyG, edge index"] = pyg(graph.A, X, labels, split, args, csr=False)
    except ImportError as error:
        print(f"without PyTorch Geometric: {error}")
    samples = timing.in_turns(runs, 0, args.epochs, args.clock)
    text = report(samples, phases[1:], normalize(graph.A).nnz, args)
    table.publish(args, text)


def ours(
    A: sp.csr_array, X: np.ndarray, labels: np.ndarray, split: np.ndarray, args: Any, phases: list[Any]
) -> Callable[[], Any]:
    """Return a call that trains one epoch."""
    grid = dg.Grid(MPI.COMM_SELF, rows=1)
    operator = dg.distribute(normalize(A), grid, "1d")
    model = dg.nn.GCN(operator, args.widths, dropout=args.dropout)
    features = dg.scatter(X, model.input_layout)
    targets = model.targets(labels, split)
    epochs: Iterator[dict[str, Any]] = train(
        model, features, targets, Adam(LR, WEIGHT_DECAY), 1 << 30, eval_every=0, timing=True
    )

    def epoch() -> None:
        record = next(epochs)
        phases.append(record["phases"] | {"total": record["seconds"]})

    return epoch


def pyg(
    A: sp.csr_array, X: np.ndarray, labels: np.ndarray, split: np.ndarray, args: Any, csr: bool
) -> Callable[[], Any]:
    """Train the same network by PyTorch Geometric, with a CSR tensor or an edge index for the graph."""
    import torch
    from torch_geometric.nn import GCNConv

    torch.set_num_threads(host.threads())
    coo = A.tocoo()
    if csr:
        edges = torch.sparse_coo_tensor(
            np.stack([coo.row, coo.col]).astype(np.int64), torch.ones(coo.nnz), size=A.shape
        ).to_sparse_csr()
    else:
        edges = torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64))
    layers = torch.nn.ModuleList(
        GCNConv(a, b, cached=True, bias=False) for a, b in zip(args.widths[:-1], args.widths[1:], strict=True)
    )
    optimizer = torch.optim.Adam(layers.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    features, classes = torch.from_numpy(X), torch.from_numpy(labels.astype(np.int64))
    rows = torch.from_numpy(np.flatnonzero(split == 1))

    def epoch() -> None:
        optimizer.zero_grad()
        H = features
        for index, layer in enumerate(layers):
            H = torch.nn.functional.dropout(torch.relu(H) if index else H, args.dropout)
            H = layer(H, edges)
        torch.nn.functional.cross_entropy(H[rows], classes[rows]).backward()
        optimizer.step()

    return epoch


def report(samples: dict[str, list[float]], phases: list[dict[str, float]], nnz: int, args: Any) -> str:
    """Write the results as Markdown."""
    best = {name: float(np.median(times)) for name, times in samples.items()}
    total = sum(record["total"] for record in phases)
    share = {name: sum(record[name] for record in phases) / total for name in phases[0] if name != "total"}
    widths = "-".join(map(str, args.widths))
    lines = [
        table.heading(args)
        + f"; {host.threads()} thread(s). R-MAT 2^{args.scale}, {nnz} non-zeros with self-loops, "
        f"widths {widths}, dropout {args.dropout}; median of {args.epochs} epochs in turns, {args.clock} "
        "clock.",
        "",
        *table.columns("", "seconds per epoch", "distgnn is faster by"),
        *(f"| {name} | {seconds:.4f} | {seconds / best['distgnn']:.2f} |" for name, seconds in best.items()),
        "",
        "distgnn's time: " + ", ".join(f"{name} {part:.0%}" for name, part in share.items()) + ".",
    ]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s in all")

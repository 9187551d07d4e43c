"""Memory of 3D training step by step, against a formula: min(6, L) shards, their transposes, features,
weights, buffers.

    distgnn generate rmat graph --scale 18 --degree 200 --features 128 --classes 32
    distgnn prepare graph graph.dg --order double
    mpiexec -n 8 python benchmarks/memory_3d.py graph.dg --out benchmarks/results/memory-3d.md

The network is that of Plexus section 6.2: L layers, hidden width 128, AdamW, trained features; the order is
the double permutation, with which layers up to the sixth have shards of their own (section 5.1). Measured is
how far the resident memory of a rank rises above what it was before the first step: the kernel's high-water
mark of the process after each step (Linux only), on the rank where it is highest. Before, a shard and
features are loaded and dropped and a small network is trained, so that what libraries keep for themselves is
there.

The formula, in bytes per rank on the grid (Gx, Gy, Gz), for n nodes, z non-zeros and widths d_0, ..., d_L in
float32; p_l and c_l are the sizes of the axes that cut rows and columns of A in layer l, f_l of the one that
cuts the columns of its input:

    shard            of layer l           8 z/(p_l c_l) + 4 n/p_l, and transposed 8 z/(p_l c_l) + 4 n/c_l
    features                              4 n d_0/P; AdamW's two moments and the gradient as much each
    weights          of layer l           4 d_l d_(l+1)/P, with moments and gradient;
                                          and 4 d_l d_(l+1)/(f_l c_l) gathered
    buffers          of the layers        L + 2 of the largest of 4 n d_l/(p_l f_l) and 4 n d_0/(c_0 f_0):
                                          T of each layer and two that come and go;
                                          the features gathered in layer 0 lie in one
    signs            of layer l > 0       n d_l/(8 c_l f_l)
    sums                                  what others have of CHUNKS chunks
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import table
from distgnn import gallery
from distgnn.arrays.tuning import TUNING
from distgnn.comm.launch import abort_on_error
from distgnn.nn.gcn import GCN
from distgnn.nn.optim import AdamW
from distgnn.operators import distribute, make_grid
from distgnn.operators.dense import scatter
from distgnn.operators.plexus_3d import ROLES
from distgnn.store import Store, load, load_features, load_targets
from distgnn.train.full_graph import train
from distgnn.train.ways import parse_grid
from memory import rise, status

HIDDEN = 128
MIB = 2**20


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store", help="with the order double")
    parser.add_argument("--grid", default="2x2x2")
    parser.add_argument("--layers", type=int, default=3)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    store, sizes = Store(args.store), parse_grid(args.grid, "3d")
    warm_up(comm, store, sizes)
    steps = training(comm, store, sizes, args.layers)
    measured: dict[str, int] = {}

    def all_steps() -> None:
        before = status("VmRSS")
        for name in steps:
            measured[name] = comm.allreduce(status("VmHWM") - before, MPI.MAX)

    rise(all_steps)
    if comm.rank == 0:
        text = report(measured, formula(store, sizes, args.layers), args)
        table.publish(args, text)


def warm_up(comm: MPI.Intracomm, store: Store, sizes: Any) -> None:
    """Load and drop a shard and features, and train a small network: libraries and kernels then have what
    they need.
    """
    load_features(store, load(store, make_grid(comm, "3d", sizes), "3d", "double").input_layout)
    A = gallery.sbm(2000, features=0, seed=0).A.astype("float32")
    model = GCN(distribute(A, make_grid(comm, "3d", sizes), "3d"), [8, 16, 4])
    targets = model.targets(np.arange(2000) % 4, np.ones(2000, np.uint8))
    X = scatter(np.ones((2000, 8), np.float32), model.input_layout)
    list(train(model, X, targets, AdamW(0.01), 2, train_features=True))


def training(comm: MPI.Intracomm, store: Store, sizes: Any, layers: int) -> Iterator[str]:
    """Run the steps of a training, one after another."""
    A = load(store, make_grid(comm, "3d", sizes), "3d", "double")
    operators = [A.layer(number) for number in range(layers)]
    yield "adjacency loaded"
    X = load_features(store, A.input_layout)
    yield "features loaded"
    widths = [store.width, *[HIDDEN] * (layers - 1), store.classes]
    model = GCN(A, widths)
    targets = model.targets(*load_targets(store, model.output_layout))
    epochs = train(model, X, targets, AdamW(0.01, 0.01), 3, train_features=True)
    next(epochs)
    yield "first epoch"
    list(epochs)
    yield "third epoch"
    assert len({id(operator.A) for operator in operators}) == min(6, layers)


def formula(store: Store, sizes: Any, layers: int) -> dict[str, dict[str, float]]:
    """Return the bytes by step and by what is held."""
    n, z, P = store.n, store.nnz, sizes["x"] * sizes["y"] * sizes["z"]
    widths = [store.width, *[HIDDEN] * (layers - 1), store.classes]
    # (p, c, f) of every layer
    cut = [tuple(sizes[axis] for axis in ROLES[number % 3]) for number in range(layers)]
    shards = cut[:6]
    entries = sum(8 * z / (p * c) for p, c, _ in shards)
    features = 4 * n * widths[0] / P
    weights = [4 * a * b for a, b in zip(widths, widths[1:], strict=False)]
    buffer = max(4 * n * width / (p * f) for width, (p, _, f) in zip(widths, cut, strict=False))
    buffer = max(buffer, 4 * n * widths[0] / (cut[0][1] * cut[0][2]))
    groups = {sizes[axis] for axis in "xyz"} - {1}
    loaded = {"shards": entries + sum(4 * n / p for p, _, _ in shards)}
    with_features = loaded | {"features": features}
    trained = with_features | {
        "transposed shards": entries + sum(4 * n / c for _, c, _ in shards),
        "gradient and moments of the features": 3 * features,
        "weights, gradients and moments": 4 * sum(weights) / P,
        "gathered weights": max(W / (c * f) for W, (_, c, f) in zip(weights, cut, strict=True)),
        "buffers of the layers": (layers + 2) * buffer,
        "signs": sum(n * width / (8 * c * f) for width, (_, c, f) in zip(widths[1:-1], cut[1:], strict=True)),
        "sums": max((TUNING.sums_under_way * block_bytes(buffer) * (p - 1) / p for p in groups), default=0),
    }
    return {
        "adjacency loaded": loaded,
        "features loaded": with_features,
        "first epoch": trained,
        "third epoch": trained,
    }


def block_bytes(product: float) -> float:
    """Return the bytes that are summed at a time."""
    return min(max(product / TUNING.sum_blocks, TUNING.smallest_sum_block), TUNING.sum_chunk)


def report(measured: dict[str, int], expected: dict[str, dict[str, float]], args: argparse.Namespace) -> str:
    """Write the results as Markdown."""
    store = Store(args.store)
    lines = [
        table.heading(args, MPI.COMM_WORLD.size)
        + f". {store.n:,} nodes, {store.nnz:,} non-zeros, {store.width} features; grid {args.grid}, "
        f"{args.layers} layers.",
        "",
        *table.columns("after", "formula, MiB", "measured, MiB", "measured / formula"),
    ]
    for step, parts in expected.items():
        total = sum(parts.values())
        lines.append(
            f"| {step} | {total / MIB:.1f} | {measured[step] / MIB:.1f} | {measured[step] / total:.3f} |"
        )
    named = ", ".join(f"{name} {size / MIB:.1f}" for name, size in parts.items())
    lines += ["", f"Of the formula's last line: {named} MiB."]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    abort_on_error()
    main()
